"""A consumer for asyncio.

The consumer of `tidelog` waits for messages in a thread, and gives out on the loop what is there.
If a task is cancelled while it waits, nothing is lost: the thread keeps the messages for the next
call, which waits until the thread has ended its step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from confluent_kafka import TopicPartition

from tidelog.aio.calls import BlockingCalls
from tidelog.errors import Refused
from tidelog.sdk import consumer as blocking
from tidelog.sdk.connecting import CLOCK, STEP_SECONDS
from tidelog.sdk.messages import Message
from tidelog.sdk.serializers import Deserializer
from tidelog.sdk.settings import consumer_configuration

T = TypeVar("T")


class Consumer:
    """Reads topics: `async for message in consumer`, in `async with Consumer(...) as consumer`.

    The arguments are those of `tidelog.Consumer`. Tasks that share it take turns.
    """

    def __init__(
        self,
        bootstrap: str,
        topics: str | Sequence[str],
        group: str | None = None,
        *,
        key_deserializer: Deserializer | str | None = None,
        value_deserializer: Deserializer | str | None = None,
        **settings: Any,
    ) -> None:
        """Raises InvalidConfiguration. The first call connects."""
        consumer_configuration(bootstrap, group, settings)
        self.group = group

        def make() -> blocking.Consumer:
            return blocking.Consumer(
                bootstrap,
                topics,
                group,
                key_deserializer=key_deserializer,
                value_deserializer=value_deserializer,
                **settings,
            )

        self._make = make
        self._made: blocking.Consumer | None = None
        self._calls = BlockingCalls("consumer")
        self._turn = asyncio.Lock()
        self._is_closed = self._has_ended = False

    async def start(self) -> None:
        """Connect: join the group, or find the partitions. `async with` does it too.

        Raises InvalidConfiguration; without a group KafkaRequestError for an unknown topic.
        """
        async with self._turn:
            await self._reader()

    @property
    def reader(self) -> blocking.Consumer:
        """The consumer of `tidelog` that reads. Raises Refused before the start."""
        if self._made is None:
            raise Refused("the consumer has not started: use `async with`, or call start()")
        return self._made

    async def __aiter__(self) -> AsyncIterator[Message]:
        """The messages as they arrive, without end."""
        while True:
            made = self._made
            message = made.take_one() if made is not None and self._is_free else None
            if message is None:
                message = await self.poll(STEP_SECONDS)
            if message is not None:
                yield message

    async def poll(self, timeout: float) -> Message | None:
        """The next message, or None after `timeout` seconds.

        Raises NotDeserializable, KafkaRequestError.
        """
        made = self._made
        if made is not None and made.has_fetched and self._is_free:
            return made.take_one()
        async with self._turn:
            reader = await self._fetched(timeout)
            return reader.take_one()

    async def batch(self, records_max: int | None = None, timeout: float = 1.0) -> list[Message]:
        """Up to `records_max` messages that are there; waits up to `timeout` seconds for the first.

        All of them count as consumed when the next ones are asked for.
        """
        async with self._turn:
            reader = await self._fetched(timeout)
            return reader.take(records_max)

    async def to_end(self) -> AsyncIterator[Message]:
        """The messages up to the present end of each partition; for a consumer without a group.

        The end is the last stable offset, or the high watermark with `read_uncommitted`. While
        other partitions are read, a partition also gives out messages that arrive behind its end.
        """
        await self._asked(blocking.Consumer.find_ends)
        reader = self.reader
        while reader.is_before_ends:
            message = await self.poll(STEP_SECONDS)
            if message is not None:
                reader.note_given(message)
                yield message

    async def commit(self, *, wait: bool = True) -> None:
        """Commit the position behind the last message that was given out.

        Without `wait` it returns at once, and the log tells of a failure. Raises KafkaRequestError
        if the partitions belong to another member by now: it reads these messages again.
        """
        await self._asked(lambda reader: reader.commit(wait=wait))

    def transaction_offsets(self) -> tuple[list[TopicPartition], object]:
        """The position and the group's metadata, for a transaction. Raises Refused."""
        return self.reader.transaction_offsets()

    async def rewind(self) -> None:
        """Give the messages of the last call out again; and then all behind them.

        Messages of partitions that another member has by now are left to it.
        """
        await self._asked(blocking.Consumer.rewind)

    async def seek_to_committed(self) -> None:
        """Go on at the group's committed offsets.

        In partitions without one the messages of the last call are given out again. An open
        transaction's offsets are waited for. Raises RetriableError after `max.block.ms`.
        """
        await self._asked(blocking.Consumer.seek_to_committed)

    async def close(self) -> None:
        """Leave the group. With `enable.auto.commit` commit what was given out."""
        await self._end(takes_back=False)

    async def __aenter__(self) -> Consumer:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end(takes_back=error is not None)

    async def _end(self, *, takes_back: bool) -> None:
        self._is_closed = True
        async with self._turn:
            # A task that was cancelled while it waited for its turn has ended nothing.
            if self._has_ended:
                return
            self._has_ended = True
            try:
                await self._calls.run(self._leave, takes_back)
            finally:
                self._calls.close()

    def _leave(self, takes_back: bool) -> None:
        if self._made is None:
            return
        if takes_back:
            self._made.take_back()
        self._made.close()

    @property
    def _is_free(self) -> bool:
        return not self._turn.locked() and self._calls.is_idle

    async def _reader(self) -> blocking.Consumer:
        """The consumer that reads, made at the first call; with a turn."""
        if self._is_closed:
            raise Refused("the consumer is closed; make a new one")
        await self._calls.idle()
        if self._made is None:
            await self._calls.run(self._make_once)
        return self.reader

    def _make_once(self) -> None:
        self._made = self._make()

    async def _asked(self, call: Callable[[blocking.Consumer], T]) -> T:
        async with self._turn:
            reader = await self._reader()
            return await self._calls.run(call, reader)

    async def _fetched(self, timeout: float) -> blocking.Consumer:
        """The reader, after up to `timeout` seconds in which it has got messages; with a turn."""
        reader = await self._reader()
        deadline = CLOCK.monotonic() + timeout
        left = timeout
        while not reader.has_fetched and not self._is_closed:
            # In steps: a cancelled task leaves a short one behind.
            await self._calls.run(reader.fetch, max(0.0, min(left, STEP_SECONDS)))
            left = deadline - CLOCK.monotonic()
            if left <= 0:
                break
        return reader
