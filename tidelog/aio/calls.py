"""A client's blocking calls, one after the other in a thread of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from tidelog.errors import Refused
from tidelog.sdk.connecting import logger

P = ParamSpec("P")
T = TypeVar("T")


class BlockingCalls:
    """Runs blocking calls. A call goes on if the task that waits for it is cancelled.

    The next call begins after it.
    """

    def __init__(self, kind: str) -> None:
        """`kind` names the client in errors, such as `producer`."""
        self._kind = kind
        self._executor = ThreadPoolExecutor(1, f"tidelog-{kind}")
        self.is_closed = False
        self._newest: asyncio.Future[Any] | None = None

    def begin(
        self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs
    ) -> asyncio.Future[T]:
        """The outcome of a call that begins when those before it have ended.

        Raises Refused after `close`.
        """
        if self.is_closed:
            raise Refused(f"the {self._kind} is closed; make a new one")
        loop = asyncio.get_running_loop()
        made = loop.run_in_executor(self._executor, lambda: function(*arguments, **named))
        self._newest = made
        return made

    async def run(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """A call's result. If the task is cancelled, the log tells of the call's failure."""
        begun = self.begin(function, *arguments, **named)
        try:
            return await asyncio.shield(begun)
        except asyncio.CancelledError:
            begun.add_done_callback(log_failure)
            raise

    @property
    def is_idle(self) -> bool:
        """Whether no call runs."""
        return self._newest is None or self._newest.done()

    async def idle(self) -> None:
        """Wait until no call runs. The results are dropped."""
        while self._newest is not None and not self._newest.done():
            await asyncio.wait([self._newest])

    def close(self) -> None:
        """The thread ends after its last call."""
        self.is_closed = True
        self._executor.shutdown(wait=False)


def log_failure(ended: asyncio.Future[Any]) -> None:
    """For a call whose outcome no task waits for any more."""
    failure = ended.exception()
    if failure is not None:
        logger.warning("a cancelled task's call failed", extra={"reason": str(failure)})
