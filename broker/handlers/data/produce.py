"""Produce (0): append record batches, acknowledged when they are durable.

The transaction's coordinator must admit the first batch of a transaction in a partition. On the
coordinator's own broker the answer comes at once, and the order of a connection's requests is the
log's order. Otherwise the broker waits for the answer, and a later request may come first. Its
batches are then out of sequence, and the producer sends them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from dataclasses import replace

from tidelog.broker.append.appender import (
    AppendFailed,
    AppendItem,
    AppendResult,
    ProducedBatch,
    Submission,
)
from tidelog.broker.coordinate.transaction_admission import (
    Admission,
    Wanted,
    transactional_identity,
)
from tidelog.broker.fairness.deadlines import Deadline
from tidelog.broker.handlers.request_context import CloseConnection, RequestContext
from tidelog.broker.handlers.services import DataServices
from tidelog.broker.partitions.partitions import Partition, PartitionError
from tidelog.broker.telemetry.zones import Crossing, crossing
from tidelog.broker.topics.topic_creation import INTERNAL_TOPICS
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo
from tidelog.coordinator.transaction.commands import Identity
from tidelog.coordinator.transaction.transaction import OWN_EPOCHS_FROM
from tidelog.coordinator.transaction.wire_errors import error_for
from tidelog.errors import TidelogError
from tidelog.identifiers import Slot
from tidelog.protocol.api import ApiKey
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceLeaderIdAndEpoch,
    ProduceNodeEndpoint,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tidelog.wal.write.writer import WalLost

API_NAME = "Produce"
TOPIC_IDS_FROM = 13
ADDS_PARTITIONS_FROM = 12
"""Transactions of the second version: a batch enlists its partition (KIP-890, part 2)."""
ZSTD_FROM = 7
_ACKS = (-1, 0, 1)
_REFUSALS_BY_STATE = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
    }
)
"""Refusals that reveal the partition's state (`may_refuse_by_state`)."""
_POSSIBLY_SUPERSEDED = AppendFailed(
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    "another broker may lead the partition now; nothing was appended",
)


def produce(
    broker: DataServices, request: ProduceRequest, context: RequestContext
) -> Awaitable[ProduceResponse | None]:
    """Queue the batches at once, in the order of the connection's requests; the answer follows.

    With acks 0 there is no answer and no wait.
    """
    outcomes: list[list[AppendItem | AppendFailed]] = []
    items: list[AppendItem] = []
    refusal = _refusal(request)
    for topic in request.topic_data:
        of_topic: list[AppendItem | AppendFailed] = []
        for data in topic.partition_data:
            outcome = refusal or _item(broker, topic, data, context)
            of_topic.append(outcome)
            if isinstance(outcome, AppendItem):
                items.append(outcome)
        outcomes.append(of_topic)
    answering = _Answering(broker, request, outcomes, context)
    unadmitted = _unadmitted(request, items, context) if request.transactional_id else None
    if unadmitted is not None:
        wanted, of_wanted = unadmitted
        partitions = [item.partition for item in of_wanted]
        admissions = broker.admissions.admit_at_once(wanted, partitions)
        if admissions is None:
            answering.admit(_submitted_later(broker, answering, items, wanted, of_wanted, context))
            return answering.answer
        _admit(of_wanted, admissions, context)
    answering.submit(items)
    return answering.answer


def _unadmitted(
    request: ProduceRequest, items: list[AppendItem], context: RequestContext
) -> tuple[Wanted, list[AppendItem]] | None:
    """The batches that begin a transaction in their partitions, and that transaction.

    None if there are none. A request comes from one producer.
    """
    version = OWN_EPOCHS_FROM if context.api_version >= ADDS_PARTITIONS_FROM else 0
    whose: Identity | None = None
    unadmitted = []
    for item in items:
        identity = transactional_identity(item.records)
        if identity is None:
            continue
        item.transaction_version = version
        if item.partition.log.is_in_transaction(*identity):
            continue
        if whose not in (None, identity):
            why = "the request has transactional batches of several producers"
            item.result = AppendFailed(ErrorCode.INVALID_RECORD, why)
            continue
        whose = identity
        unadmitted.append(item)
    if whose is None:
        return None
    return Wanted(request.transactional_id or "", whose, version), unadmitted


def _admit(
    items: list[AppendItem],
    admissions: Mapping[Partition, Admission],
    context: RequestContext,
) -> None:
    for item in items:
        error, item.ordinal = admissions[item.partition]
        if error is not ErrorCode.NONE:
            code = error_for(ApiKey.PRODUCE, context.api_version, error)
            why = f"the transaction's coordinator answers {error.name}; nothing was appended"
            item.result = AppendFailed(code, why)


async def _submitted_later(
    broker: DataServices,
    answering: _Answering,
    items: list[AppendItem],
    wanted: Wanted,
    of_wanted: list[AppendItem],
    context: RequestContext,
) -> None:
    partitions = [item.partition for item in of_wanted]
    _admit(of_wanted, await broker.admissions.admit(wanted, partitions), context)
    answering.submit(items)


