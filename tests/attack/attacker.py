"""The process that attacks: python -m tests.attack.attacker NAME KAFKA HTTP TOPIC [SASL].

Prints "begun" when the attack begins, and ends after the attack's seconds at the latest.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys

import uvloop

from tests.attack.attack import Attack, Target, all_attacks


def main() -> None:
    """Run one attack."""
    name, kafka, http, topic, *sasl = sys.argv[1:]
    _, descriptors_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_max, descriptors_max))
    attack = all_attacks()[name]
    target = Target(address(kafka), address(http), topic, address(sasl[0]) if sasl else None)
    print("begun", flush=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_bounded(attack, target))


async def _bounded(attack: Attack, target: Target) -> None:
    # A broker that ends a connection, or refuses it, has defended itself.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(attack.seconds):
            await attack.run(target)


def address(text: str) -> tuple[str, int]:
    """Host and port of "host:port"."""
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    main()
