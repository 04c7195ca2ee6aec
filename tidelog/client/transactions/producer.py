"""A transactional producer (KIP-98, KIP-360, KIP-447, KIP-890), one transaction at a time.

    producer = TransactionalProducer(client, clock, entropy, "transfers")
    await producer.init_transactions()
    producer.begin()
    await producer.send("accounts", 0, records)
    await producer.send_offsets("transfers", {Place("orders", 3): 17}, membership)
    await producer.commit()

| Error | Meaning |
|---|---|
| `MustAbort` | part of this transaction failed; it cannot be committed: call `abort` |
| `ProducerFenced` | another instance has the transactional id: stop |
| `RequestFailed`, `RequestRefused` by `commit` or `abort` | the outcome is unknown |

After an unknown outcome only the same call may follow (KAFKA-17754), or `init_transactions` by a
new producer, which waits for the outcome.

The producer speaks both versions of the protocol. In version 1 separate requests enlist partitions,
and an epoch lasts until a request changes it. In version 2 brokers enlist a partition with its
first batch, and each transaction has an epoch of its own.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from tidelog.client.errors import RequestFailed, RequestOutcome, RequestRefused, check
from tidelog.client.groups.admin import Place
from tidelog.client.groups.membership_requests import GroupMembership
from tidelog.client.operations import ProducerIdentity
from tidelog.client.patience import Patience
from tidelog.client.pool import Client
from tidelog.client.transactions import requests as requests
from tidelog.client.transactions.calls import TransactionCalls
from tidelog.client.transactions.errors import MustAbort, ProducerFenced, WrongCall
from tidelog.client.transactions.settings import TransactionalProducerSettings, TransactionVersion
from tidelog.clock import Clock
from tidelog.entropy import Entropy
from tidelog.errors import TidelogError
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.batch import SEQUENCE_MAX
from tidelog.records.compression import Compression
from tidelog.records.records import NewRecord, encode_batch

T = TypeVar("T")


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
"""Codes after which the producer is fenced, if a coordinator sends them. After a partition leader's
INVALID_PRODUCER_EPOCH and INVALID_TXN_STATE the coordinator decides.
"""
_FENCED_BY_LEADER = _FENCED - {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE}


class TransactionalProducer:
    """One instance of a transactional id.

    Sends to different partitions may run at once. Sends to one partition run in call order. All
    other calls need a single caller at a time.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        entropy: Entropy,
        transactional_id: str,
        settings: TransactionalProducerSettings | None = None,
    ) -> None:
        if not transactional_id:
            raise ValueError("a transactional producer needs a transactional id")
        self.transactional_id = transactional_id
        self.settings = settings if settings is not None else TransactionalProducerSettings()
        self._calls = TransactionCalls(
            client, transactional_id, self.settings.transaction_timeout_ms
        )
        self._clock = clock
        self._entropy = entropy
        self._state = _State.NEW
        self._failure: TidelogError | None = None
        self._identity = ProducerIdentity(-1, -1)
        self._sequences: dict[Place, int] = {}
        self._is_epoch_spent = False
        """A batch was abandoned, so the next sequence of its partition is unknown."""
        self._enlisted: set[Place] = set()
        self._enlisting = asyncio.Lock()
        self._groups: set[str] = set()
        self._has_begun = False
        """True if the coordinator may know of the transaction."""
        self._is_commit_asked = False
        """True if the coordinator may have decided a commit."""
        self._in_turn: dict[Place, asyncio.Lock] = {}
        self._sends = 0
        self._settled = asyncio.Event()
        self._settled.set()

    @property
    def identity(self) -> ProducerIdentity:
        """The producer id, and the epoch of the current transaction."""
        return self._identity

    @property
    def version(self) -> TransactionVersion:
        """The version of the protocol, valid after `init_transactions`."""
        return self._calls.version

    @property
    def is_fenced(self) -> bool:
        return self._state is _State.FENCED

    @property
    def must_abort(self) -> bool:
        """True if the open transaction has failed."""
        return self._state is _State.FAILED

    # --- the calls ---

    async def init_transactions(self) -> ProducerIdentity:
        """Take over the transactional id.

        The coordinator fences earlier instances and decides their open transaction first.

        Raises:
            RequestRefused: such as INVALID_TRANSACTION_TIMEOUT.
            RequestFailed: no answer in time; a retry is safe.
        """
        self._expect(_State.NEW)
        patience = self._patience(self.settings.api_timeout_ms)

        async def ask() -> ProducerIdentity:
            calls, version = self._calls, self.settings.version
            calls.version = version if version is not None else await calls.newest_version()
            return await calls.init_producer_id(None)

        self._take(await self._repeat(ask, patience))
        self._state = _State.READY
        return self._identity

    def begin(self) -> None:
        """Begin a transaction. The brokers learn of it with the first send."""
        self._expect(_State.READY)
        self._state = _State.OPEN

    async def send(
        self,
        topic: str,
        partition: int,
        records: Sequence[NewRecord],
        compression: Compression = Compression.NONE,
    ) -> int:
        """Append a batch; returns the offset of its first record, or -1 if it is unknown.

        Raises:
            MustAbort: the batch may or may not have been appended, and will never be visible.
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

    async def adopt(self, topic: str, partition: int, staged_ids: Sequence[UUID]) -> int:
        """Let a partition adopt its batches of staged objects, in this order, within the
        transaction.

        Returns the number of added records; 0 if an attempt with a lost answer has added them.

        Raises:
            MustAbort: the batches may or may not be part of it, and will never be visible.
            ProducerFenced: likewise.
        """
        self._expect(_State.OPEN, _State.FAILED)
        self._refuse_if_failed()
        if self.version is not TransactionVersion.V2:
            raise WrongCall(f"producer {self.transactional_id}: adopts need version 2")
        self._has_begun = True
        place = Place(topic, partition)
        return await self._within(
            lambda: self._calls.adopt(self._identity, place, staged_ids),
            self._patience(self.settings.delivery_timeout_ms),
            _FENCED_BY_LEADER,
        )

    async def send_offsets(
        self,
        group_id: str,
        offsets: Mapping[Place, int],
        membership: GroupMembership | None = None,
        metadata: str = "",
    ) -> None:
        """Commit the offsets of the next records to read, as part of the transaction.

        `membership` is the one under which the consumer read the earlier records. The offsets count
        only if the group still has that generation (KIP-447). Without it, other members may read
        the same records.

        Raises:
            MustAbort: also if other members have taken over the partitions.
            ProducerFenced: another instance has taken over.
        """
        self._expect(_State.OPEN, _State.FAILED)
        self._refuse_if_failed()
        self._has_begun = True
        patience = self._patience(self.settings.api_timeout_ms)
        if self.version is TransactionVersion.V1 and group_id not in self._groups:
            await self._within(
                lambda: self._calls.enlist_group(self._identity, group_id), patience, _FENCED
            )
            self._groups.add(group_id)
        request = requests.commit_offsets(
            self.transactional_id, self._identity, group_id, offsets, membership, metadata
        )
        await self._within(lambda: self._calls.commit_offsets(request), patience, _FENCED)

    async def commit(self) -> None:
        """Wait for all sends, then commit; returns once the decision is durable.

        Raises:
            MustAbort: part of the transaction failed; nothing was committed.
            ProducerFenced: nothing was committed, unless an earlier call's outcome is unknown.
            RequestFailed, RequestRefused: the outcome is unknown; only `commit` may follow.
        """
        self._expect(_State.OPEN, _State.FAILED, _State.COMMITTING)
        await self._settled.wait()
        self._refuse_if_failed()
        self._state = _State.COMMITTING
        if self._has_begun:
            await self._end(committed=True)
        self._finish()

    async def abort(self) -> None:
        """Wait for all sends, then abort; the transaction will never be visible.

        Raises:
            ProducerFenced: the new instance has aborted it, or will.
            RequestFailed, RequestRefused: the outcome is unknown; call `abort` again.
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
        """Enlist the partition if needed, then retry the batch until the leader answers."""
        patience = self._patience(self.settings.delivery_timeout_ms)
        self._has_begun = True
        if self.version is TransactionVersion.V1:
            async with self._enlisting:
                if place not in self._enlisted:
                    await self._within(
                        lambda: self._calls.enlist(self._identity, place), patience, _FENCED
                    )
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
            lambda: self._calls.produce(place, batch),
            patience,
            _FENCED_BY_LEADER,
            spends_epoch=True,
        )
        self._sequences[place] = (sequence + len(records)) % (SEQUENCE_MAX + 1)
        return offset

    # --- ends ---

    async def _end(self, *, committed: bool) -> None:
        identity = self._identity

        async def ask() -> None:
            asked_before = self._is_commit_asked
            self._is_commit_asked = committed
            response = await self._calls.end(identity, committed=committed)
            if response.error_code in _FENCED:
                # The error concerns this request; the outcome of earlier ones is unknown.
                self._is_commit_asked = asked_before
            what = "commit" if committed else "abort"
            check(f"{what} of {self.transactional_id}", response.error_code)
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
        """Get the next epoch, and restart at sequence 0 (KIP-360)."""
        patience = self._patience(self.settings.api_timeout_ms)
        try:
            self._take(
                await self._repeat(lambda: self._calls.init_producer_id(self._identity), patience)
            )
        except RequestRefused as refusal:
            if refusal.code in _FENCED:
                raise self._fenced(refusal) from refusal
            raise

    def _take(self, identity: ProducerIdentity) -> None:
        """Use this identity; a new one restarts at sequence 0 in every partition."""
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

    async def _repeat(self, ask: Callable[[], Awaitable[T]], patience: Patience) -> T:
        """Retry until an answer comes that a retry would not change."""
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
        """Retry within the open transaction; the transaction fails with the request."""
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
        outcome = RequestOutcome.UNKNOWN if self._is_commit_asked else RequestOutcome.NOT_APPLIED
        return ProducerFenced(self.transactional_id, self._failure, outcome)

    def _patience(self, timeout_ms: int) -> Patience:
        return Patience(self._clock, self._entropy, self.settings.retries, timeout_ms)
