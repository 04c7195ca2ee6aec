"""From the objects that are left, every partition is recovered whole: after any steps of the
brokers, and after a late deletion of objects that were found superfluous. After each step the test
recovers the partitions with production's code.

The partitions have one owner after another. Earlier owners live on as zombies that write late
checkpoints and merged objects, even when the metadata log has forgotten them. A collector may
delete marked objects much later.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import TypeVar
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.wal.batches import METADATA, assembled, batch
from tidelog.broker.collect.merger import MergedObjects
from tidelog.broker.collect.survey_file import decode_survey, encode_survey
from tidelog.bucket.merged_names import read_merged_names
from tidelog.bucket.object_keys import MergedObjectKey, parse_key
from tidelog.bucket.reachability import (
    Anchor,
    Reachability,
    needed_incarnations,
    unanchored,
)
from tidelog.bucket.survey import Survey, WalReachability
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.records.topics import Topic
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo, RetiredWal
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import (
    BrokerId,
    Epoch,
    Incarnation,
    LeaderEpoch,
    Slot,
    TopicPartition,
)
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.merged_object import ExtentRun, MergeSource, assemble_merged
from tidelog.wal.format.object_format import (
    ObjectHeader,
    ObjectKind,
    encode_header,
    merged_key,
    wal_key,
)
from tidelog.wal.format.slot_index import check_body
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.wal.log.tenure import Tenure
from tidelog.wal.recover.recovery import recover
from tidelog.wal.recover.slot_runs import SlotRun as SlotRun
from tidelog.wal.roll.merge_plan import WalMergeLimits, plan_merge
from tidelog.wal.write.buffer import SlotBuffer
from tidelog.wal.write.checkpoint import (
    checkpoint_key,
    decode_checkpoint,
    encode_checkpoint,
    list_checkpoints,
)
from tidelog.wal.write.slot_entries import BatchEntry, OpeningEntry, RelocatedEntry
from tidelog.workers.offload import InlineOffload

TOPIC = UUID(int=7)
P = [TopicPartition(TOPIC, number) for number in range(3)]
T = TypeVar("T")
RUNNER = asyncio.Runner()


def at_once(coroutine: Coroutine[object, object, T]) -> T:
    """The result of a coroutine that never waits: the store is in memory."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise AssertionError("the store in memory waited")


@dataclass
class Owner:
    """A broker's memory."""

    incarnation: Incarnation
    logs: dict[TopicPartition, PartitionLog]
    opened: dict[TopicPartition, Slot] = field(default_factory=dict)
    slot: int = 0
    crc: int = 0
    floor: Slot = Slot(0)  # noqa: RUF009
    is_sealed: bool = False

    def __post_init__(self) -> None:
        self.merged = MergedObjects(self.incarnation)


