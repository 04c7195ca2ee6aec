"""The cluster's state under any sequence of changes, sensible and senseless, against a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.coordinator.cluster.acls import rule as acl
from tidelog.coordinator.cluster.membership.takeover import successions
from tidelog.coordinator.cluster.records.acl_rules import AclRule
from tidelog.coordinator.cluster.records.bucket_format import new_cluster
from tidelog.coordinator.cluster.records.client_quotas import QuotaEntity
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.records.records import (
    AclsChanged,
    BrokerFenced,
    BrokerRegistered,
    DrainChanged,
    IncarnationRetired,
    IncarnationsForgotten,
    MetadataEntry,
    OpenedTenures,
    PartitionMoved,
    PartitionsCreated,
    ProducerIdsAllocated,
    QuotasChanged,
    Record,
    Succession,
    TenuresOpened,
    TopicCreated,
    TopicDeleted,
    TopicsForgotten,
    decode_entry,
    encode_entry,
)
from tidelog.coordinator.cluster.records.topics import TopicFate, new_topic_id
from tidelog.coordinator.cluster.state.draft import InvalidRecord
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.cluster.state.state_snapshot import decode_snapshot, encode_snapshot
from tidelog.identifiers import (
    BrokerId,
    Epoch,
    Incarnation,
    LeaderEpoch,
    ProducerId,
    Slot,
    TopicId,
    TopicPartition,
)
from tidelog.wal.log.tenure import TenureEnd

BROKER_IDS = st.integers(1, 3)
CHOICE = st.integers(0, 1_000_000)
"""Picks one of the objects that exist at that moment."""
PROCESS = ProcessIdentity("h", "b", "n", 1, 1)


class ClusterMachine(RuleBasedStateMachine):
    """The machine's model is `owners`: by partition, its owner and all leader epochs that it ever
    had."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ClusterState()
        self.live: dict[int, int] = {}
        self.fenced: set[int] = set()
        self.draining: set[int] = set()
        self.acls: set[AclRule] = set()
        self.quotas: dict[QuotaEntity, dict[str, float]] = {}
        self.retired: dict[int, int] = {}
        self.forgotten: set[int] = set()
        self.fates: dict[TopicId, TopicFate] = {}
        self.owners: dict[TopicPartition, list[tuple[int, int]]] = {}
        self.ids_given = 0
        self.topics = 0

    # Helpers of the rules.

    def apply(self, author: int | None, *records: Record) -> int:
        number = self.state.sequence + 1
        epoch = None if author is None else Epoch(author)
        entry = MetadataEntry(number, number.to_bytes(16, "big"), 0, epoch, records)
        entry = decode_entry("k", encode_entry(entry))
        before = self.state
        self.state = before.apply(entry)
        assert before.sequence == number - 1
        return number

    def refused(self, author: int | None, *records: Record) -> None:
        before = encode_snapshot(self.state, 0)
        try:
            self.state.extended(None if author is None else Epoch(author), records)
        except InvalidRecord:
            assert encode_snapshot(self.state, 0) == before
        else:
            raise AssertionError(f"{records} by {author} was accepted")

    def pick(self, choice: int, things: Any) -> Any:
        ordered = sorted(things)
        return ordered[choice % len(ordered)]

    def author(self, choice: int) -> int:
        epoch: int = self.pick(choice, self.live.values())
        return epoch

    # Rules.

    @initialize()
    def found(self) -> None:
        self.apply(None, new_cluster(UUID(int=1)))

    @rule(broker_id=BROKER_IDS)
    def register(self, broker_id: int) -> None:
        record = BrokerRegistered(BrokerId(broker_id), "h", 1, PROCESS)
        if broker_id in self.live:
            self.refused(None, record)
            self.refused(self.live[broker_id], record)
            old = self.live[broker_id]
            self.live[broker_id] = self.apply(None, BrokerFenced(Epoch(old)), record)
            self.fenced.add(old)
        else:
            self.live[broker_id] = self.apply(None, record)

    @precondition(lambda self: self.live)
    @rule(choice=CHOICE, victim=CHOICE)
    def fence(self, choice: int, victim: int) -> None:
        epoch = self.pick(victim, self.live.values())
        self.apply(self.author(choice), BrokerFenced(Epoch(epoch)))
        self.live = {broker_id: e for broker_id, e in self.live.items() if e != epoch}
        self.fenced.add(epoch)

    @precondition(lambda self: self.live)
    @rule(choice=CHOICE, which=st.integers(0, 3))
    def change_acls(self, choice: int, which: int) -> None:
        """Create the rule if it does not exist, or delete it."""
        each = acl("READ", f"t{which // 2}", principal=f"User:u{which % 2}")
        if each in self.acls:
            self.refused(self.author(choice), AclsChanged((each,)))
            self.apply(self.author(choice), AclsChanged((), (each,)))
            self.acls.discard(each)
        else:
            self.refused(self.author(choice), AclsChanged((), (each,)))
            self.apply(self.author(choice), AclsChanged((each,)))
            self.acls.add(each)

    @precondition(lambda self: self.live)
    @rule(choice=CHOICE, which=st.integers(0, 3), rate=st.sampled_from([None, 0.0, 5.0, 7.5]))
    def change_quotas(self, choice: int, which: int, rate: float | None) -> None:
        """Create, change and delete quotas."""
        entity = QuotaEntity("alice" if which & 1 else None, "" if which & 2 else None)
        quotas = {} if rate is None else {"request_percentage": rate}
        record = QuotasChanged(entity, quotas)
        if not which or rate == 0 or (not quotas and entity not in self.quotas):
            self.refused(self.author(choice), record)
            return
        self.apply(self.author(choice), record)
        if quotas:
            self.quotas[entity] = quotas
        else:
            del self.quotas[entity]

    @precondition(lambda self: self.live)
    @rule(choice=CHOICE, which=CHOICE, draining=st.booleans())
    def drain(self, choice: int, which: int, draining: bool) -> None:
        known = [*self.live.values(), *self.fenced, *self.retired, *self.forgotten]
        epoch = self.pick(which, known)
        record = DrainChanged(Epoch(epoch), draining)
        is_live = epoch in self.live.values()
        is_last = not set(self.live.values()) - self.draining - {epoch}
        if is_live and (epoch in self.draining) != draining and not (draining and is_last):
            self.apply(self.author(choice), record)
            self.draining ^= {epoch}
        # Once is enough.
        self.refused(self.author(choice), record)

    @precondition(lambda self: self.live and self.fenced)
    @rule(choice=CHOICE, victim=CHOICE, end=st.integers(0, 50))
    def retire(self, choice: int, victim: int, end: int) -> None:
        dead = self.pick(victim, self.fenced)
        author = self.author(choice)
        owned = [p for p, tenures in self.owners.items() if tenures[-1][1] == dead]
        to = {p: Epoch(self.author(choice + n)) for n, p in enumerate(owned)}
        record = IncarnationRetired(Epoch(dead), Slot(end), successions(to))
        self.refused(dead, record)
        if owned:
            less = dict(list(to.items())[1:])
            self.refused(author, IncarnationRetired(Epoch(dead), Slot(end), successions(less)))
            gone = {**to, owned[0]: Epoch(dead)}
            self.refused(author, IncarnationRetired(Epoch(dead), Slot(end), successions(gone)))
        else:
            stranger = (Succession(UUID(int=99), Epoch(author), (0,)),)
            self.refused(author, IncarnationRetired(Epoch(dead), Slot(end), stranger))
        self.apply(author, record)
        self.refused(author, record)
        for partition, owner in to.items():
            self.owners[partition].append((self.owners[partition][-1][0] + 1, owner))
        self.fenced.remove(dead)
        self.retired[dead] = end

    @precondition(lambda self: self.live)
    @rule(choice=CHOICE, partitions=st.integers(1, 4))
    def create(self, choice: int, partitions: int) -> None:
        self.topics += 1
        topic_id = new_topic_id(self.state.sequence + 1, UUID(int=self.topics))
        owners = tuple(Epoch(self.author(choice + n)) for n in range(partitions))
        record = TopicCreated(topic_id, f"t{self.topics}", owners)
        self.apply(self.author(choice), record)
        self.refused(self.author(choice), record)
        self.fates[topic_id] = TopicFate.ALIVE
        for number, owner in enumerate(owners):
            self.owners[TopicPartition(topic_id, number)] = [(0, owner)]

    @precondition(lambda self: self.live and self.state.topics)
    @rule(choice=CHOICE)
    def grow(self, choice: int) -> None:
        topic_id = self.pick(choice, self.state.topics)
        count = self.state.topics[topic_id].partition_count
        owner = Epoch(self.author(choice))
        self.apply(owner, PartitionsCreated(topic_id, (owner,)))
        self.owners[TopicPartition(topic_id, count)] = [(0, owner)]

    @precondition(lambda self: self.live and len(self.state.topics) > 2)
    @rule(choice=CHOICE)
    def delete(self, choice: int) -> None:
        topic_id = self.pick(choice, self.state.topics)
        self.apply(self.author(choice), TopicDeleted(topic_id))
        self.refused(self.author(choice), TopicDeleted(topic_id))
        self.fates[topic_id] = TopicFate.DELETED
        self.owners = {p: t for p, t in self.owners.items() if p.topic_id != topic_id}

    @precondition(lambda self: self.live and self.fates)
    @rule(choice=CHOICE, which=CHOICE)
    def forget_a_topic(self, choice: int, which: int) -> None:
        topic_id = self.pick(which, self.fates)
        record = TopicsForgotten((topic_id,))
        if self.fates[topic_id] is TopicFate.DELETED:
            self.apply(self.author(choice), record)
            self.fates[topic_id] = TopicFate.FORGOTTEN
        self.refused(self.author(choice), record)

    @precondition(lambda self: self.live)
    @rule(choice=CHOICE, which=CHOICE)
    def forget_an_incarnation(self, choice: int, which: int) -> None:
        known = [*self.live.values(), *self.fenced, *self.retired, *self.forgotten]
        epoch = self.pick(which, known)
        record = IncarnationsForgotten((Epoch(epoch),))
        is_named = any(owner == epoch for had in self.owners.values() for _, owner in had)
        if epoch in self.retired and not is_named:
            self.apply(self.author(choice), record)
            del self.retired[epoch]
            self.forgotten.add(epoch)
        self.refused(self.author(choice), record)

    @precondition(lambda self: self.owners)
    @rule(choice=CHOICE, receiver=CHOICE)
    def move(self, choice: int, receiver: int) -> None:
        partition = self.pick(choice, self.owners)
        leader_epoch, owner = self.owners[partition][-1]
        known = [*self.live.values(), *self.fenced, *self.retired, *self.forgotten]
        to = self.pick(receiver, known)
        topic_id, number = partition
        end = TenureEnd(Slot(receiver), choice)
        epoch = LeaderEpoch(leader_epoch)
        record = PartitionMoved(topic_id, number, Epoch(to), None, epoch, end)
        late = replace(record, leader_epoch=LeaderEpoch(leader_epoch + 1))
        self.refused(owner, late)
        for stranger in set(known) - {owner}:
            self.refused(stranger, record)
        if owner in self.live.values() and to in self.live.values() and to != owner:
            self.apply(owner, record)
            self.owners[partition].append((leader_epoch + 1, to))
        else:
            self.refused(owner, record)

    @precondition(lambda self: self.owners)
    @rule(choice=CHOICE)
    def open(self, choice: int) -> None:
        partition = self.pick(choice, self.owners)
        leader_epoch, owner = self.owners[partition][-1]

        def record(at: int) -> TenuresOpened:
            numbers = (partition.partition,)
            return TenuresOpened((OpenedTenures(partition.topic_id, LeaderEpoch(at), numbers),))

        self.refused(owner, record(leader_epoch + 1))
        self.refused(owner, record(leader_epoch - 1))
        if owner in self.live.values():
            self.apply(owner, record(leader_epoch))
            self.owners[partition] = [(leader_epoch, owner)]
        else:
            self.refused(owner, record(leader_epoch))

    @precondition(lambda self: self.live)
    @rule(choice=CHOICE, count=st.integers(1, 1000))
    def allocate(self, choice: int, count: int) -> None:
        author = self.author(choice)
        self.refused(author, ProducerIdsAllocated(ProducerId(self.ids_given + 1), count))
        self.apply(author, ProducerIdsAllocated(ProducerId(self.ids_given), count))
        self.ids_given += count

    @precondition(lambda self: self.fenced or self.retired or self.forgotten)
    @rule(choice=CHOICE)
    def the_dead_are_silent(self, choice: int) -> None:
        dead = self.pick(choice, [*self.fenced, *self.retired, *self.forgotten])
        self.refused(dead, ProducerIdsAllocated(ProducerId(self.ids_given), 1))
        self.refused(dead, BrokerFenced(Epoch(dead)))

    @rule()
    def start_from_a_snapshot(self) -> None:
        restored = decode_snapshot("k", encode_snapshot(self.state, 0))
        assert restored == self.state
        self.state = restored

    # Invariants.

    @invariant()
    def the_state_is_the_models(self) -> None:
        state = self.state
        assert {info.broker_id: info.epoch for info in state.live_brokers()} == self.live
        assert {info.epoch for info in state.fenced_not_retired()} == self.fenced
        self.draining &= set(self.live.values())
        takers = {info.epoch for info in state.takers()}
        assert takers == set(self.live.values()) - self.draining
        assert {info.epoch for info in state.brokers.values() if info.draining} == self.draining
        assert set(state.acls) == self.acls
        assert state.acls.count == len(self.acls)
        assert state.quotas == self.quotas
        assert state.retired_ends == self.retired
        assert state.next_producer_id == self.ids_given
        assert {
            TopicPartition(topic.topic_id, number)
            for topic in state.topics.values()
            for number in range(topic.partition_count)
        } == self.owners.keys()
        for partition, tenures in self.owners.items():
            found = [(t.leader_epoch, t.incarnation.epoch) for t in state.tenures(partition)]
            assert found == tenures

    @invariant()
    def an_id_tells_the_fate_of_its_topic(self) -> None:
        """This holds even for ids that the log has forgotten."""
        state = self.state
        for topic_id, fate in self.fates.items():
            assert state.fate_of(topic_id) is fate
        assert state.fate_of(new_topic_id(state.sequence + 1, UUID(int=1))) is TopicFate.UNKNOWN
        for epoch in (*self.live.values(), *self.fenced, *self.retired, *self.forgotten):
            incarnation = Incarnation(BrokerId(1), Epoch(epoch))
            assert state.is_retired(incarnation) == (
                epoch in self.retired or epoch in self.forgotten
            )
            assert (state.incarnation(Epoch(epoch)) is None) == (epoch in self.forgotten)
        assert not state.is_retired(Incarnation(BrokerId(1), Epoch(state.sequence + 1)))

    @invariant()
    def every_named_incarnation_is_known(self) -> None:
        state = self.state
        for partition in self.owners:
            *earlier, current = state.tenures(partition)
            assert current.incarnation.epoch in state.brokers
            leader_epochs = [tenure.leader_epoch for tenure in (*earlier, current)]
            assert leader_epochs == sorted(set(leader_epochs))
            for tenure in earlier:
                assert state.incarnation(tenure.incarnation.epoch) == tenure.incarnation
        for epoch in (*self.live.values(), *self.fenced):
            assert all(
                self.owners[partition][-1][1] == epoch for partition in state.owned_by(Epoch(epoch))
            )

    @invariant()
    def an_opening_tenure_names_an_earlier_state(self) -> None:
        for epoch in self.live.values():
            for partition, leader_epoch in self.state.unopened(Epoch(epoch)):
                assert self.owners[partition][-1] == (leader_epoch, epoch)
                current = self.state.tenures(partition)[-1]
                assert len(self.owners[partition]) > 1 or current.handover is not None


ClusterMachine.TestCase.settings = settings(stateful_step_count=40)
TestCluster = ClusterMachine.TestCase
