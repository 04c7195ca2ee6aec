"""A transactional producer (KIP-98, KIP-360, KIP-447, KIP-890), one transaction at a time.

    producer = TransactionalProducer(client, clock, entropy, "transfers")
    await producer.init_transactions()
    producer.begin()
    await producer.send("accounts", 0, records)
    await producer.send_offsets("transfers", {Place("orders", 3): 17}, membership)
    await producer.commit()

What an error means:

- `MustAbort`: something of this transaction failed. Nothing of it can be committed; call `abort`.
- `ProducerFenced`: another instance has the transactional id. Nothing can be done but to stop.
- `RequestFailed` or `RequestRefused` by `commit` or `abort`: there was no answer in time. The
  decision may have been taken: only the same call may be made again (KAFKA-17754), or
  `init_transactions` by a new producer, which waits for the outcome.

Both versions of the protocol are spoken. In version 1 partitions are enlisted by requests of their
own, and an epoch lasts until it is changed on purpose. In version 2 the brokers enlist a partition
with its first batch, and each transaction has an epoch of its own.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tidelog.client.errors import Outcome, RequestFailed, RequestRefused
from tidelog.client.groups import Place
from tidelog.client.membership import Membership
from tidelog.client.operations import ProducerIdentity, init_producer_id
from tidelog.client.patience import Patience, RetrySettings
from tidelog.client.pool import Client, CoordinatorKind
from tidelog.clock import Clock
from tidelog.entropy import Entropy
from tidelog.errors import Refused, TidelogError
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.schemas.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tidelog.records.batch import SEQUENCE_MAX
from tidelog.records.compression import Compression
from tidelog.records.records import NewRecord, encode_batch

T = TypeVar("T")
R = TypeVar("R", bound=Response)

ACKS_ALL = -1
NO_OFFSET = -1
FEATURE = "transaction.version"
"""The cluster's feature whose level says which version of the protocol is on."""


class TransactionVersion(enum.IntEnum):
    """How a producer and its brokers speak of transactions."""

    V1 = 1
    """Partitions are enlisted by AddPartitionsToTxn."""
    V2 = 2
    """Partitions are enlisted by Produce; each transaction has an epoch of its own (KIP-890)."""


_PRODUCE_VERSION_MAX = {TransactionVersion.V1: 11, TransactionVersion.V2: 13}
_OFFSETS_VERSION_MAX = {TransactionVersion.V1: 4, TransactionVersion.V2: 5}
_END_VERSION_MAX = {TransactionVersion.V1: 4, TransactionVersion.V2: 5}
_ENLIST_VERSION_MAX = 3
"""Later versions of AddPartitionsToTxn are for brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Kafka's producer settings of the same names, with its defaults."""

    transaction_timeout_ms: int = 60_000
    """After which the coordinator aborts a transaction that was not ended."""
    delivery_timeout_ms: int = 120_000
    """How long a batch is repeated."""
    api_timeout_ms: int = 60_000
    """How long every other request is repeated (Kafka's max.block.ms)."""
    retries: RetrySettings = field(default_factory=lambda: RetrySettings(backoff_ms_min=20))
    version: TransactionVersion | None = None
    """None: what the cluster says."""


class MustAbort(Refused):
    """The transaction cannot be committed; nothing of it will be visible. `cause` says why."""

    def __init__(self, what: str, cause: TidelogError | None) -> None:
        why = f": {cause}" if cause is not None else ""
        super().__init__(f"{what}{why}; abort the transaction and begin it again")
        self.cause = cause


class ProducerFenced(Refused):
    """Another instance of the transactional id has taken over, or the transaction has timed out.
    `outcome`: whether the open transaction may have been committed. If not, it never will be."""

    def __init__(self, transactional_id: str, why: TidelogError | None, outcome: Outcome) -> None:
        cause = f" ({why})" if why is not None else ""
        super().__init__(
            f"producer {transactional_id} was fenced by another instance, or its transaction has"
            f" timed out{cause}; of its commit {outcome.value}; start a new producer"
        )
        self.outcome = outcome


