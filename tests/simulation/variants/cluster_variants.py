"""Hand-over, take-over and transactions across brokers broken on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from tests.simulation.world.owners import OWNER, Owner
from tests.simulation.world.patches import Breakage, Patch
from tidelog.broker.coordinate import transaction_admission
from tidelog.broker.coordinate.internal_log import InternalPartition
from tidelog.broker.coordinate.marker_delivery import MarkerDelivery
from tidelog.broker.handlers.transactions import transactions
from tidelog.broker.ownership.partition_giving import Allows, PartitionGiving
from tidelog.broker.partitions.partitions import Partition, PartitionError, PartitionRegistry
from tidelog.broker.peers.enlistments import Enlistment
from tidelog.broker.peers.markers import MarkerCodes, MarkerForm, RemoteMarkers
from tidelog.broker.peers.peers import Peers
from tidelog.coordinator.cluster.membership import assignment, takeover, watcher
from tidelog.coordinator.cluster.records.records import PartitionMoved, Record
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.transaction.commands import (
    AddPartitions,
    Identity,
    Release,
    VerifyPartitions,
)
from tidelog.coordinator.transaction.decision import Markers
from tidelog.coordinator.transaction.log_records import TransactionRecord, TransactionStored
from tidelog.coordinator.transaction.state_table import TransactionTable
from tidelog.coordinator.transaction.states import TransactionState
from tidelog.coordinator.transaction.transaction import EnlistedPartition
from tidelog.identifiers import Epoch, Incarnation, Slot, TopicId, TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.transactions import NO_ORDINAL, WriteTxnMarkersRequest
from tidelog.protocol.wire import NULL_UUID
from tidelog.storage.object_store import Buffer, ObjectStore
from tidelog.wal.recover import wal_end
from tidelog.wal.recover.wal_end import WalEnd
from tidelog.wal.write.checkpoint import newest_checkpoint
from tidelog.wal.write.slot_upload import SlotUpload, SlotUploader

_DECIDING_SECONDS = 1.0
_PATIENCE_SECONDS = 0.05
_SEALING_SECONDS = 1.0


def _accept_while_giving() -> list[Patch]:
    """A broker serves a partition until the metadata log has the move."""
    giving: WeakKeyDictionary[PartitionRegistry, dict[TopicPartition, Partition]] = (
        WeakKeyDictionary()
    )
    right_suspend, right_follow = PartitionRegistry.suspend, PartitionRegistry.follow

    def suspend(self: PartitionRegistry, partition: Partition) -> None:
        giving.setdefault(self, {})[partition.log.partition] = partition

    def resume(self: PartitionRegistry, partition: Partition) -> None:
        giving.setdefault(self, {}).pop(partition.log.partition, None)

    def follow(self: PartitionRegistry, records: Sequence[Record]) -> None:
        for place in _moved(records):
            partition = giving.get(self, {}).pop(place, None)
            if partition is not None:
                right_suspend(self, partition)
        right_follow(self, records)

    return [
        (PartitionRegistry, "suspend", suspend),
        (PartitionRegistry, "resume", resume),
        (PartitionRegistry, "follow", follow),
        _give_once(),
    ]


def _serve_what_was_given() -> list[Patch]:
    """A broker goes on to serve partitions that it has given away."""
    return [
        (PartitionRegistry, "suspend", lambda *_: None),
        (PartitionRegistry, "resume", lambda *_: None),
        _give_once(),
    ]


def _give_once() -> Patch:
    """A partition that is served while it is being given is not given a second time. Otherwise that
    second mistake would crash the giver."""
    right = PartitionGiving.give

    async def give(
        self: PartitionGiving, receivers: Mapping[TopicPartition, Epoch], *allows: Allows
    ) -> frozenset[TopicPartition]:
        under_way = self.under_way
        left = {place: epoch for place, epoch in receivers.items() if place not in under_way}
        return await right(self, left, *allows)

    return PartitionGiving, "give", give


def _read_what_was_given() -> list[Patch]:
    """A broker goes on to answer reads of partitions that it has given away, but takes no records
    for them."""
    given: WeakKeyDictionary[PartitionRegistry, dict[TopicPartition, Partition]] = (
        WeakKeyDictionary()
    )
    right_follow, right_get = PartitionRegistry.follow, PartitionRegistry.get
    right_require = PartitionRegistry.require

    def follow(self: PartitionRegistry, records: Sequence[Record]) -> None:
        held = {place: self.held(place) for place in _moved(records)}
        right_follow(self, records)
        for place, partition in held.items():
            if partition is not None and self.held(place) is None:
                given.setdefault(self, {})[place] = partition

    def get(self: PartitionRegistry, place: TopicPartition) -> Partition | None:
        return right_get(self, place) or given.get(self, {}).get(place)

    def require(self: PartitionRegistry, partition: Partition) -> None:
        if partition in given.get(self, {}).values():
            raise PartitionError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it was given away")
        right_require(self, partition)

    return [
        (PartitionRegistry, "follow", follow),
        (PartitionRegistry, "get", get),
        (PartitionRegistry, "require", require),
    ]


def _given_not_checkpointed() -> list[Patch]:
    """Checkpoints leave out given partitions, though no broker has opened them yet."""
    right = PartitionRegistry.follow

    def follow(self: PartitionRegistry, records: Sequence[Record]) -> None:
        given = [self.held(place) for place in _moved(records)]
        right(self, records)
        for partition in given:
            if partition is not None and self.held(partition.log.partition) is not partition:
                self.checkpointed.discard(partition.log)

    return [(PartitionRegistry, "follow", follow)]


def _resume_undecided() -> list[Patch]:
    """A broker serves a partition again when it does not learn soon whether the move counts."""
    _, _, right = _give_once()
    registries: dict[Owner | None, PartitionRegistry] = {}
    right_init, right_suspend = PartitionRegistry.__init__, PartitionRegistry.suspend
    withheld: dict[Owner | None, list[Partition]] = {}

    def init(self: PartitionRegistry, *arguments: Any) -> None:
        right_init(self, *arguments)
        registries[OWNER.get()] = self

    def suspend(self: PartitionRegistry, partition: Partition) -> None:
        right_suspend(self, partition)
        withheld.setdefault(OWNER.get(), []).append(partition)

    async def give(
        self: PartitionGiving, receivers: Mapping[TopicPartition, Epoch], *allows: Allows
    ) -> frozenset[TopicPartition]:
        giving = asyncio.ensure_future(right(self, receivers, *allows))
        await asyncio.wait([giving], timeout=_PATIENCE_SECONDS)
        if not giving.done():
            for partition in withheld.pop(OWNER.get(), ()):
                registries[OWNER.get()].resume(partition)
        return await giving

    return [
        (PartitionRegistry, "__init__", init),
        (PartitionRegistry, "suspend", suspend),
        (PartitionGiving, "give", give),
    ]


def _some_without_owner() -> list[Patch]:
    """A take-over leaves out a partition."""
    right = assignment.spread

    def spread(*arguments: Any) -> Mapping[TopicPartition, Epoch]:
        return dict(list(right(*arguments).items())[1:])

    return [(watcher, "spread", spread)]


def _remote_markers_first() -> list[Patch]:
    """Markers leave for other brokers before the decision is durable, which happens late."""
    deciding: set[Owner | None] = set()
    peers_of: dict[Owner | None, tuple[Peers, Callable[[], ClusterState]]] = {}
    right_init, right_deliver = MarkerDelivery.__init__, MarkerDelivery.deliver

    def init(
        self: MarkerDelivery, writer: Any, partitions: Any, wal: Any, peers: Peers, state: Any,
        *others: Any,
    ) -> None:  # fmt: skip
        right_init(self, writer, partitions, wal, peers, state, *others)
        peers_of[OWNER.get()] = peers, state

    def deliver(self: MarkerDelivery, runtime: Any, markers: Markers) -> None:
        peers, state = peers_of[OWNER.get()]
        for enlisted in sorted(markers.partitions):
            topic = state().topic_named(enlisted.topic)
            if topic is None:
                continue
            peer = peers.leading(TopicPartition(topic.topic_id, enlisted.partition))
            if peer is not None:
                ids = {enlisted.topic: topic.topic_id}
                sent = RemoteMarkers(markers, frozenset([enlisted]), ids)
                peers.mark(peer, sent).add_done_callback(_ignore)
                deciding.add(OWNER.get())
        right_deliver(self, runtime, markers)

    return [
        (MarkerDelivery, "__init__", init),
        (MarkerDelivery, "deliver", deliver),
        _slow_decisions(deciding),
    ]


def _slow_decisions(deciding: set[Owner | None]) -> Patch:
    """The next slot of a broker that has just decided a transaction is late."""
    right = SlotUploader.put

    async def put(self: SlotUploader, upload: SlotUpload) -> None:
        if OWNER.get() in deciding:
            deciding.discard(OWNER.get())
            await asyncio.sleep(_DECIDING_SECONDS)
        await right(self, upload)

    return SlotUploader, "put", put


def _remote_markers_assumed() -> list[Patch]:
    """A transaction is complete when its markers have left for other brokers."""
    right = Peers.mark

    def mark(self: Peers, peer: Epoch, markers: RemoteMarkers) -> asyncio.Future[MarkerCodes]:
        right(self, peer, markers).add_done_callback(_ignore)
        answer: asyncio.Future[MarkerCodes] = asyncio.get_running_loop().create_future()
        answer.set_result(dict.fromkeys(markers.partitions, ErrorCode.NONE))
        return answer

    return [(Peers, "mark", mark)]


def _refused_markers_settle() -> list[Patch]:
    """A marker counts as delivered if the other broker does not know its partition."""
    right = Peers.mark
    unknown = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER}

    def mark(self: Peers, peer: Epoch, markers: RemoteMarkers) -> asyncio.Future[MarkerCodes]:
        async def settled() -> MarkerCodes:
            codes = await right(self, peer, markers)
            return {
                place: ErrorCode.NONE if code in unknown else code for place, code in codes.items()
            }

        return asyncio.ensure_future(settled())

    return [(Peers, "mark", mark)]


def _drained_gets_partitions() -> list[Patch]:
    """The balance, and brokers that give partitions away, do not know of drains."""
    return [(ClusterState, "takers", ClusterState.live_brokers)]


def _reassign_before_seal() -> list[Patch]:
    """A take-over divides the partitions by the gap that it sees, and seals the WAL afterwards."""
    right = wal_end.seal
    sealing: set[asyncio.Task[WalEnd]] = set()

    async def seal(
        store: ObjectStore, clock: Any, entropy: Any, dead: Incarnation, *others: Any
    ) -> WalEnd:
        floor = await newest_checkpoint(store, dead) or Slot(0)
        end = await wal_end.guess_tail(store, dead, floor)

        async def late() -> WalEnd:
            await asyncio.sleep(_SEALING_SECONDS)
            return await right(store, clock, entropy, dead, *others)

        task = asyncio.create_task(late())
        sealing.add(task)
        task.add_done_callback(sealing.discard)
        return WalEnd(end)

    return [(takeover, "seal", seal)]


def _additions_when_appended() -> list[Patch]:
    """A coordinator tells another broker of an addition that is not durable yet and becomes so late
    (H2)."""
    deciding: set[Owner | None] = set()

    def add(**named: Any) -> AddPartitions:
        deciding.add(OWNER.get())
        return AddPartitions(**{**named, "release": Release.APPENDED})

    def verify(**named: Any) -> VerifyPartitions:
        return VerifyPartitions(**{**named, "release": Release.APPENDED})

    return [
        (transactions, "AddPartitions", add),
        (transactions, "VerifyPartitions", verify),
        _slow_decisions(deciding),
    ]


def _enlisted_by_name() -> list[Patch]:
    """A leader that asks for an enlistment does not tell which topic it means by the name. So a
    coordinator may know only the deleted topic of that name, whose leader gets the marker (H3)."""

    def enlistment(
        transactional_id: str,
        identity: Identity,
        adds: bool,
        partitions: frozenset[EnlistedPartition],
        topic_ids: Mapping[str, TopicId],
    ) -> Enlistment:
        any_topic = dict.fromkeys(topic_ids, NULL_UUID)
        return Enlistment(transactional_id, identity, adds, partitions, any_topic)

    return [(transaction_admission, "Enlistment", enlistment)]


def _markers_without_ordinal() -> list[Patch]:
    """Markers for other brokers lack their transaction's ordinal, like a foreign tool's. So a
    repeated marker ends any transaction that is open by then (H1)."""
    right = MarkerForm.request

    def request(self: MarkerForm, items: Sequence[RemoteMarkers]) -> WriteTxnMarkersRequest:
        return right(
            self,
            [
                RemoteMarkers(
                    replace(item.markers, ordinal=NO_ORDINAL), item.partitions, item.topic_ids
                )
                for item in items
            ],
        )

    return [(MarkerForm, "request", request)]


def _open_left_out() -> list[Patch]:
    """A coordinator's snapshot leaves out an open transaction whose first partition was just added,
    as if it had no data yet. No marker ever ends the transaction, and the last stable offset
    hangs."""
    right = TransactionTable.rows

    def rows(self: TransactionTable, records: list[TransactionRecord]) -> Any:
        return right(self, [each for each in records if not _has_just_begun(each)])

    return [(TransactionTable, "rows", rows)]


def _has_just_begun(record: TransactionRecord) -> bool:
    if not isinstance(record, TransactionStored):
        return False
    transaction = record.transaction
    return transaction.state is TransactionState.ONGOING and len(transaction.partitions) == 1


def _serves_before_replay() -> list[Patch]:
    """A coordinator serves before it has replayed the last object of its log."""
    right = InternalPartition.read

    async def read(
        self: InternalPartition, offset: int
    ) -> AsyncGenerator[Sequence[tuple[str, Buffer]], None]:
        held: list[tuple[str, Buffer]] = []
        async for objects in right(self, offset):
            held = [*held, *objects]
            yield held[:-1]
            held = held[-1:]

    return [(InternalPartition, "read", read)]


def _moved(records: Sequence[Record]) -> list[TopicPartition]:
    return [
        TopicPartition(record.topic_id, record.partition)
        for record in records
        if isinstance(record, PartitionMoved)
    ]


def _ignore(answer: asyncio.Future[MarkerCodes]) -> None:
    if not answer.cancelled():
        answer.exception()


CLUSTER_VARIANTS: dict[str, Breakage] = {
    "accept-while-giving": _accept_while_giving,
    "serve-what-was-given": _serve_what_was_given,
    "read-what-was-given": _read_what_was_given,
    "given-not-checkpointed": _given_not_checkpointed,
    "resume-undecided": _resume_undecided,
    "some-without-owner": _some_without_owner,
    "remote-markers-first": _remote_markers_first,
    "remote-markers-assumed": _remote_markers_assumed,
    "refused-markers-settle": _refused_markers_settle,
    "drained-gets-partitions": _drained_gets_partitions,
    "reassign-before-seal": _reassign_before_seal,
    "additions-when-appended": _additions_when_appended,
    "markers-without-ordinal": _markers_without_ordinal,
    "enlisted-by-name": _enlisted_by_name,
    "open-left-out": _open_left_out,
    "serves-before-replay": _serves_before_replay,
}