class World:
    """The bucket, the metadata log, and all present and former owners."""

    def __init__(self) -> None:
        self.store = MemoryStore(SystemClock())
        self.table = dict.fromkeys(P, 0)
        self.truth = dict.fromkeys(P, 0)
        self.marked: list[str] = []
        self.surveys: list[Survey] = []
        self.owners: list[Owner] = []
        self.settled = 0
        self.forgotten: set[Incarnation] = set()
        first = Incarnation(BrokerId(1), Epoch(1))
        tenures = tuple([(Tenure(LeaderEpoch(0), first, None),) for _ in P])
        topics = {TOPIC: Topic(TOPIC, "flights", False, {}, tenures)}
        self.state = ClusterState(topics=topics, checksum=0)
        self.begin(first)

    @property
    def owner(self) -> Owner:
        return self.owners[-1]

    def tenures(self, partition: TopicPartition) -> tuple[Tenure, ...]:
        return self.state.tenures(partition)

    def begin(self, incarnation: Incarnation) -> None:
        info = BrokerInfo(
            incarnation, "host", 1, ProcessIdentity("host", "boot", "space", 1, 1), 9000, 0
        )
        self.state = replace(
            self.state, sequence=incarnation.epoch, brokers={incarnation.epoch: info}
        )
        self.owners.append(Owner(incarnation, self.recovered(incarnation)))
        for log in self.owner.logs.values():
            log.begin_tenure(self.tenures(log.partition)[-1].leader_epoch)

    def recovered(self, unopened: Incarnation | None = None) -> dict[TopicPartition, PartitionLog]:
        """Recover with production's code, from the bucket alone."""
        found = RUNNER.run(
            recover(
                self.store,
                SystemClock(),
                InlineOffload(),
                {partition: self.tenures(partition) for partition in P},
                {wal.incarnation: wal.end_slot for wal in self.state.retired.values()},
                unopened={unopened} if unopened is not None else (),
            )
        )
        assert not found.failures, found.failures
        return {partition: PartitionLog.from_image(found.images[partition]) for partition in P}

    def check(self) -> None:
        """The bucket has every record that no table has."""
        for partition, log in self.recovered().items():
            assert log.next_offset == self.truth[partition]
            following = self.table[partition]
            for extent in log.extents:
                if extent.last_offset < following:
                    continue
                assert extent.base_offset <= following, "a hole"
                at_once(self.store.head(extent.key))
                following = extent.last_offset + 1
            assert following == self.truth[partition]

    def check_names(self) -> None:
        """A reader of the bucket takes no merged object for needless that its broker needs."""
        found = [parse_key(key) for key in self.stored()]
        listed = [each for each in found if isinstance(each, MergedObjectKey)]
        names = RUNNER.run(read_merged_names(self.store, InlineOffload(), self.state, listed))
        for each in listed:
            if names.is_settled(each):
                self.settled += 1
                assert each.incarnation == self.owner.incarnation
                assert self.owner.merged.is_settled(each, self.owner.floor)

    # Steps of brokers. Each entry has a slot to itself.

    def write(self, buffer: SlotBuffer) -> Slot:
        owner = self.owner
        header = ObjectHeader(
            ObjectKind.DATA, owner.incarnation, Slot(owner.slot), 0, bytes(16), owner.crc
        )
        slot = assembled(buffer, header)
        at_once(self.store.put(slot.key, slot.data))
        for advance in slot.advances:
            owner.logs[advance.partition].advance(advance)
        owner.slot += 1
        owner.crc = slot.crc
        return header.slot

    def open(self, partition: TopicPartition) -> None:
        owner = self.owner
        if partition not in owner.opened:
            buffer = SlotBuffer()
            buffer.add(OpeningEntry(owner.logs[partition].image()))
            owner.opened[partition] = self.write(buffer)

    def append(self, number: int) -> None:
        partition = P[number % len(P)]
        self.open(partition)
        log = self.owner.logs[partition]
        data, head = batch(1 + number % 3)
        buffer = SlotBuffer()
        appended = log.append(head, 0)
        buffer.add(BatchEntry(partition, log.leader_epoch, data, head, appended.base_offset))
        self.write(buffer)
        self.truth[partition] = log.next_offset

    def open_one(self, number: int) -> None:
        self.open(P[number % len(P)])

    def roll(self, number: int) -> None:
        partition = P[number % len(P)]
        self.table[partition] = self.truth[partition]
        self.owner.logs[partition].advance_table(self.table[partition])

    def checkpoint(self, number: int) -> None:
        """Write a checkpoint, as the owner or as a late former owner."""
        owner = self.owners[-1 - number % min(3, len(self.owners))]
        if owner.slot <= owner.floor or not owner.opened:
            return
        images = [owner.logs[partition].image() for partition in owner.opened]
        slot = Slot(owner.slot)
        data = encode_checkpoint(owner.incarnation, slot, 0, METADATA, images)
        at_once(self.store.put(checkpoint_key(owner.incarnation, slot), data))
        owner.floor = slot

    def tell_opened(self, _: int) -> None:
        owner = self.owner
        topic = self.state.topics[TOPIC]
        tenures = list(topic.partitions)
        for partition, slot in owner.opened.items():
            if slot < owner.floor:
                tenures[partition.partition] = (tenures[partition.partition][-1],)
        topics = {TOPIC: replace(topic, partitions=tuple(tenures))}
        self.state = replace(self.state, topics=topics)

    def merge(self, number: int) -> None:
        """Merge, as the owner or as a former owner. The former owner's entry in the WAL meets the
        seal."""
        owner = self.owners[-1 - number % min(2, len(self.owners))]
        logs = {p: log.extents.copy() for p, log in owner.logs.items() if p in owner.opened}
        plan = plan_merge(
            logs,
            lambda key: key < wal_key(owner.incarnation, owner.floor),
            (),
            WalMergeLimits(1, 10**6, 1000),
        )
        if plan is None:
            return
        keys = {extent.key for run in plan.runs for extent in run.extents}
        if not keys <= set(self.stored()):
            return  # the table already has the records, and production leaves the object out
        data = {key: at_once(self.store.get(key)).data for key in keys}
        runs = [
            ExtentRun(
                run.partition,
                [
                    MergeSource(e, data[e.key][e.position : e.position + e.length])
                    for e in run.extents
                ],
            )
            for run in plan.runs
        ]
        merged = assemble_merged(
            owner.incarnation,
            owner.merged.begin(),
            bytes(16),
            runs,
            {key: check_body(key, data[key]) for key in keys},
        )
        at_once(self.store.put(merged.key, merged.pieces))
        if owner.is_sealed or number % 5 == 4:
            owner.merged.end(None)
            return
        if number % 5 == 3:
            self.collect(0)
        buffer = SlotBuffer()
        for partition, extent in merged.moved:
            log = owner.logs[partition]
            assert log.relocate(extent)
            buffer.add(RelocatedEntry(partition, log.leader_epoch, extent))
        owner.merged.end(self.write(buffer))

    def take_over(self, _: int) -> None:
        old = self.owner
        old.is_sealed = True
        end = Slot(old.slot)
        seal = ObjectHeader(ObjectKind.SEAL, old.incarnation, end, 0, bytes(16), 0)
        at_once(self.store.put(wal_key(old.incarnation, end), encode_header(seal)))
        new = Incarnation(BrokerId(1), Epoch(old.incarnation.epoch + 1))
        topic = self.state.topics[TOPIC]
        tenures = tuple(
            [
                (*known, Tenure(LeaderEpoch(known[-1].leader_epoch + 1), new, None))
                for known in topic.partitions
            ]
        )
        retired = {**self.state.retired, old.incarnation.epoch: RetiredWal(old.incarnation, end)}
        topics = {TOPIC: replace(topic, partitions=tenures)}
        self.state = replace(self.state, topics=topics, retired=retired)
        self.begin(new)

    # Steps of a collector.

    def forget(self, _: int) -> None:
        """Forget retired incarnations that no partition names and whose seal alone is left."""
        needed = needed_incarnations(self.state)
        stored = self.stored()
        for epoch, wal in list(self.state.retired.items()):
            owner = wal.incarnation
            left = [key for key in stored if f"/{owner}/" in key]
            if owner not in needed and left == [wal_key(owner, wal.end_slot)]:
                retired = {e: w for e, w in self.state.retired.items() if e != epoch}
                self.state = replace(self.state, retired=retired)
                self.forgotten.add(owner)

    def settle(self, _: int) -> None:
        """Roll and open all partitions, report the openings, write a checkpoint, and delete
        needless objects."""
        for number in range(len(P)):
            self.append(number)
            self.roll(number)
        self.checkpoint(0)
        self.tell_opened(0)
        self.collect(0)
        self.forget(0)

    def arrive_late(self, number: int) -> None:
        """A forgotten process's put arrives, which was on its way."""
        for owner in sorted(self.forgotten)[number % 3 :][:1]:
            keys = (
                wal_key(owner, Slot(500 + number)),
                merged_key(owner, 500 + number),
                checkpoint_key(owner, Slot(500 + number)),
            )
            at_once(self.store.put(keys[number % len(keys)], b"late"))

    def late(self) -> list[str]:
        """The objects of forgotten incarnations."""
        return [key for key in self.stored() for owner in self.forgotten if f"/{owner}/" in key]

    def stored(self) -> list[str]:
        async def listed() -> list[str]:
            return [meta.key async for meta in self.store.list()]

        return at_once(listed())

    def reachability(self) -> Reachability:
        anchors = {}
        for incarnation in needed_incarnations(self.state):
            slots = at_once(list_checkpoints(self.store, incarnation))
            if slots:
                key = checkpoint_key(incarnation, slots[-1])
                found = decode_checkpoint(key, at_once(self.store.get(key)).data)
                anchors[incarnation] = Anchor.of(slots[-1], found.images)
        assert not list(unanchored(self.state, anchors))
        nothing: frozenset[str] = frozenset()
        return Reachability(
            self.state, anchors, nothing, {}, self.is_settled, lambda _: True, lambda _: False
        )

    def is_settled(self, found: MergedObjectKey, floor: Slot) -> bool:
        owners = {owner.incarnation: owner for owner in self.owners}
        is_forgotten = found.incarnation in self.forgotten
        return not is_forgotten and owners[found.incarnation].merged.is_settled(found, floor)

    def survey(self, _: int) -> None:
        """One broker shares its findings with the others, through the bucket."""
        survey = self.reachability().wals.survey
        self.surveys.append(decode_survey("survey", encode_survey(survey)))

    def mark_by_survey(self, number: int) -> None:
        """Another broker marks objects by the survey, even by an old one."""
        for survey in self.surveys[number % 5 :][:1]:
            judge = WalReachability(survey, self.state, self.is_settled)
            found = [(key, parse_key(key)) for key in self.stored()]
            late = self.late()
            self.marked += [
                key
                for key, what in found
                if what is not None and key not in late and judge.may_go(key, what)
            ]

    def superfluous(self) -> list[str]:
        reachability = self.reachability()
        found = [(key, parse_key(key)) for key in self.stored()]
        free = [key for key, what in found if what is not None and reachability.may_go(key, what)]
        assert not set(free) & set(self.late()), "late objects of forgotten owners are kept"
        for owner in self.forgotten:
            assert not reachability.wals.slots_may_go(owner, [SlotRun(0, 1000)])
        return free

    def mark(self, _: int) -> None:
        self.marked += self.superfluous()

    def delete_marked(self, _: int) -> None:
        for key in self.marked:
            at_once(self.store.delete(key))
        self.marked = []

    def collect(self, number: int) -> None:
        self.mark(number)
        self.delete_marked(number)


