"""docs/ATTACKS.md: the effects of each attack on a well-behaved client and on the broker."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.attack.attack import Attack
from tests.attack.good_client import Seen
from tests.attack.probe import Told

_ROW = re.compile(r"^\| ([^|]+?) \| .*\|$", re.MULTILINE)
_HEAD = """\
# Attacks

Clients that try to starve others, and the latencies of a well-behaved client under each attack. The
client produces a record and fetches it again, 50 times a second, and connects again every half
second. Times are in milliseconds, from the time at which a round was due to the record's return.
Attacker, client and broker share the machine, so a part of each latency is the attacker's own use
of the processor. A round is repeated where its connection ends. The peak of the broker's memory is
given before the attack, and under it. `/healthz` is asked four times a second and has one second
to answer.

`make attack` writes this page; `make attack PYTEST="-k fetch"` renews some of its rows.

| Attack | p50, p99, max before | under it | Repeated | Peak MB | `/healthz` | Broker |
|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one attack."""

    attack: Attack
    before: Seen
    under: Seen
    memory_mb: tuple[float, float]
    """The peak before the attack, and during it."""
    told: Told
    harm: str = ""
    """The harm to the broker or to acknowledged records; empty if there is none."""

    def row(self) -> str:
        """Its line in the report."""
        before_mb, under_mb = self.memory_mb
        told = "; ".join(self.told.problems) or "healthy"
        if self.told.unanswered:
            told += f"; {self.told.unanswered} of {self.told.probes} probes unanswered"
        cells = (
            self.attack.name,
            _times(self.before),
            _times(self.under),
            f"{len(self.under.failures)} of {len(self.under.seconds)}",
            f"{before_mb:.0f}, {under_mb:.0f}",
            told.replace("|", "/"),
            f"**{self.harm}**" if self.harm else "survived",
        )
        return f"| {' | '.join(cells)} |"


def _times(seen: Seen) -> str:
    return ", ".join(f"{seen.quantile(share) * 1000:.1f}" for share in (0.5, 0.99, 1.0))


def rows_of(text: str) -> dict[str, str]:
    """The rows of a report, by the attack's name."""
    return {match[1]: match[0] for match in _ROW.finditer(text) if match[1] != "Attack"}


def report(attacks: Mapping[str, Attack], rows: Mapping[str, str], seen_at: str) -> str:
    """The whole page: the rows of attacks that still exist, and a description of each."""
    return (
        _HEAD
        + "".join(f"{rows[name]}\n" for name in attacks if name in rows)
        + f"\n{seen_at}\n\n"
        + "".join(_description(attack) for attack in attacks.values() if attack.name in rows)
    )


def _description(attack: Attack) -> str:
    return f"- **{attack.name}**, {attack.seconds:g} s{_wants(attack)}: {attack.says}\n"


def _wants(attack: Attack) -> str:
    wants = [f"`{name}={value}`" for name, value in attack.settings.items()]
    if attack.descriptors_max is not None:
        wants.append(f"`ulimit -n {attack.descriptors_max}`")
    if attack.store != "memory":
        wants.append(f"a {attack.store} store")
    return _with(wants)


def _with(wants: Iterable[str]) -> str:
    text = ", ".join(wants)
    return f" (with {text})" if text else ""
