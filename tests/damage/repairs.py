"""Judges a damaged bucket after `tidelog bucket repair` gave up its lost parts.

The next broker serves every partition again. Each record is unchanged, or the metadata log lists
its offset as given up.
"""

from __future__ import annotations

import itertools

from tests.damage.damages import Case, Kind
from tests.damage.judge import Outcome, Verdict
from tests.damage.rich_bucket import (
    PARTITIONS,
    RichBucket,
    read_from,
    small_intervals,
    world,
)
from tests.unit.broker.one_broker import OneBroker, batch
from tests.unit.broker.transactional_client import loaded
from tests.unit.bucket.fsck.checked_bucket import HastyClock, checked
from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.reading import BucketAccess
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.entropy import SeededEntropy
from tidelog.errors import CorruptObject
from tidelog.identifiers import TopicPartition
from tidelog.repair.repair import Processes, accept, survey
from tidelog.storage.object_store import ObjectStore
from tidelog.workers.offload import InlineOffload

PROCESSES = Processes(ProcessIdentity("host", "boot", "namespace", 7, 7), lambda _: False)
_STARTS = itertools.count()
ROUNDS_MAX = 4
"""A round for the log's end, one for the tables, and further ones for damage that these uncover."""


def access_to(store: ObjectStore) -> BucketAccess:
    """Access to the bucket for a new process."""
    entropy = SeededEntropy(f"repair {next(_STARTS)}")
    return Bucket.unread(store, HastyClock(), entropy, InlineOffload()).access


async def repaired(store: ObjectStore) -> list[str]:
    """Accept all losses. Returns their names, in the order of their discovery."""
    names: list[str] = []
    for _ in range(ROUNDS_MAX):
        found = await survey(access_to(store))
        assert found.lines()
        assert found.facts()["whole"] == found.is_whole
        if found.is_whole:
            return names
        names += found.names()
        await accept(access_to(store), found.names(), PROCESSES, in_flight_max=4)
    raise AssertionError(f"there is always something more that is lost: {names}")


async def judge_repair(rich: RichBucket, case: Case) -> Outcome:
    """Repair a damaged bucket, and serve its remaining records."""
    store = RichBucket(case.applied_to(rich.objects), rich.truth).store()
    outcome = Outcome(case, Verdict.HARMLESS)
    try:
        names = await repaired(store)
    except CorruptObject as error:
        outcome.refused = str(error)
        return outcome
    if names:
        outcome.verdict = Verdict.NAMED
    outcome.unserved.update(names)
    with small_intervals():
        async with world(store, broker_id=0).broker(politely=False) as one:
            await loaded(one)
            for topic, partitions in PARTITIONS.items():
                for number in range(partitions):
                    await _check(one, rich, topic, number, outcome)
            if case.kind is not Kind.ENTRY and one.broker.health.faults():
                outcome.wrong.append(f"the broker has faults: {one.broker.health.faults()}")
    left = [fault for fault in (await checked(store)).faults if fault.affected or names]
    if left:
        outcome.wrong.append(f"fsck: {left}")
    return outcome


async def _check(
    one: OneBroker, rich: RichBucket, topic: str, number: int, outcome: Outcome
) -> None:
    """Every record is unchanged or was given up, and the partition takes new records."""
    state = one.broker.membership.metadata.state
    found = state.topic_named(topic)
    if found is None:
        if not state.lost_entries:
            outcome.wrong.append(f"{topic} is gone")
        return
    name = f"{topic}-{number}"
    leader = state.leader(TopicPartition(found.topic_id, number))
    if leader is None or leader.incarnation != one.broker.membership.incarnation:
        # The lost entry fenced the partition's owner. A broker takes the partition over when it has
        # waited long enough.
        assert state.lost_entries
        return
    given_up = given_up_of(state, topic, number)
    expected = rich.truth.records[name]
    kept = {at: value for at, value in expected.items() if at not in given_up}
    await read_rest(one, topic, number, kept, expected, outcome)
    produced = await one.produce(batch(b"goes on"), number, topic=topic)
    if produced.error_code != 0:
        outcome.wrong.append(f"{name} takes no record: {produced}")
    elif produced.base_offset in expected:
        outcome.wrong.append(f"{name} gives offset {produced.base_offset} out again")


async def read_rest(
    one: OneBroker,
    topic: str,
    number: int,
    kept: dict[int, bytes],
    expected: dict[int, bytes],
    outcome: Outcome,
) -> None:
    name = f"{topic}-{number}"
    begin = (await one.offsets(-2, number, topic=topic)).offset
    values = await read_from(one, topic, number, max(begin, min(expected, default=0)))
    for at, value in values.items():
        if value != b"goes on" and expected.get(at) != value:
            outcome.wrong.append(f"{name}@{at} is {value!r}, it was {expected.get(at)!r}")
    missing = sorted(kept.keys() - values.keys())
    if missing and not one.broker.membership.metadata.state.lost_entries:
        outcome.wrong.append(f"{name}: offsets {missing[:5]} are gone and were not given up")


def given_up_of(state: ClusterState, topic: str, number: int) -> set[int]:
    """The offsets that the metadata log lists as given up, among those that the bucket had."""
    found = state.topic_named(topic)
    assert found is not None
    return {
        offset
        for loss in state.losses
        if (loss.topic_id, loss.partition) == (found.topic_id, number)
        for lost in loss.lost
        for offset in range(lost.first, min(lost.last, 10_000) + 1)
    }
