"""Hand-overs and commits between brokers, in units of the PUT of a store with known latency."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.broker.throughput import WAL_ALONE
from benchmarks.cluster.brokers import NODES, ClusterTarget, brokers
from benchmarks.cluster.traffic import Traffic, percentiles
from tidelog.client.admin.administration import move_partition
from tidelog.client.pool import Client
from tidelog.clock import SystemClock
from tidelog.coordinator.hashing import partition_for
from tidelog.network import SocketNetwork

PUT_MS, GET_MS = 100, 30
MOVE_SECONDS = 2.0
"""From one move to the next."""
SEND_SECONDS = 0.005
TRANSACTIONS = 40
TRANSACTIONAL_ID = "commits-0"
"""That of `benchmarks.broker.transaction_load commits`."""
STAYS = {**WAL_ALONE, "auto.leader.rebalance.enable": "false"}
"""Nothing but the measurement moves a partition or writes to the store."""
AGAIN_SOON = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 10}
"""A client that repeats at once: the figure is the brokers', not librdkafka's pause of 100 ms."""


class Moving(NamedTuple):
    """Milliseconds."""

    moves: int
    steady_p99: float
    """Between one acknowledgement and the next while nothing moves."""
    gap_p50: float
    gap_p99: float
    """The longest time between one acknowledgement and the next, of each move."""
    together: dict[str, Any]
    apart: dict[str, Any]
    """Transactions whose coordinator leads, or does not lead, the partition."""


def measure_moving(folder: Path, moves: int) -> Moving:
    """Move a partition under a producer; commit with the coordinator here and there."""
    with brokers(folder, NODES, put_ms=PUT_MS, get_ms=GET_MS, **STAYS) as target:
        target.create_topic("moving", 1)
        steady, gaps = _gaps(target, moves)
        target.create_topic("transactions", 1)
        _commits(target)
        coordinator = _coordinator(target)
        found = []
        for broker in (coordinator, (coordinator + 1) % NODES):
            _move(target, "transactions", broker)
            found.append(_commits(target))
    spread = percentiles(gaps)
    return Moving(moves, percentiles(steady)["p99"], spread["p50"], spread["p99"], *found)


def _gaps(target: ClusterTarget, moves: int) -> tuple[Sequence[float], Sequence[float]]:
    """The times between acknowledgements without moves, and the longest of each move.

    The first moves, to each broker once, do not count: librdkafka takes up to a second until it
    first connects to a broker.
    """
    moments: list[float] = []
    with Traffic(target.bootstrap, "moving", **AGAIN_SOON) as traffic:
        traffic.round([0])
        leader = traffic.leaders()[0]
        _send_for(traffic, MOVE_SECONDS, moments)
        moments.clear()
        _send_for(traffic, MOVE_SECONDS, moments)
        steady = _between(moments)
        gaps = []
        for number in range(-NODES, moves):
            leader = (leader + 1) % NODES
            moments.clear()
            _send_for(traffic, MOVE_SECONDS / 4, moments)
            moved = asyncio.run(_moved_meanwhile(target, traffic, leader, moments))
            moved.flush()
            if number >= 0:
                gaps.append(max(_between(moments)))
    return steady, gaps


async def _moved_meanwhile(
    target: ClusterTarget, traffic: Traffic, leader: int, moments: list[float]
) -> Traffic:
    sending = asyncio.to_thread(_send_for, traffic, MOVE_SECONDS, moments)
    await asyncio.gather(sending, _ask_to_move(target, "moving", leader))
    return traffic


def _send_for(traffic: Traffic, seconds: float, moments: list[float]) -> None:
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        traffic.send(0, moments.append)
        time.sleep(SEND_SECONDS)


def _between(moments: Sequence[float]) -> list[float]:
    ordered = sorted(moments)
    return [1000 * (after - before) for before, after in itertools.pairwise(ordered)]


def _move(target: ClusterTarget, topic: str, broker: int) -> None:
    with Traffic(target.bootstrap, topic) as traffic:
        is_there = traffic.leaders()[0] == broker
    if not is_there:
        asyncio.run(_ask_to_move(target, topic, broker))


async def _ask_to_move(target: ClusterTarget, topic: str, broker: int) -> None:
    host, port = target.members[0].bootstrap.split(":")
    async with Client(SocketNetwork(), SystemClock(), [(host, int(port))]) as client:
        await move_partition(client, topic, 0, broker)


def _coordinator(target: ClusterTarget) -> int:
    with Traffic(target.bootstrap, "__transaction_state") as traffic:
        leaders = traffic.leaders()
    return leaders[partition_for(TRANSACTIONAL_ID, len(leaders))]


def _commits(target: ClusterTarget) -> dict[str, Any]:
    module = "benchmarks.broker.transaction_load"
    return target.load("commits", "transactions", module=module, rounds=TRANSACTIONS)
