"""The costs of transactions and the speed of rebalances, beside Kafka in the same run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.harness.targets import Target

LOAD = "benchmarks.broker.transaction_load"
SECONDS = 5.0
ROUNDS = 200
PRODUCERS = (1, 10, 100)
MEMBERS = 50
TOPIC_PARTITIONS = 50


class RoundShape(NamedTuple):
    """The size of a transaction."""

    records: int
    partitions: int


ROUND_SHAPES = tuple(
    RoundShape(records, partitions)
    for records in (1, 10, 100)
    for partitions in (1, 10, 50)
    if partitions <= records
)


class CommitCost(NamedTuple):
    """The latencies of transactions of one record, one after the other."""

    send_p50_ms: float
    commit_p50_ms: float
    commit_p99_ms: float
    puts: float | None
    """PUTs of a transaction; None for Kafka."""


class RoundCost(NamedTuple):
    """The p50 of a round of records in ms, without and with a transaction around it."""

    plain_ms: float
    transactional_ms: float


class Rebalance(NamedTuple):
    """Seconds until each member has its share."""

    formed: float
    after_leave: float


@dataclass(slots=True)
class Transactions:
    """The measurements of one target."""

    commit: CommitCost
    a_second: dict[int, float] = field(default_factory=dict)
    """Transactions per second by the number of producers."""
    rounds: dict[RoundShape, RoundCost] = field(default_factory=dict)
    rebalance: Rebalance | None = None


def measure(targets: Sequence[Target], share: float) -> dict[str, Transactions]:
    """Run every measurement on each target in turn."""
    rounds = max(20, int(ROUNDS * share))
    found = {}
    for target in targets:
        target.create_topic("transactions", TOPIC_PARTITIONS)
        found[target.name] = Transactions(_commits(target, rounds))
    for producers in PRODUCERS:
        for target in targets:
            counted = target.load(
                "concurrent",
                "transactions",
                module=LOAD,
                run=producers,
                producers=producers,
                partitions=TOPIC_PARTITIONS,
                seconds=max(1.0, SECONDS * share),
            )
            a_second = counted["transactions"] / counted["seconds"]
            found[target.name].a_second[producers] = a_second
    for number, shape in enumerate(ROUND_SHAPES):
        for target in targets:
            plain, transactional = (
                target.load(
                    "rounds",
                    "transactions",
                    module=LOAD,
                    run=number,
                    rounds=rounds,
                    transactional=transactional,
                    **shape._asdict(),
                )["p50_ms"]
                for transactional in (False, True)
            )
            found[target.name].rounds[shape] = RoundCost(plain, transactional)
    for target in targets:
        rested = target.load(
            "rebalance",
            "transactions",
            module=LOAD,
            members=MEMBERS,
            partitions=TOPIC_PARTITIONS,
        )
        found[target.name].rebalance = Rebalance(rested["formed_seconds"], rested["left_seconds"])
    return found


def _commits(target: Target, rounds: int) -> CommitCost:
    before = target.usage()
    measured = target.load("commits", "transactions", module=LOAD, rounds=rounds)
    used = target.usage().since(before)
    return CommitCost(
        measured["send_p50_ms"],
        measured["commit_p50_ms"],
        measured["commit_p99_ms"],
        None if target.metrics_url is None else used.puts / measured["transactions"],
    )
