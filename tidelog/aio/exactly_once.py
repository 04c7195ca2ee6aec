"""Consume, transform, produce: exactly once, for asyncio. `tidelog.sdk.exactly_once` says why."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from tidelog.aio.consumer import Consumer
from tidelog.aio.producer import Producer
from tidelog.sdk.connecting import STEP_SECONDS, logger
from tidelog.sdk.errors import AbortableError
from tidelog.sdk.exactly_once import TransformResults, check
from tidelog.sdk.messages import Message, NewMessage

Made: TypeAlias = NewMessage | Iterable[NewMessage] | None
Transform: TypeAlias = Callable[[Message], Made | Awaitable[Made]]
"""Gives the messages to send for one message: a function or a coroutine function."""


async def exactly_once(
    source: Consumer,
    sink: Producer,
    transform: Transform,
    *,
    batch_records_max: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Send what `transform` makes of the source's messages, each exactly once, until `stop()`.

    The arguments and errors are those of `tidelog.exactly_once`. If the task is cancelled, its
    batch is aborted, or committed whole; a later call goes on at the committed offsets.
    """
    await source.start()
    check(source.reader, sink.transactional_id)
    # Before the first read: a predecessor's transaction must have ended, with its offsets.
    await sink.init_transactions()
    try:
        await sink.resume_commit()
    except AbortableError as error:
        logger.warning("batch is done again", extra={"reason": str(error)})
    # Whether the call before has committed its last batch is known only now.
    await source.seek_to_committed()
    results = TransformResults()
    while not stop():
        try:
            batch = await source.batch(batch_records_max, STEP_SECONDS)
            if batch:
                await _send_batch(source, sink, transform, results, batch)
        except BaseException as error:
            is_done_again = results.is_done_again(error)
            if is_done_again:
                logger.warning("batch is done again", extra={"reason": str(error)})
            await source.rewind()
            if not is_done_again:
                raise


async def _send_batch(
    source: Consumer,
    sink: Producer,
    transform: Transform,
    results: TransformResults,
    batch: Sequence[Message],
) -> None:
    async with sink.transaction() as transaction:
        for message in batch:
            with results:
                made = transform(message)
                if inspect.isawaitable(made):
                    made = await made
            for each in results.messages(made):
                await sink.send(*each)
        await transaction.send_offsets(source)