class WrongCall(Refused):
    """The producer is not in the state for this call; nothing was sent."""


class _State(enum.Enum):
    NEW = "init_transactions was not called"
    READY = "no transaction was begun"
    OPEN = "a transaction is open"
    FAILED = "the transaction must be aborted"
    COMMITTING = "the outcome of a commit is not known: commit again"
    ABORTING = "the outcome of an abort is not known: abort again"
    FENCED = "the producer was fenced"


_FENCED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TXN_STATE,
    }
)
"""After which this producer can do nothing more, as a coordinator says so. A partition leader's
INVALID_PRODUCER_EPOCH and INVALID_TXN_STATE leave the last word to the coordinator."""
_FENCED_BY_LEADER = _FENCED - {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE}


class TransactionalProducer:
    """One instance of a transactional id.

    Sends to different partitions may run at the same time; those to one partition go one after the
    other, in the order of the calls. All else is for one caller at a time.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        entropy: Entropy,
        transactional_id: str,
        settings: TransactionSettings | None = None,
    ) -> None:
        if not transactional_id:
            raise ValueError("a transactional producer needs a transactional id")
        self.transactional_id = transactional_id
        self.settings = settings if settings is not None else TransactionSettings()
        self._client = client
        self._clock = clock
        self._entropy = entropy
        self._state = _State.NEW
        self._failure: TidelogError | None = None
        self._version = TransactionVersion.V1
        self._identity = ProducerIdentity(-1, -1)
        self._sequences: dict[Place, int] = {}
        self._is_epoch_spent = False
        """A batch was given up: the next sequence of its partition is not known."""
        self._enlisted: set[Place] = set()
        self._enlisting = asyncio.Lock()
        self._groups: set[str] = set()
        self._has_begun = False
        """Whether the coordinator may know of the transaction."""
        self._is_commit_asked = False
        """Whether a commit may have been decided."""
        self._in_turn: dict[Place, asyncio.Lock] = {}
        self._sends = 0
        self._settled = asyncio.Event()
        self._settled.set()

    @property
    def identity(self) -> ProducerIdentity:
        """The producer id and the epoch of the present transaction."""
        return self._identity

    @property
    def version(self) -> TransactionVersion:
        """The version of the protocol, known from `init_transactions` on."""
        return self._version

    @property
    def is_fenced(self) -> bool:
        """Whether this instance can do nothing more."""
        return self._state is _State.FENCED

    @property
    def must_abort(self) -> bool:
        """Whether the open transaction has failed."""
        return self._state is _State.FAILED

    # --- the calls ---

    async def init_transactions(self) -> ProducerIdentity:
        """Take over the transactional id: fences earlier instances, and waits until what they have
        left open is decided.

        Raises:
            RequestRefused: such as INVALID_TRANSACTION_TIMEOUT.
            RequestFailed: nobody answered in time; may be called again.
        """
        self._expect(_State.NEW)
        patience = self._patience(self.settings.api_timeout_ms)

        async def ask() -> ProducerIdentity:
            self._version = await self._negotiate()
            return await self._init_producer_id(None)

        self._take(await self._repeat(ask, patience))
        self._state = _State.READY
        return self._identity

    def begin(self) -> None:
        """Begin a transaction. The brokers learn of it with what is sent first."""
        self._expect(_State.READY)
        self._state = _State.OPEN

    async def send(
        self,
        topic: str,
        partition: int,
        records: Sequence[NewRecord],
        compression: Compression = Compression.NONE,
    ) -> int:
        """Append a batch; the offset of its first record, -1 if an earlier attempt's is not known.

        Raises:
            MustAbort: it may or may not have been appended, and will never be visible.
            ProducerFenced: likewise.
        """
        self._expect(_State.OPEN, _State.FAILED)
        place = Place(topic, partition)
        self._sends += 1
        self._settled.clear()
        try:
            async with self._in_turn.setdefault(place, asyncio.Lock()):
                self._refuse_if_failed()
                return await self._deliver(place, records, compression)
        except asyncio.CancelledError:
            self._fail(None, spends_epoch=True)
            raise
        finally:
            self._sends -= 1
            if not self._sends:
                self._settled.set()

    async def send_offsets(
        self, group_id: str, offsets: Mapping[Place, int], membership: Membership | None = None
    ) -> None:
        """Commit the offsets of records to be read next as part of the transaction. `membership` is
        that under which the consumer has read what comes before them: then they count only if it is
        still the group's present one (KIP-447). Without one nothing keeps others from reading it.

        Raises:
            MustAbort: also where others read those partitions by now.
            ProducerFenced: another instance has taken over.
        """
        self._expect(_State.OPEN, _State.FAILED)
        self._refuse_if_failed()
        self._has_begun = True
        patience = self._patience(self.settings.api_timeout_ms)
        if self._version is TransactionVersion.V1 and group_id not in self._groups:
            await self._within(lambda: self._enlist_group(group_id), patience, _FENCED)
            self._groups.add(group_id)
        request = self._offsets_request(group_id, offsets, membership)
        await self._within(lambda: self._commit_offsets(group_id, request), patience, _FENCED)

    async def commit(self) -> None:
        """Commit: waits for all sends, and returns when the decision is durable.

        Raises:
            MustAbort: something has failed; nothing was committed.
            ProducerFenced: nothing was committed, unless an earlier call's outcome is not known.
            RequestFailed, RequestRefused: the outcome is not known; call it again, nothing else.
        """
        self._expect(_State.OPEN, _State.FAILED, _State.COMMITTING)
        await self._settled.wait()
        self._refuse_if_failed()
        self._state = _State.COMMITTING
        if self._has_begun:
            await self._end(committed=True)
        self._finish()

    async def abort(self) -> None:
        """Abort: waits for all sends; nothing of the transaction will ever be visible.

        Raises:
            ProducerFenced: it was aborted, or will be, by whoever has taken over.
            RequestFailed, RequestRefused: the outcome is not known yet; call it again.
        """
        self._expect(_State.OPEN, _State.FAILED, _State.ABORTING)
        await self._settled.wait()
        if self._state is _State.FENCED:
            raise self._fenced()
        self._state = _State.ABORTING
        if self._has_begun:
            await self._end(committed=False)
            self._has_begun = False
        if self._is_epoch_spent:
            await self._bump()
        self._finish()

    # --- batches ---

    async def _deliver(
        self, place: Place, records: Sequence[NewRecord], compression: Compression
    ) -> int:
        """Enlist the partition if it needs to be, then send the batch until it is answered."""
        patience = self._patience(self.settings.delivery_timeout_ms)
        self._has_begun = True
        if self._version is TransactionVersion.V1:
            async with self._enlisting:
                if place not in self._enlisted:
                    await self._within(lambda: self._enlist(place), patience, _FENCED)
                    self._enlisted.add(place)
        sequence = self._sequences.get(place, 0)
        batch = encode_batch(
            records,
            compression=compression,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        offset = await self._within(
            lambda: self._produce(place, batch), patience, _FENCED_BY_LEADER, spends_epoch=True
        )
        self._sequences[place] = (sequence + len(records)) % (SEQUENCE_MAX + 1)
        return offset

    async def _enlist(self, place: Place) -> None:
        producer_id, epoch = self._identity
        topic = AddPartitionsToTxnTopic(name=place.topic, partitions=[place.partition])
        response = await self._ask_coordinator(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=[topic],
            ),
            _ENLIST_VERSION_MAX,
        )
        for each in response.results_by_topic_v3_and_below:
            for result in each.results_by_partition:
                self._check(f"enlisting {place}", result.partition_error_code)

    async def _produce(self, place: Place, batch: bytearray) -> int:
        topic = await self._client.topic(place.topic)
        data = PartitionProduceData(index=place.partition, records=batch)
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=ACKS_ALL,
            timeout_ms=self._client.settings.request_timeout_ms,
            topic_data=[
                TopicProduceData(name=place.topic, topic_id=topic.topic_id, partition_data=[data])
            ],
        )
        response: ProduceResponse = await self._client.request_to_leader(
            *place, request, version_max=_PRODUCE_VERSION_MAX[self._version]
        )
        for result in (p for t in response.responses for p in t.partition_responses):
            code = result.error_code
            if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                return NO_OFFSET
            if code != ErrorCode.NONE and code != ErrorCode.CONCURRENT_TRANSACTIONS:
                # Whoever leads the partition now, it may be another one.
                self._client.forget(place.topic)
            self._check(f"produce to {place}", code, result.error_message)
            return result.base_offset
        raise RequestRefused(f"produce to {place}", ErrorCode.UNKNOWN_SERVER_ERROR)

    # --- offsets ---

    async def _enlist_group(self, group_id: str) -> None:
        producer_id, epoch = self._identity
        response = await self._ask_coordinator(
            AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                group_id=group_id,
            )
        )
        self._check(f"enlisting the offsets of group {group_id}", response.error_code)

    def _offsets_request(
        self, group_id: str, offsets: Mapping[Place, int], membership: Membership | None
    ) -> TxnOffsetCommitRequest:
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for place, offset in sorted(offsets.items()):
            topics.setdefault(place.topic, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=place.partition, committed_offset=offset, committed_metadata=""
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group_id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            topics=[
                TxnOffsetCommitRequestTopic(name=name, partitions=partitions)
                for name, partitions in topics.items()
            ],
        )
        if membership is not None:
            request.generation_id = membership.generation
            request.member_id = membership.member_id
            request.group_instance_id = membership.instance_id
        return request

    async def _commit_offsets(self, group_id: str, request: TxnOffsetCommitRequest) -> None:
        response = await self._client.request_to_coordinator(
            CoordinatorKind.GROUP,
            group_id,
            request,
            version_max=_OFFSETS_VERSION_MAX[self._version],
        )
        for topic in response.topics:
            for partition in topic.partitions:
                subject = f"offset of group {group_id} in {topic.name}-{partition.partition_index}"
                self._check(subject, partition.error_code)

    # --- ends ---

    async def _end(self, *, committed: bool) -> None:
        producer_id, epoch = self._identity
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=committed,
        )

        async def ask() -> None:
            asked_before = self._is_commit_asked
            self._is_commit_asked = committed
            response = await self._ask_coordinator(request, _END_VERSION_MAX[self._version])
            if response.error_code in _FENCED:
                # The answer is about this request; what became of earlier ones is not known.
                self._is_commit_asked = asked_before
            what = "commit" if committed else "abort"
            self._check(f"{what} of {self.transactional_id}", response.error_code)
            if response.producer_id >= 0:
                self._take(ProducerIdentity(response.producer_id, response.producer_epoch))

        patience = self._patience(self.settings.api_timeout_ms)
        try:
            await self._repeat(ask, patience)
        except RequestRefused as refusal:
            if refusal.code in _FENCED:
                raise self._fenced(refusal) from refusal
            if committed and refusal.code == ErrorCode.TRANSACTION_ABORTABLE:
                self._fail(refusal)
                raise MustAbort(f"commit of {self.transactional_id}", refusal) from refusal
            raise

    async def _bump(self) -> None:
        """Begin at sequence 0 again, under the next epoch (KIP-360)."""
        patience = self._patience(self.settings.api_timeout_ms)
        try:
            self._take(await self._repeat(lambda: self._init_producer_id(self._identity), patience))
        except RequestRefused as refusal:
            if refusal.code in _FENCED:
                raise self._fenced(refusal) from refusal
            raise

    def _take(self, identity: ProducerIdentity) -> None:
        """Go on under this identity; one that is new begins with sequence 0 everywhere."""
        if identity != self._identity:
            self._identity = identity
            self._sequences.clear()
            self._is_epoch_spent = False

    def _finish(self) -> None:
        self._state = _State.READY
        self._failure = None
        self._has_begun = self._is_commit_asked = False
        self._enlisted.clear()
        self._groups.clear()

    # --- requests ---

    async def _negotiate(self) -> TransactionVersion:
        """The version that is set, or the one that is on in the cluster."""
        if self.settings.version is not None:
            return self.settings.version
        connection = await self._client.any_connection()
        for feature in connection.api_versions.finalized_features:
            if feature.name == FEATURE and feature.max_version_level >= TransactionVersion.V2:
                return TransactionVersion.V2
        return TransactionVersion.V1

    async def _init_producer_id(self, current: ProducerIdentity | None) -> ProducerIdentity:
        return await init_producer_id(
            self._client,
            self.transactional_id,
            transaction_timeout_ms=self.settings.transaction_timeout_ms,
            current=current,
        )

    async def _ask_coordinator(self, request: Request[R], version_max: int | None = None) -> R:
        return await self._client.request_to_coordinator(
            CoordinatorKind.TRANSACTION, self.transactional_id, request, version_max=version_max
        )

    async def _repeat(self, ask: Callable[[], Awaitable[T]], patience: Patience) -> T:
        """Ask until there is an answer that repeating would not change."""
        while True:
            try:
                return await ask()
            except RequestFailed as failure:
                await patience.wait(failure)
            except RequestRefused as refusal:
                if not refusal.retriable:
                    raise
                await patience.wait(refusal)

    async def _within(
        self,
        ask: Callable[[], Awaitable[T]],
        patience: Patience,
        fenced: frozenset[ErrorCode],
        *,
        spends_epoch: bool = False,
    ) -> T:
        """Ask as part of the open transaction, which has failed if there is no good answer."""
        try:
            return await self._repeat(ask, patience)
        except RequestRefused as refusal:
            if refusal.code in fenced:
                raise self._fenced(refusal) from refusal
            self._fail(refusal, spends_epoch)
            raise MustAbort(f"transaction of {self.transactional_id}", refusal) from refusal
        except RequestFailed as failure:
            self._fail(failure, spends_epoch)
            raise MustAbort(f"transaction of {self.transactional_id}", failure) from failure

    # --- states ---

    def _expect(self, *states: _State) -> None:
        if self._state is _State.FENCED:
            raise self._fenced()
        if self._state not in states:
            raise WrongCall(f"producer {self.transactional_id}: {self._state.value}")

    def _refuse_if_failed(self) -> None:
        if self._state is _State.FENCED:
            raise self._fenced()
        if self._state is _State.FAILED:
            raise MustAbort(f"transaction of {self.transactional_id}", self._failure)

    def _fail(self, why: TidelogError | None, spends_epoch: bool = False) -> None:
        self._is_epoch_spent = self._is_epoch_spent or spends_epoch
        if self._state in (_State.OPEN, _State.COMMITTING):
            self._state = _State.FAILED
            self._failure = why

    def _fenced(self, cause: RequestRefused | None = None) -> ProducerFenced:
        if cause is not None:
            self._state = _State.FENCED
            self._failure = cause
        outcome = Outcome.UNKNOWN if self._is_commit_asked else Outcome.NOT_APPLIED
        return ProducerFenced(self.transactional_id, self._failure, outcome)

    def _check(self, subject: str, code: int, message: str | None = None) -> None:
        if code != ErrorCode.NONE:
            raise RequestRefused(subject, code, message)

    def _patience(self, timeout_ms: int) -> Patience:
        return Patience(self._clock, self._entropy, self.settings.retries, timeout_ms)