def _refusal(request: ProduceRequest) -> AppendFailed | None:
    """Why the whole request is refused; None if it is not."""
    if request.acks not in _ACKS:
        return AppendFailed(
            ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.acks}"
        )
    return None


def _item(
    broker: DataServices,
    topic: TopicProduceData,
    data: PartitionProduceData,
    context: RequestContext,
) -> AppendItem | AppendFailed:
    try:
        if context.api_version >= TOPIC_IDS_FROM:
            partition = broker.partitions.identified(topic.topic_id, data.index)
        else:
            partition = broker.partitions.named(topic.name, data.index)
    except PartitionError as error:
        return AppendFailed(error.code, str(error))
    if partition.topic_name in INTERNAL_TOPICS:
        # An internal partition holds a coordinator's state, which only the coordinator may write.
        return AppendFailed(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{partition.topic_name} is an internal topic; only brokers write to it",
        )
    limits = partition.limits
    if context.api_version < ZSTD_FROM:
        limits = replace(limits, zstd_allowed=False)
    return AppendItem(partition, data.records if data.records is not None else b"", limits)


class _Answering:
    """A request with an `answer` that is due when its batches are durable or refused, or at the
    timeout.

    It uses callbacks and shared timers: a task and a timer for each small request would cost more
    than its records.
    """

    __slots__ = (
        "_broker",
        "_connection",
        "_deadline",
        "_listener",
        "_outcomes",
        "_request",
        "_step",
        "_submission",
        "_zone",
        "answer",
    )

    def __init__(
        self,
        broker: DataServices,
        request: ProduceRequest,
        outcomes: list[list[AppendItem | AppendFailed]],
        context: RequestContext,
    ) -> None:
        self._broker = broker
        self._connection = context.connection_id
        self._zone = crossing(broker.rack, context.client_id)
        self._listener = context.listener
        self._request = request
        self._outcomes = outcomes
        self._step: asyncio.Future[None] | None = None
        self._submission: Submission | None = None
        self._deadline: Deadline | None = None
        self.answer: asyncio.Future[ProduceResponse | None] = (
            broker.appender.deadlines.loop.create_future()
        )

    def admit(self, admission: Coroutine[None, None, None]) -> None:
        """Wait for the admission, which submits the batches."""
        self._wait_for(admission)

    def _wait_for(self, step: Coroutine[None, None, None]) -> None:
        self._begin_deadline()
        self._step = asyncio.ensure_future(step)
        self._step.add_done_callback(self._step_ended)
        # A cancelled answer cancels the step.
        self.answer.add_done_callback(lambda _: self._end_step())

    def submit(self, items: list[AppendItem]) -> None:
        """Append the batches that were not refused yet.

        The answer is due when they are durable; with acks 0, when they are appended.
        """
        left = [item for item in items if item.result is None]
        if left:
            self._begin_deadline()
            self._submission = self._broker.appender.submit(self._connection, left, self._appended)
        else:
            self._answer([])

    def _begin_deadline(self) -> None:
        # With acks 0 no client retries, so the request waits as long as necessary.
        if self._deadline is None and self._request.acks != 0:
            seconds = max(self._request.timeout_ms, 1) / 1000
            self._deadline = self._broker.appender.deadlines.add(seconds, self._time_out)

    def _step_ended(self, step: asyncio.Future[None]) -> None:
        error = None if step.cancelled() else step.exception()
        if isinstance(error, TidelogError):
            self._fail(error)
        elif error is not None and not self.answer.done():
            self._end(error)

    def _appended(self, lost: WalLost | None) -> None:
        if lost is not None:
            self._fail(lost)
            return
        if self.answer.done():
            return
        assert self._submission is not None
        items = self._submission.items
        self._answer([item.result.slot for item in items if isinstance(item.result, ProducedBatch)])

    def _answer(self, slots: Sequence[Slot]) -> None:
        """Answer as soon as the slots are durable, and all refusals certain."""
        slot = max(slots, default=None)
        if len(slots) < sum(map(len, self._outcomes)):
            refused = [
                (each, each.result)
                for of_topic in self._outcomes
                for each in of_topic
                if isinstance(each, AppendItem) and _is_refused_by_state(each)
            ]
            if refused:
                for item, _ in refused:
                    item.result = _POSSIBLY_SUPERSEDED
                self._wait_for(self._refuse_by_state(refused, slot))
                return
        self._answer_behind(slot)

    async def _refuse_by_state(
        self, refused: Sequence[tuple[AppendItem, AppendResult | None]], slot: Slot | None
    ) -> None:
        """Answer behind a slot. If another broker may lead, the client retries these batches."""
        if await self._broker.may_refuse_by_state():
            for item, refusal in refused:
                item.result = refusal
        self._answer_behind(slot)

    def _answer_behind(self, slot: Slot | None) -> None:
        """Answer as soon as a slot is durable. None: now."""
        if slot is None or self._request.acks == 0:
            self._finish(None)
        else:
            # Slots become durable in order: the newest one suffices.
            self._broker.wal.tell(slot, self._durable)

    def _durable(self, lost: WalLost | None) -> None:
        if lost is None:
            self._finish(None)
        else:
            self._fail(lost)

    def _fail(self, error: TidelogError) -> None:
        self._finish(AppendFailed(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error)))

    def _time_out(self) -> None:
        """Answer with REQUEST_TIMED_OUT.

        Without it, a stalled store would let retries of the same batches fill the memory.
        """
        self._end_step()
        is_nothing = self._submission is None or self._submission.withdraw()
        known = "nothing was appended" if is_nothing else "the append may still succeed"
        why = f"not durable within {self._request.timeout_ms} ms; {known}"
        self._finish(AppendFailed(ErrorCode.REQUEST_TIMED_OUT, why))

    def _end_step(self) -> None:
        if self._step is not None:
            self._step.cancel()

    def _finish(self, failure: AppendFailed | None) -> None:
        if self.answer.done():
            return
        try:
            response = _response(
                self._broker, self._request, self._outcomes, failure, self._listener, self._zone
            )
        except Exception as error:  # noqa: BLE001 - the answer's awaiter handles it
            self._end(error)
            return
        self._end_deadline()
        self.answer.set_result(response)

    def _end(self, error: BaseException) -> None:
        self._end_deadline()
        self.answer.set_exception(error)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            # The deadline refers to this object and so to the request: break the reference cycle.
            self._deadline = None


