"""A transaction of an asyncio producer, and how it ends.

`tidelog.sdk.transactions` decides and repeats; here it runs in a thread. A task that is cancelled
while its commit runs leaves the commit to the thread: the decision stays one and the same, and the
next call of the producer tells it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType

from tidelog.aio.calls import BlockingCalls, log_failure
from tidelog.aio.consumer import Consumer
from tidelog.errors import Refused
from tidelog.sdk.connecting import CLOCK
from tidelog.sdk.errors import KafkaRequestError
from tidelog.sdk.transactions import TransactionEnds, note_failed_abort


class ThreadedCalls:
    """Begins and ends one producer's transactions in the thread of its blocking calls."""

    def __init__(
        self, ends: TransactionEnds, calls: BlockingCalls, forget_failures: Callable[[], None]
    ) -> None:
        self._ends = ends
        self._calls = calls
        self._forget_failures = forget_failures
        self._commit: asyncio.Future[None] | None = None
        """A commit whose outcome no task has got."""

    @property
    def is_open(self) -> bool:
        """Whether messages belong to a transaction now."""
        return self._ends.is_open

    def check_committable(self, error: BaseException | None) -> None:
        """For a block that ends with `error`, and whose transaction has ended before it."""
        self._ends.check_committable(error)

    async def initialise(self) -> None:
        """Once: take the transactional id over."""
        await self._calls.run(self._ends.initialise)

    async def begin(self) -> None:
        """Open a transaction, after the end of the one before."""
        await self.outcome()
        is_ours = False

        def begin() -> None:
            nonlocal is_ours
            self._ends.begin()
            is_ours = True

        def give_back() -> None:
            # A begin that was refused leaves the open transaction to its task.
            if is_ours:
                self._abort_open()

        begun = self._calls.begin(begin)
        try:
            await asyncio.shield(begun)
        except asyncio.CancelledError:
            # A `close` that has ended aborted it.
            if not self._calls.is_closed:
                self._calls.begin(give_back).add_done_callback(log_failure)
            raise

    async def settle(self) -> None:
        """The outcome of a commit that goes on, or that was not answered."""
        await self.outcome()
        await self._calls.run(self._ends.settle)

    async def commit(self, timeout: float | None) -> None:
        """Commit, or abort where it cannot be committed. Raises CommitOutcomeUnknown."""
        self._refuse_ended()
        self._commit = self._calls.begin(self._end_with_commit, timeout)
        await self.outcome()

    async def abort(self) -> None:
        """Abort. RetriableError after `max.block.ms`: the next transaction repeats it first."""
        try:
            await self._calls.run(self._abort_open)
        finally:
            self._forget_failures()

    async def send_offsets(self, source: Consumer) -> None:
        """Let the consumer's position be committed with the transaction."""
        offsets, group = source.transaction_offsets()

        def send() -> None:
            self._refuse_ended()
            self._ends.send_offsets(offsets, group)

        await self._calls.run(send)

    async def close(self, timeout: float) -> None:
        """Wait for what runs, such as a commit, and abort a transaction that is open then.

        After `timeout` seconds the running call fails. The thread refuses what tasks ask for later.
        """
        commit = self._commit
        # The thread has it before any task can ask for more.
        ended = self._calls.begin(self._close_ends)
        try:
            await asyncio.wait([ended], timeout=timeout)
        except asyncio.CancelledError:
            ended.add_done_callback(log_failure)
            raise
        finally:
            # Also if the task is cancelled: nothing else would end the thread.
            if not ended.done():
                self._ends.give_up()
        if not ended.done():
            await asyncio.wait([ended])
        if commit is not None and self._commit is commit:
            await self.outcome()
        ended.result()

    def _refuse_ended(self) -> None:
        """`close` may have aborted the transaction while its deliveries were waited for."""
        if not self._ends.is_open:
            self._ends.check_committable(None)

    def _close_ends(self) -> None:
        try:
            self._ends.close()
        finally:
            self._forget_failures()

    def _abort_open(self) -> None:
        """Another task's `close` may have aborted it since it was asked for."""
        if self._ends.is_open:
            self._ends.abort()

    def _end_with_commit(self, timeout: float | None) -> None:
        try:
            self._refuse_ended()
            self._ends.commit(timeout)
        finally:
            self._forget_failures()

    async def outcome(self) -> None:
        """Wait for a commit that runs, and raise what it raises."""
        commit = self._commit
        if commit is None:
            return
        # If the task is cancelled here, also when the commit is just done, the outcome stays.
        await asyncio.wait([commit])
        self._commit = None
        commit.result()


class Transaction:
    """`async with producer.transaction():` commits, and aborts on an exception."""

    def __init__(
        self,
        calls: ThreadedCalls,
        commit_timeout: float | None,
        delivered: Callable[[float | None], Awaitable[None]],
    ) -> None:
        self._calls = calls
        self._commit_timeout = commit_timeout
        self._delivered = delivered

    async def send_offsets(self, source: Consumer) -> None:
        """Commit the consumer's position in its group with this transaction.

        The position is behind the last message that the consumer has given out. Raises
        AbortableError if the partitions belong to another member by now.
        """
        if not self._calls.is_open:
            raise Refused("send_offsets: the transaction has ended")
        await self._calls.send_offsets(source)

    async def __aenter__(self) -> Transaction:
        await self._calls.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._calls.is_open:
            self._calls.check_committable(error)
            return
        if error is not None:
            await self._abort(error)
            return
        begun = CLOCK.monotonic()
        try:
            # The loop serves the delivery reports, which cost the commit's thread much more.
            await self._delivered(self._commit_timeout)
        except asyncio.CancelledError as cancelled:
            await self._abort(cancelled)
            raise
        waited = CLOCK.monotonic() - begun
        await self._calls.commit(
            None if self._commit_timeout is None else max(0.0, self._commit_timeout - waited)
        )

    async def _abort(self, error: BaseException) -> None:
        """The error of the block goes on, unless the producer is fenced."""
        try:
            await self._calls.abort()
        except KafkaRequestError as failure:
            note_failed_abort(failure, error)
