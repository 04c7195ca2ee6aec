"""A transaction of a producer, and how it ends.

The broker decides a transaction once. So a commit without an answer is repeated with the same
request until it gets one, and never followed by an abort.

If the process dies before the commit arrives, the broker aborts the transaction. It does so when
the next producer of the transactional id starts, or after `transaction.timeout.ms`. If the process
dies after the commit has arrived, the transaction is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Final

import confluent_kafka

from tidelog.errors import Refused
from tidelog.sdk.connecting import CLOCK, repeated, serve_callbacks
from tidelog.sdk.errors import (
    AbortableError,
    CommitOutcomeUnknown,
    FatalError,
    KafkaRequestError,
    RetriableError,
    translated,
)

if TYPE_CHECKING:
    from tidelog.sdk.consumer import Consumer

CLOSED: Final = "the producer is closed; make a new one"
PAUSE_SECONDS = 0.05
DELIVERY_SECONDS_MAX = 1.0
"""The longest that an abort waits for messages on their way.

The coordinator refuses librdkafka's AddPartitionsToTxn while it ends the transaction before, and
librdkafka repeats it. An abort drops the repetition. Then the coordinator knows nothing of the
transaction, and refuses to abort it, here as with Kafka. librdkafka takes that as fatal (its
#4849). A message that is delivered shows that its partition was added. The limit is for messages
that cannot be delivered.
"""


class _State(Enum):
    NEW = "not initialised"
    STARTING = "the start is not answered"
    READY = "ready"
    OPEN = "open"
    COMMITTING = "the commit is not answered"
    ABORTING = "the abort is not answered"
    DEAD = "dead"


class TransactionEnds:
    """Begins and ends one producer's transactions."""

    def __init__(
        self, client: confluent_kafka.Producer, transactional_id: str, block_ms_max: int
    ) -> None:
        self._client = client
        self._name = f"transactional.id={transactional_id}"
        self._block_ms_max = block_ms_max
        self._state = _State.NEW
        self._death: FatalError | None = None
        self._refusal: AbortableError | None = None
        """Of a commit whose abort has not ended: no call has told it."""
        self._gives_up = False
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether messages belong to a transaction now."""
        return self._state is _State.OPEN

    @property
    def is_settled(self) -> bool:
        """Whether no transaction is open, none is in doubt, and the producer is not fenced."""
        return self._state in (_State.NEW, _State.READY)

    def initialise(self) -> None:
        """Once: take the transactional id over."""
        self.check_alive()
        if self._state in (_State.NEW, _State.STARTING):
            self._state = _State.STARTING
            try:
                self._ask(self._client.init_transactions, "start", self._block_ms_max)
            except KafkaRequestError as failure:
                if failure.name != "_STATE":
                    raise
                # The client has started already: Ctrl-C took its answer away.
            self._state = _State.READY

    def begin(self) -> None:
        """Open a transaction, after the end of the one before."""
        if self._is_closed:
            raise Refused(CLOSED)
        if self._state is _State.OPEN:
            raise Refused(f"{self._name}: a transaction is open; a producer has one at a time")
        self.initialise()
        self.settle()
        # If this is interrupted, the next transaction aborts the one that may have begun.
        self._state = _State.ABORTING
        try:
            self._client.begin_transaction()
        except confluent_kafka.KafkaException as error:
            raise self._failure(error, "begin") from error
        self._state = _State.OPEN

    def settle(self) -> None:
        """Repeat an end that is not answered, until it is.

        Raises AbortableError if it is the abort of a refused commit.
        """
        self.check_alive()
        try:
            if self._state is _State.COMMITTING:
                self.commit(None)
            elif self._state is _State.ABORTING:
                self.abort()
        except KafkaRequestError as failure:
            if failure.name != "_STATE":
                raise
            # The client has ended the transaction already: Ctrl-C took its answer away.
            self._state = _State.READY
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    def commit(self, timeout: float | None) -> None:
        """Commit, or abort where it cannot be committed. Raises CommitOutcomeUnknown."""
        self._state = _State.COMMITTING
        block_ms = None if timeout is None else int(timeout * 1000)
        try:
            self._ask(self._client.commit_transaction, "commit", block_ms)
        except RetriableError as failure:
            within = "" if timeout is None else " within commit_timeout"
            raise CommitOutcomeUnknown(
                f"{self._name}: the commit is not answered{within}. It may have succeeded: repeat"
                " it with resume_commit(), never send the messages again",
                failure.name,
            ) from failure
        except AbortableError as refusal:
            self._refusal = refusal
            self.abort()
            self._refusal = None
            raise
        self._state = _State.READY

    def abort(self) -> None:
        """Abort. RetriableError after `max.block.ms`: the next transaction repeats it first."""
        self._state = _State.ABORTING
        self._wait_for_deliveries()
        self._ask(self._client.abort_transaction, "abort", self._block_ms_max)
        self._state = _State.READY

    def close(self) -> None:
        """Abort an open transaction. None begins behind it."""
        self._is_closed = True
        if self._state is _State.OPEN:
            self.abort()

    def send_offsets(
        self, offsets: Sequence[confluent_kafka.TopicPartition], group: object
    ) -> None:
        """Let the offsets be committed with the transaction."""

        def send(seconds: float) -> None:
            self._client.send_offsets_to_transaction(list(offsets), group, seconds)

        self._ask(send, "offsets", self._block_ms_max)

    def serve(self, seconds: float) -> None:
        """Serve delivery reports. The next call tells of a fatal error."""
        try:
            serve_callbacks(self._client, seconds)
        except confluent_kafka.KafkaException as error:
            self._failure(error, "producer")

    def give_up(self) -> None:
        """From another thread: let a call that is repeated fail as if its time was over."""
        self._gives_up = True

    def died(self, failure: FatalError) -> FatalError:
        """The first fatal error; the later ones are its consequences."""
        if self._death is None:
            self._death = failure
            self._state = _State.DEAD
        return self._death

    def _wait_for_deliveries(self) -> None:
        deadline = CLOCK.monotonic() + min(DELIVERY_SECONDS_MAX, self._block_ms_max / 1000)
        while len(self._client) > 0 and CLOCK.monotonic() < deadline and not self._gives_up:
            self.serve(PAUSE_SECONDS)

    def _ask(self, call: Callable[[float], object], what: str, block_ms_max: int | None) -> None:
        """Repeat a call that is safe to repeat, and serve delivery reports meanwhile."""
        named = f"{self._name}: {what}"

        def between() -> None:
            if self._gives_up:
                raise RetriableError(f"{named}: not answered; the producer is closed")
            self.serve(PAUSE_SECONDS)

        try:
            repeated(call, named, block_ms_max, between)
        except FatalError as failure:
            raise self.died(failure) from failure.__cause__

    def _failure(self, error: confluent_kafka.KafkaException, what: str) -> KafkaRequestError:
        failure = translated(error, f"{self._name}: {what}")
        return self.died(failure) if isinstance(failure, FatalError) else failure

    def check_committable(self, error: BaseException | None) -> None:
        """For a block that ends with `error`, and whose transaction has ended before it.

        Raises the error after which the producer is of no use; AbortableError without an `error`.
        """
        # Fenced within the block, which perhaps suppressed the error: nothing is committed.
        self.check_alive()
        if error is None:
            raise AbortableError(
                f"{self._name}: the transaction was aborted before its block ended, as the"
                " producer's close() does; none of it is visible"
            )

    def check_alive(self) -> None:
        """Raises the error after which the producer is of no use."""
        if self._death is not None:
            raise self._death


class Transaction:
    """`with producer.transaction():` commits, and aborts on an exception."""

    def __init__(
        self,
        ends: TransactionEnds,
        commit_timeout: float | None,
        forget_failures: Callable[[], None],
    ) -> None:
        self._ends = ends
        self._commit_timeout = commit_timeout
        self._forget_failures = forget_failures

    def send_offsets(self, source: Consumer) -> None:
        """Commit the consumer's position in its group with this transaction.

        The position is behind the last message that the consumer has given out. Raises
        AbortableError if the partitions belong to another member by now.
        """
        if not self._ends.is_open:
            raise Refused("send_offsets: the transaction has ended")
        self._ends.send_offsets(*source.transaction_offsets())

    def __enter__(self) -> Transaction:
        self._ends.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._ends.is_open:
            self._ends.check_committable(error)
            return
        try:
            if error is None:
                self._ends.commit(self._commit_timeout)
                return
            self._abort(error)
        finally:
            self._forget_failures()

    def _abort(self, error: BaseException) -> None:
        """The error of the block goes on, unless the producer is fenced."""
        try:
            self._ends.abort()
        except KafkaRequestError as failure:
            note_failed_abort(failure, error)


def note_failed_abort(failure: KafkaRequestError, error: BaseException) -> None:
    """Note on the block's error that the abort failed. Raises a fatal failure."""
    if isinstance(failure, FatalError):
        raise failure from error
    error.add_note(f"the transaction is not aborted yet: {failure}")
