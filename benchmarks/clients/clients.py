"""How fast Python clients write and read, and at what CPU of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.clients.loads import LOADS
from benchmarks.harness.targets import ONLY_ON_REQUEST, Target, tidelog

PARTITIONS = 4
ROUNDS = 3
DIRECTIONS = ("produce", "consume")
PEERS = {"tidelog": ("confluent-kafka", "confluent-kafka poll"), "tidelog.aio": ("aiokafka",)}
"""Each of our clients, and those that it is compared with."""


@dataclass(frozen=True, slots=True)
class ClientShape:
    """A load."""

    size: int
    count: int


SHAPES = (ClientShape(100, 1_000_000), ClientShape(1024, 500_000))


class ClientSpeed(NamedTuple):
    """One client in one direction: medians of the rounds."""

    messages_a_second: float
    cpu_microseconds_a_message: float


Speeds = dict[tuple[ClientShape, str, str], ClientSpeed]
"""By shape, client and direction."""


def measure_clients(folder: Path, share: float) -> Speeds:
    """All clients against a broker in memory, in turns, so that what disturbs disturbs all."""
    found: Speeds = {}
    for shape in SHAPES:
        count = int(shape.count * share)
        rounds: dict[tuple[str, str], list[ClientSpeed]] = {}
        # A store in memory frees nothing: each shape gets a new one.
        with tidelog("clients", "memory://clients", folder, **ONLY_ON_REQUEST) as target:
            for number in range(ROUNDS):
                for client in LOADS:
                    topic = f"{client}-{shape.size}-{number}".replace("_", "-").replace(" ", "-")
                    target.create_topic(topic, PARTITIONS)
                    for direction in DIRECTIONS:
                        speed = _measure(target, client, direction, topic, shape.size, count)
                        rounds.setdefault((client, direction), []).append(speed)
        for (client, direction), speeds in rounds.items():
            found[shape, client, direction] = ClientSpeed(
                *(median(each) for each in zip(*speeds, strict=True))
            )
    return found


def client_lines(speeds: Speeds) -> list[str]:
    """The table of the report."""
    lines = [
        "## Python clients beside each other, against a broker in memory",
        "",
        "| messages | client | produce, messages/s | ratio | CPU us a message |"
        " consume, messages/s | ratio | CPU us a message |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for shape in dict.fromkeys(shape for shape, _, _ in speeds):
        for client in LOADS:
            cells = [f"{shape.size} B", client]
            for direction in DIRECTIONS:
                ours = speeds[shape, client, direction]
                ratios = [
                    f"{ours.messages_a_second / theirs.messages_a_second:.2f} of {peer}"
                    for peer in PEERS.get(client, ())
                    if (theirs := speeds[shape, peer, direction])
                ]
                cells += [f"{ours.messages_a_second:,.0f}", ", ".join(ratios) or "-"]
                cells.append(f"{ours.cpu_microseconds_a_message:.1f}")
            lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _measure(
    target: Target, client: str, direction: str, topic: str, size: int, count: int
) -> ClientSpeed:
    found = target.load(
        client,
        topic,
        module="benchmarks.clients.loads",
        direction=direction,
        size=size,
        count=count,
    )
    return ClientSpeed(count / found["seconds"], found["cpu_seconds"] / count * 1e6)
