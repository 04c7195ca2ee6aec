"""Consume, transform, produce: exactly once, over restarts and rebalances.

Each batch is one transaction, in which the consumer's offsets are committed too. If the worker dies
before the commit, the broker aborts the transaction, and the next owner of the partitions reads the
batch again. If it dies after the commit, the offsets are behind the batch. A worker that has lost
its partitions cannot commit: the broker refuses its generation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TypeAlias

from tidelog.errors import InvalidConfiguration, Refused
from tidelog.sdk.connecting import STEP_SECONDS, logger
from tidelog.sdk.consumer import Consumer
from tidelog.sdk.errors import AbortableError, RetriableError
from tidelog.sdk.messages import Message, NewMessage
from tidelog.sdk.producer import Producer

Transform: TypeAlias = Callable[[Message], NewMessage | Iterable[NewMessage] | None]
"""Gives the messages to send for one message. It may be called again for the same message."""


def exactly_once(
    source: Consumer,
    sink: Producer,
    transform: Transform,
    *,
    batch_records_max: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Send what `transform` makes of the source's messages, each exactly once, until `stop()`.

    `source` is in a group, with `enable_auto_commit=False`. `sink` has a `transactional.id`, a
    different one for each worker. `stop` is asked between batches of up to `batch_records_max`
    messages, default `max.poll.records`. An aborted batch is done again. An exception of
    `transform` aborts its batch, and goes on to the caller, who may call again. A call goes on at
    the group's committed offsets.

    Raises InvalidConfiguration, ProducerFencedError, FatalError; RetriableError if the brokers do
    not answer its start, or the way back to a batch's beginning, within `max.block.ms`.
    """
    check(source, sink.transactional_id)
    # Before the first read: a predecessor's transaction must have ended, with its offsets.
    sink.init_transactions()
    try:
        sink.resume_commit()
    except AbortableError as error:
        logger.warning("batch is done again", extra={"reason": str(error)})
    # Whether the call before has committed its last batch is known only now.
    source.seek_to_committed()
    results = TransformResults()
    while not stop():
        try:
            batch = source.batch(batch_records_max, STEP_SECONDS)
            if batch:
                _send_batch(source, sink, transform, results, batch)
        except BaseException as error:
            is_done_again = results.is_done_again(error)
            if is_done_again:
                logger.warning("batch is done again", extra={"reason": str(error)})
            source.rewind()
            if not is_done_again:
                raise


def check(source: Consumer, transactional_id: str | None) -> None:
    """Raises InvalidConfiguration if the clients cannot do it exactly once."""
    if source.group is None:
        raise InvalidConfiguration(
            'exactly_once: the source needs a group, which keeps its offsets; give group="..."'
        )
    if source.commits_by_itself:
        raise InvalidConfiguration(
            "exactly_once: the source must not commit by itself: a transaction does it; make it"
            " with enable_auto_commit=False"
        )
    if not source.reads_committed:
        raise InvalidConfiguration(
            "exactly_once: isolation.level=read_uncommitted would pass on what is aborted; leave"
            " it out"
        )
    if transactional_id is None:
        raise InvalidConfiguration(
            'exactly_once: the sink needs transactional_id="...", stable over restarts'
        )


class TransformResults:
    """Tells the errors of a user's `transform`, which is called within it, from the clients'."""

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def __enter__(self) -> None:
        self._error = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._error = error

    def messages(self, made: NewMessage | Iterable[NewMessage] | None) -> Iterator[NewMessage]:
        """As `messages_of`. The user's iterator may raise too."""
        with self:
            yield from messages_of(made)

    def is_done_again(self, error: BaseException) -> bool:
        """Whether the batch that ended with `error` is done again by itself."""
        return isinstance(error, AbortableError | RetriableError) and error is not self._error


def _send_batch(
    source: Consumer,
    sink: Producer,
    transform: Transform,
    results: TransformResults,
    batch: Sequence[Message],
) -> None:
    with sink.transaction() as transaction:
        for message in batch:
            with results:
                made = transform(message)
            for each in results.messages(made):
                sink.send(*each)
        transaction.send_offsets(source)


def messages_of(made: NewMessage | Iterable[NewMessage] | None) -> Iterator[NewMessage]:
    """The result of a transform, as messages. Raises Refused."""
    if made is None:
        return
    is_one = isinstance(made, NewMessage) or not isinstance(made, Iterable)
    results: Iterable[object] = (made,) if is_one else made
    for each in results:
        # A tuple or text has parts too, which would be sent to topics of their letters.
        if not isinstance(each, NewMessage):
            raise Refused(
                f"transform: {type(each).__name__} is no NewMessage; return"
                " NewMessage(topic, value), a list of them, or None. Its batch is aborted"
            )
        yield each