STEPS = [
    *[World.append] * 5,
    World.open_one,
    World.roll,
    World.checkpoint,
    World.checkpoint,
    World.tell_opened,
    World.merge,
    World.merge,
    World.take_over,
    World.mark,
    World.survey,
    World.mark_by_survey,
    World.delete_marked,
    World.collect,
    World.forget,
    World.arrive_late,
]
STEPS += [*STEPS, World.settle]
DELETING = {World.delete_marked, World.collect, World.merge, World.settle}


def walk(seed: int, steps: int) -> World:
    """A long random run, since short ones hardly ever merge."""
    chance = random.Random(seed)
    world = World()
    for _ in range(steps):
        step = chance.choice(STEPS)
        step(world, chance.randrange(31))
        if step in DELETING:
            world.check()
        if step is World.merge:
            world.check_names()
    world.check()
    return world


@given(st.integers(0, 2**32))
@settings(deadline=None, max_examples=25)
def test_remaining_objects_suffice_for_every_reader(seed: int) -> None:
    walk(seed, 60)


@given(st.integers(0, 2**32))
@settings(deadline=None, max_examples=5)
def test_the_seals_and_a_checkpoint_are_left_in_the_end(seed: int) -> None:
    """When everything is settled, the seals and one checkpoint are left."""
    world = walk(seed, 30)
    world.settle(0)
    world.check()
    seals = [
        wal_key(owner.incarnation, Slot(owner.slot)) for owner in world.owners if owner.is_sealed
    ]
    newest = checkpoint_key(world.owner.incarnation, world.owner.floor)
    assert world.stored() == sorted({newest, *seals, *world.late()})


def test_the_runs_merge_and_go_on_from_merged_objects() -> None:
    """The properties rest on this: merges happen in the runs, also across a change of owner."""
    world = World()
    for number in range(9):
        world.append(number)
    world.checkpoint(0)
    world.merge(0)
    world.checkpoint(0)
    world.collect(0)
    world.take_over(0)
    world.append(1)
    world.check()
    keys = {extent.key for log in world.recovered().values() for extent in log.extents}
    assert merged_key(world.owners[0].incarnation, 0) in keys
    world.check_names()
    assert not world.settled
    assert not any(
        key.startswith("wal/1-1/") and key < wal_key(world.owners[0].incarnation, Slot(9))
        for key in world.stored()
    )


def test_the_runs_forget_incarnations_that_write_afterwards() -> None:
    """The property about late objects rests on this."""
    late = [key for seed in range(10) for key in walk(seed, 120).late()]
    assert {"wal", "merged", "checkpoint"} == {key.partition("/")[0] for key in late}


def test_the_runs_have_merged_objects_that_nothing_names_any_more() -> None:
    """The property about their names rests on this."""
    assert any(walk(seed, 200).settled for seed in range(100))
