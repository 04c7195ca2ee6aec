"""Measures how long the event loop is busy with a request."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any, ParamSpec, TypeVar

from tidelog.clock import Clock

T = TypeVar("T")
P = ParamSpec("P")


class Stopwatch:
    """The sum of the durations of a request's steps, without the waits between them."""

    __slots__ = ("_clock", "seconds")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds = 0.0

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a function; its time counts."""
        begun = self._clock.monotonic()
        try:
            return function(*args, **kwargs)
        finally:
            self.seconds += self._clock.monotonic() - begun

    @types.coroutine
    def timed(self, answer: Awaitable[T]) -> Generator[Any, Any, T]:
        """Await `answer`; each of its steps counts."""
        now = self._clock.monotonic
        steps = answer.__await__()
        failure: BaseException | None = None
        while True:
            begun = now()
            try:
                waited = next(steps) if failure is None else _throw(steps, failure)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self.seconds += now() - begun
            failure = None
            try:
                yield waited
            except GeneratorExit:
                _close(steps)
                raise
            except BaseException as error:  # noqa: BLE001 - it goes to the step that waits
                failure = error


def _throw(steps: Any, failure: BaseException) -> Any:
    if not hasattr(steps, "throw"):
        raise failure
    return steps.throw(failure)


def _close(steps: Any) -> None:
    if hasattr(steps, "close"):
        steps.close()
