"""Judges fsck and a broker on a damaged bucket.

A broker serves the right records or an error, and never wrong records. The broker names the object
that it cannot serve, and fsck names every damage that is not harmless.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from tests.damage.damages import Case, Kind
from tests.damage.rich_bucket import PARTITIONS, RichBucket, Truth, small_intervals, world
from tests.unit.broker.one_broker import OneBroker, batch
from tests.unit.broker.transactional_client import GROUP, committed_offset, loaded
from tests.unit.bucket.fsck.checked_bucket import checked
from tidelog.broker.telemetry.families import UnservedCollector
from tidelog.bucket.fsck.faults import Fault
from tidelog.errors import CorruptObject
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.batch import iterate_batches
from tidelog.records.records import decode_batch

STORAGE = ErrorCode.KAFKA_STORAGE_ERROR


class Verdict(Enum):
    """The verdict on a damage."""

    NAMED = "named"
    """fsck names the damage."""
    HARMLESS = "harmless"
    """fsck finds no fault, and every record is served as it was."""
    SILENT = "SILENT"
    """A record is lost or wrong, and fsck finds no fault."""


@dataclass
class Outcome:
    """The observations of one case."""

    case: Case
    verdict: Verdict
    refused: str | None = None
    """Why the broker did not start."""
    unserved: set[str] = field(default_factory=set)
    """Partitions with records that cannot be read."""
    wrong: list[str] = field(default_factory=list)
    """Violations, which no damage excuses."""


async def judge(rich: RichBucket, case: Case) -> Outcome:
    """Check and serve a damaged bucket."""
    damaged = RichBucket(case.applied_to(rich.objects), rich.truth)
    faults = (await checked(damaged.store())).faults
    outcome = Outcome(case, Verdict.NAMED)
    with small_intervals():
        try:
            async with world(damaged.store(), broker_id=0).broker(politely=False) as one:
                await serve(one, rich.truth, outcome, set(keys(faults)))
        except CorruptObject as error:
            outcome.refused = str(error)
            if case.kind not in (Kind.ENTRY, Kind.SNAPSHOT):
                outcome.wrong.append(f"the broker does not start: {error}")
            if error.key not in {fault.key for fault in faults}:
                outcome.wrong.append(f"the broker names {error.key}, fsck {keys(faults)}")
    if not faults:
        is_harmless = outcome.refused is None and not outcome.unserved
        outcome.verdict = Verdict.HARMLESS if is_harmless else Verdict.SILENT
    return outcome


def keys(faults: list[Fault]) -> list[str]:
    return sorted({fault.key for fault in faults})


async def serve(one: OneBroker, truth: Truth, outcome: Outcome, blamed: set[str]) -> None:
    """Read all partitions. Then append a record to every partition that can be served."""
    await loaded(one)
    for topic, partitions in PARTITIONS.items():
        for number in range(partitions):
            name = f"{topic}-{number}"
            await read(one, topic, number, truth.records[name], outcome)
    offset = await committed_offset(one)
    if offset < 0:
        outcome.unserved.add(f"offsets of group {GROUP}")
    elif offset != truth.committed_offset:
        outcome.wrong.append(f"the group is at {offset}, it had {truth.committed_offset}")
    health = " ".join(one.broker.health.faults())
    told = {
        sample.labels["partition"]: sample.labels["object"]
        for family in UnservedCollector(one.broker.health.unserved).collect()
        for sample in family.samples
    }
    for name in outcome.unserved:
        place = "__consumer_offsets-0" if name.startswith("offsets") else name
        if place not in health:
            outcome.wrong.append(f"/healthz does not tell of {place}: {health or 'healthy'}")
        if told.get(place) not in blamed:
            outcome.wrong.append(f"the metrics tell {told.get(place)} of {place}, fsck {blamed}")


async def read(
    one: OneBroker, topic: str, number: int, expected: dict[int, bytes], outcome: Outcome
) -> None:
    """Every record is unchanged, or its read fails with an error."""
    name = f"{topic}-{number}"
    answer = await one.offsets(-1, number, topic=topic)
    if answer.error_code == STORAGE:
        outcome.unserved.add(name)
        return
    if answer.error_code != 0:
        outcome.wrong.append(f"{name}: {ErrorCode(answer.error_code).name} for its end")
        return
    found: dict[int, bytes] = {}
    lost: set[int] = set()
    offset = min(expected, default=0)
    end = answer.offset
    while offset < end:
        fetched = await one.fetch(offset, number, topic=topic)
        data = b"".join(fetched.records or ())
        if fetched.error_code == STORAGE or (not data and fetched.error_code == 0):
            lost.add(offset)
            offset += 1
            continue
        if fetched.error_code != 0:
            outcome.wrong.append(f"{name}@{offset}: {ErrorCode(fetched.error_code).name}")
            return
        for position, header in iterate_batches(data):
            if not header.is_control:
                for record in decode_batch(data, position, header):
                    found[record.offset] = record.value or b""
            offset = header.last_offset + 1
    if lost & expected.keys():
        outcome.unserved.add(name)
    for at, value in found.items():
        if expected.get(at) != value:
            outcome.wrong.append(f"{name}@{at} is {value!r}, it was {expected.get(at)!r}")
    silent = expected.keys() - found.keys() - lost
    if silent:
        outcome.wrong.append(f"{name}: offsets {sorted(silent)[:5]} are gone without an error")
    elif not lost:
        produced = await one.produce(batch(b"goes on"), number, topic=topic)
        if produced.error_code not in (0, STORAGE):
            outcome.wrong.append(f"{name}: {ErrorCode(produced.error_code).name} for a new record")


def judged(rich: RichBucket, case: Case) -> Outcome:
    """Run `judge` in a separate event loop, with a time limit."""

    async def bounded() -> Outcome:
        async with asyncio.timeout(120):
            return await judge(rich, case)

    return asyncio.run(bounded())
