"""Delivers the markers of decided transactions to the partitions' leaders; tells the coordinator.

The broker writes markers for its own partitions at once, right behind the decision in the same WAL.
If it leads all of them, the completion follows there: a commit is one slot (rule H3). Markers for
other brokers' partitions leave when the decision is durable. The completion follows when those
brokers have answered that the markers are durable.

If the process dies before the decision is durable, no client was told of it. The markers of its own
partitions lie behind the decision in the same WAL, so they are lost with it, and no other marker
has left. If it dies later, the successor finds the transaction decided and not complete, and sends
all markers again. The ordinal identifies markers that a partition has already (H1). An old owner
that wakes up finds its WAL sealed. It sends only durable decisions. Its completions do not become
durable.

The broker retries partitions without a marker, without end while the coordinator is here: another
broker leads the partition and does not answer, or a group coordinator loads its log. Before a retry
that depends on it, the broker reads the metadata log and looks for the leader again.

A transaction enlists partitions by name, and a topic may be deleted meanwhile. Such a marker is
settled only by this broker's own view, read from the log after the decision. An older view may lack
a topic that the transaction has data in, and so may the view of a broker that answers
UNKNOWN_TOPIC_OR_PARTITION (`tests/models/routing.py`). If another topic has the name now, its
partition gets a marker of a transaction that it does not know, which ends nothing there. The view
has the topic that got the data: a leader names its topic when it asks for the enlistment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NoReturn, TypeAlias

from tidelog.broker.coordinate.marker_writer import MarkerWriter
from tidelog.broker.partitions.log_writer import EndedTransaction
from tidelog.broker.partitions.partitions import PartitionError, PartitionRegistry
from tidelog.broker.peers.markers import MarkerCodes, RemoteMarkers
from tidelog.broker.peers.peers import Peers
from tidelog.clock import Clock
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.runtime import CoordinatorRefused, CoordinatorRuntime, RuntimeState
from tidelog.coordinator.transaction.commands import Command, MarkersSettled, Reply
from tidelog.coordinator.transaction.decision import Markers
from tidelog.coordinator.transaction.log_records import TransactionRecord
from tidelog.coordinator.transaction.transaction import EnlistedPartition
from tidelog.crash_points import CrashPoint, CrashPoints
from tidelog.entropy import Entropy
from tidelog.errors import TidelogError
from tidelog.identifiers import Epoch, Slot, TopicId, TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.wal.write.writer import WalWriter

logger = logging.getLogger(__name__)

TransactionRuntime: TypeAlias = CoordinatorRuntime[Command, TransactionRecord, Reply]

RETRY_SECONDS: Final = 0.1
"""The length of a round."""
ROUNDS_MAX: Final = 10
"""The rounds between two attempts double from one up to this."""
_JITTER: Final = 0.2
_NEVER_WRITTEN: Final = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED}
)
"""The partition has seen a newer epoch: it will never take this marker."""
_OF_THE_VIEW: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
)
"""This broker's answers for a partition, by its view of the metadata log."""


@dataclass(frozen=True, slots=True)
class _Unwritten:
    """Markers of a decided transaction that some partitions still lack."""

    runtime: TransactionRuntime
    markers: Markers
    partitions: frozenset[EnlistedPartition]
    decided: Slot
    """When this slot is durable, so is the decision."""
    attempts: int = 0
    due_round: int = 0
    needs_view: bool = False
    """Whether the metadata log must be read before the next attempt."""