def _response(
    broker: DataServices,
    request: ProduceRequest,
    outcomes: list[list[AppendItem | AppendFailed]],
    failure: AppendFailed | None,
    listener: str,
    zone: Crossing,
) -> ProduceResponse | None:
    """The results of all batches; `failure` replaces the missing ones.

    `listener`: the client's, by which it is told the addresses of leaders. `zone`: the client's.
    """
    responses = []
    metrics = broker.metrics
    of_zone = metrics.produced_zone_bytes.of(zone)
    leaders: dict[int, BrokerInfo] = {}
    for topic, of_topic in zip(request.topic_data, outcomes, strict=True):
        answered = []
        for data, outcome in zip(topic.partition_data, of_topic, strict=True):
            result = _result(outcome, failure)
            if isinstance(result, ProducedBatch):
                size_bytes = len(data.records or b"")
                metrics.produced_records += result.records
                metrics.produced_bytes += size_bytes
                of_zone.value += size_bytes
                answered.append(
                    PartitionProduceResponse(
                        index=data.index,
                        error_code=ErrorCode.NONE,
                        base_offset=result.base_offset,
                        log_append_time_ms=result.log_append_time_ms,
                        log_start_offset=result.log_start,
                    )
                )
                continue
            metrics.api(API_NAME).errors.of(result.code.name).value += 1
            if request.acks == 0:
                # A closed connection is the only way to report a refusal.
                raise CloseConnection("acks_0_failed", f"{result.code.name}: {result.message}")
            answer = _refused(data.index, result)
            if result.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                found = broker.partitions.leader_elsewhere(topic.name or topic.topic_id, data.index)
                if found is not None:
                    leader, epoch = found
                    leaders[leader.broker_id] = leader
                    answer.current_leader = ProduceLeaderIdAndEpoch(
                        leader_id=leader.broker_id, leader_epoch=epoch
                    )
            answered.append(answer)
        responses.append(
            TopicProduceResponse(
                name=topic.name, topic_id=topic.topic_id, partition_responses=answered
            )
        )
    if request.acks == 0:
        return None
    return ProduceResponse(
        responses=responses,
        node_endpoints=[
            ProduceNodeEndpoint(
                node_id=leader_id, host=endpoint.host, port=endpoint.port, rack=leader.rack
            )
            for leader_id, leader in leaders.items()
            if (endpoint := leader.endpoint(listener)) is not None
        ],
    )


def _result(
    outcome: AppendItem | AppendFailed, failure: AppendFailed | None
) -> ProducedBatch | AppendFailed:
    if isinstance(outcome, AppendFailed):
        return outcome
    if isinstance(outcome.result, AppendFailed):
        return outcome.result
    if failure is not None or outcome.result is None:
        return failure or AppendFailed(ErrorCode.UNKNOWN_SERVER_ERROR, "the append has no result")
    return outcome.result


def _is_refused_by_state(item: AppendItem) -> bool:
    return isinstance(item.result, AppendFailed) and item.result.code in _REFUSALS_BY_STATE


def _refused(index: int, failure: AppendFailed) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index,
        error_code=failure.code,
        base_offset=-1,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=number, batch_index_error_message=message)
            for number, message in failure.record_errors
        ],
        error_message=failure.message,
    )