class MarkerDelivery:
    """Writes transaction markers. `run` is its task: it retries failed markers."""

    def __init__(
        self,
        writer: MarkerWriter,
        partitions: PartitionRegistry,
        wal: WalWriter,
        peers: Peers,
        state: Callable[[], ClusterState],
        refresh: Callable[[], Awaitable[object]],
        clock: Clock,
        entropy: Entropy,
        crash_points: CrashPoints,
    ) -> None:
        """`refresh` reads the metadata log, which changes `state`."""
        self._writer = writer
        self._partitions = partitions
        self._wal = wal
        self._peers = peers
        self._state = state
        self._refresh = refresh
        self._clock = clock
        self._entropy = entropy
        self._crash_points = crash_points
        self._unwritten: list[_Unwritten] = []
        self._retried = 0
        """Retries under way."""
        self._round = 0
        self._wake = asyncio.Event()

    @property
    def unwritten(self) -> int:
        """The number of retries that are due later or under way."""
        return len(self._unwritten) + self._retried

    def deliver(self, runtime: TransactionRuntime, markers: Markers) -> None:
        """Write the markers of the decision that the runtime has just appended."""
        decided = self._wal.newest_slot
        self._write(_Unwritten(runtime, markers, markers.partitions, decided), is_fresh=False)

    def leaders_changed(self) -> None:
        """Retry everything in the next round: partitions may have new leaders."""
        self._unwritten = [replace(each, due_round=self._round) for each in self._unwritten]

    async def run(self) -> NoReturn:
        """Retry the remaining markers."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            jitter = self._entropy.uniform(1 - _JITTER, 1 + _JITTER)
            await self._clock.sleep(RETRY_SECONDS * jitter)
            await self._retry_due()
            if self._unwritten:
                self._wake.set()

    async def _retry_due(self) -> None:
        self._round += 1
        # Its successor sends the markers of a coordinator that has left.
        here = [each for each in self._unwritten if each.runtime.state is RuntimeState.READY]
        due = [each for each in here if each.due_round <= self._round]
        self._unwritten = [each for each in here if each.due_round > self._round]
        is_fresh = False
        self._retried += len(due)
        if any(each.needs_view for each in due):
            is_fresh = await self._read_metadata()
        self._retried -= len(due)
        for each in due:
            if each.runtime.state is RuntimeState.READY:
                self._write(each, is_fresh=is_fresh)

    async def _read_metadata(self) -> bool:
        """Whether the view now has all that was in the log at the call."""
        try:
            await self._refresh()
        except TidelogError as error:
            logger.warning("the metadata log could not be read", extra={"why": str(error)})
            return False
        return True

    def _write(self, wanted: _Unwritten, *, is_fresh: bool) -> None:
        """Write the markers of partitions led here, and send the others to their leaders.

        `is_fresh`: the metadata log was read after the decision.
        """
        slots: set[Slot] = set()
        settled: set[EnlistedPartition] = set()
        left: set[EnlistedPartition] = set()
        elsewhere: set[EnlistedPartition] = set()
        for enlisted in sorted(wanted.partitions):
            if self._peer(enlisted) is not None:
                elsewhere.add(enlisted)
                continue
            try:
                partition = self._partitions.named(*enlisted)
                slots.add(self._writer.write(partition, ended_transaction(wanted.markers)))
                settled.add(enlisted)
            except PartitionError as error:
                is_gone = is_fresh and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if is_gone or error.code in _NEVER_WRITTEN:
                    settled.add(enlisted)
                elif error.code in _OF_THE_VIEW:
                    elsewhere.add(enlisted)
                else:
                    left.add(enlisted)
                    _log_unwritten(enlisted, error)
        self._retry(wanted, left)
        self._send_when_decided(wanted, elsewhere)
        self._settle(wanted, settled)
        self._mark_moments(wanted.decided, slots)

    # Other brokers' partitions.

    def _send_when_decided(self, wanted: _Unwritten, partitions: set[EnlistedPartition]) -> None:
        if partitions:
            durable = self._wal.durable(wanted.decided)
            durable.add_done_callback(partial(self._decided, wanted, partitions))

    def _decided(
        self,
        wanted: _Unwritten,
        partitions: set[EnlistedPartition],
        durable: asyncio.Future[None],
    ) -> None:
        if durable.cancelled() or durable.exception() is not None:
            # The incarnation ends. If the decision is in the bucket, the successor finds it.
            return
        if wanted.runtime.state is RuntimeState.READY:
            self._crash_points.hit(CrashPoint.PREPARE_DURABLE)
            self._send(wanted, partitions)

    def _send(self, wanted: _Unwritten, partitions: Iterable[EnlistedPartition]) -> None:
        routes: dict[Epoch, dict[EnlistedPartition, TopicId]] = {}
        left = set()
        for enlisted in sorted(partitions):
            route = self._peer(enlisted)
            if route is None:
                left.add(enlisted)
            else:
                peer, topic_id = route
                routes.setdefault(peer, {})[enlisted] = topic_id
        self._retry(wanted, left, needs_view=True)
        for peer, topics in routes.items():
            ids = {enlisted.topic: topic_id for enlisted, topic_id in topics.items()}
            sent = RemoteMarkers(wanted.markers, frozenset(topics), ids)
            self._retried += wanted.attempts > 0
            answer = self._peers.mark(peer, sent)
            answer.add_done_callback(partial(self._answered, wanted, sent.partitions))

    def _peer(self, enlisted: EnlistedPartition) -> tuple[Epoch, TopicId] | None:
        """The other broker that leads the partition, and the topic that has its name now."""
        topic = self._state().topic_named(enlisted.topic)
        if topic is None:
            return None
        peer = self._peers.leading(TopicPartition(topic.topic_id, enlisted.partition))
        return None if peer is None else (peer, topic.topic_id)

    def _answered(
        self,
        wanted: _Unwritten,
        partitions: frozenset[EnlistedPartition],
        answer: asyncio.Future[MarkerCodes],
    ) -> None:
        """Take another broker's answer: the markers that it wrote are durable there."""
        self._retried -= wanted.attempts > 0
        if answer.cancelled() or wanted.runtime.state is not RuntimeState.READY:
            return
        error = answer.exception()
        if error is not None:
            logger.info("a broker wrote no markers", extra={"why": str(error)})
            self._retry(wanted, partitions, needs_view=True)
            return
        codes = answer.result()
        settled = frozenset(
            each
            for each in partitions
            if codes[each] is ErrorCode.NONE or codes[each] in _NEVER_WRITTEN
        )
        if settled:
            is_all = settled == wanted.markers.partitions
            point = CrashPoint.MARKERS_DURABLE if is_all else CrashPoint.BETWEEN_MARKERS
            self._crash_points.hit(point)
        self._retry(wanted, partitions - settled, needs_view=True)
        self._settle(wanted, settled)

    # The coordinator.

    def _retry(
        self,
        wanted: _Unwritten,
        partitions: Iterable[EnlistedPartition],
        *,
        needs_view: bool = False,
    ) -> None:
        left = frozenset(partitions)
        if left:
            self._unwritten.append(
                replace(
                    wanted,
                    partitions=left,
                    attempts=wanted.attempts + 1,
                    due_round=self._round + min(2 ** min(wanted.attempts, 10), ROUNDS_MAX),
                    needs_view=needs_view,
                )
            )
            self._wake.set()

    def _settle(self, wanted: _Unwritten, partitions: Iterable[EnlistedPartition]) -> None:
        """Report the markers to the coordinator. Its completion follows them in the same WAL."""
        ended = frozenset(partitions)
        if not ended:
            return
        markers = wanted.markers
        settled = MarkersSettled(
            transactional_id=markers.transactional_id,
            producer_id=markers.producer_id,
            ordinal=markers.ordinal,
            partitions=ended,
        )
        try:
            # Its answer tells nothing more. The runtime retrieves the error of one that fails.
            wanted.runtime.submit(settled)
        except CoordinatorRefused as error:
            logger.info("a coordinator has ended", extra={"why": str(error)})

    def _mark_moments(self, decided: Slot, markers: set[Slot]) -> None:
        """Hit the crash points between the steps whose entries lie in different slots."""
        if not markers:
            return
        first, last = min(markers), max(markers)
        for point, slot, following in (
            (CrashPoint.PREPARE_DURABLE, decided, first),
            (CrashPoint.BETWEEN_MARKERS, first, last),
            (CrashPoint.MARKERS_DURABLE, last, self._wal.newest_slot),
        ):
            if slot < following:
                self._wal.durable(slot).add_done_callback(partial(self._hit, point))

    def _hit(self, point: CrashPoint, durable: asyncio.Future[None]) -> None:
        if not durable.cancelled() and durable.exception() is None:
            self._crash_points.hit(point)


def _log_unwritten(enlisted: EnlistedPartition, error: PartitionError) -> None:
    logger.info(
        "a transaction's marker could not be written yet",
        extra={"partition": f"{enlisted}", "why": str(error)},
    )


def ended_transaction(markers: Markers) -> EndedTransaction:
    """The end of a decided transaction, in the form that its partitions get."""
    return EndedTransaction(
        markers.producer_id,
        markers.producer_epoch,
        markers.commit,
        markers.coordinator_epoch,
        markers.ordinal,
        markers.transaction_version,
    )
