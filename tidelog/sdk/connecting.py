"""Shared by the SDK's clients: they make librdkafka's clients here, log, and repeat calls."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet

import confluent_kafka

from tidelog.client.bearer_token import TOKEN, TOKEN_URL, expiry_of
from tidelog.client.security import token_of
from tidelog.clock import Clock, SystemClock
from tidelog.errors import InvalidConfiguration
from tidelog.sdk.errors import RetriableError, code_of, translated
from tidelog.sdk.settings import unknown_setting

T = TypeVar("T")
logger = logging.getLogger("tidelog.sdk")
CLOCK: Final = SystemClock()
FORKED: Final = "was made before a fork; its threads are not in this process: make a new one here"
"""Why a client refuses its use, behind its kind."""
STEP_SECONDS: Final = 0.5
"""One wait for a broker. Python handles signals between two waits."""
_PAUSE_SECONDS: Final = 0.05
QUIET_SECONDS: Final = 30.0
LINES_MAX: Final = 100
"""The lines that are remembered."""
_FAILED: Final = re.compile(r"^(FAIL|ERROR) ")
_AFTER: Final = re.compile(r" \(after \d+ms in state .*")


class ConnectionFailures(logging.Filter):
    """Passes the same failure of a client's connection once in 30 s, and all other records.

    librdkafka leaves repeated lines out itself, for 30 s each. But with
    `metadata.recovery.strategy=rebootstrap` it forgets the broker with all that it knows, when none
    answers, and begins anew some 40 times a second.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._shown: dict[str, float] = {}
        """When each line was shown, the oldest first."""
        self._lock = threading.Lock()
        """Clients of several threads have one log."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if _FAILED.match(text) is None:
            return True
        line, now = _AFTER.sub("", text), self._clock.monotonic()
        with self._lock:
            if now - self._shown.get(line, float("-inf")) < QUIET_SECONDS:
                return False
            self._shown.pop(line, None)
            self._shown[line] = now
            if len(self._shown) > LINES_MAX:
                del self._shown[next(iter(self._shown))]
        return True


logger.addFilter(ConnectionFailures(CLOCK))


class Forked(Protocol):
    """A client that is of no use in a child of its process."""

    def forked(self) -> None:
        """This process is such a child: refuse each use, and close without a wait."""


_clients: WeakSet[Forked] = WeakSet()


def ends_at_fork(client: Forked) -> None:
    """Call `forked` of a client in each child of this process, as long as there is the client."""
    _clients.add(client)


def never_freed(client: object) -> None:
    """Keep one of librdkafka's clients until this process, a forked child, has ended.

    To free it is to join its threads, which are not here: the process would crash as it exits.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


_forked_beside_clients = False


def _forked() -> None:
    global _forked_beside_clients
    for client in list(_clients):
        _forked_beside_clients = True
        client.forked()


os.register_at_fork(after_in_child=_forked)


def made(make: Callable[[dict[str, Any]], T], passed: dict[str, Any]) -> T:
    """A client of librdkafka, which logs to `tidelog.sdk`. Raises InvalidConfiguration."""
    if _forked_beside_clients:
        # A thread of theirs may have held a lock of the C library or of OpenSSL at the fork.
        logger.warning("client made in a process that was forked beside clients; it can hang")
    try:
        return make({"logger": logger, "client.id": "tidelog"} | with_token(passed))
    except confluent_kafka.KafkaException as error:
        cause = error.args[0]
        text = cause.str() if isinstance(cause, confluent_kafka.KafkaError) else str(cause)
        raise unknown_setting(text) from error
    except (TypeError, ValueError) as error:
        raise InvalidConfiguration(f"settings: {error}") from error


def serve_callbacks(client: confluent_kafka.Producer, seconds: float) -> None:
    """Serve a producer's callbacks; wait up to `seconds` for the first.

    Raises KafkaException. KeyboardInterrupt: a signal's handler raised as a callback began, such as
    Ctrl-C's, and the callback did not run.
    """
    try:
        client.poll(seconds)
    except SystemError as error:
        # confluent-kafka drops the exception of the handler.
        raise KeyboardInterrupt from error


def with_token(passed: dict[str, Any]) -> dict[str, Any]:
    """The settings for librdkafka, with a callback that gives the token of OAUTHBEARER.

    librdkafka itself gets tokens from servers alone (`sasl.oauthbearer.method=oidc`). Raises
    InvalidConfiguration.
    """
    if passed.get("sasl.oauthbearer.method") == "oidc":
        return passed
    given: dict[str, str] = {
        name: str(passed[name]) for name in (TOKEN, TOKEN_URL) if name in passed
    }
    if not given:
        return passed
    give = token_of(given)

    def answer(_config: str) -> tuple[str, float]:
        token = give()
        return token, expiry_of(token)

    rest = {name: value for name, value in passed.items() if name not in given}
    return rest | {"oauth_cb": answer}


def pause() -> None:
    """Wait before a call is repeated that a broker answers at once."""
    threading.Event().wait(_PAUSE_SECONDS)


def repeated(
    call: Callable[[float], T],
    what: str,
    block_ms_max: int | None,
    between: Callable[[], object] | None = None,
    passing: Collection[int] = (),
) -> T:
    """The result of a call, which takes its longest wait in seconds and is safe to repeat.

    Retriable errors, and those with codes of `passing`, repeat it for up to `block_ms_max`. Then
    the last one is raised. None: without end.
    """
    started = CLOCK.monotonic()
    while True:
        try:
            return call(STEP_SECONDS)
        except SystemError as error:
            # As in `serve_callbacks`: a call of a transaction serves callbacks too.
            raise KeyboardInterrupt from error
        except confluent_kafka.KafkaException as error:
            failure = translated(error, what)
            if not isinstance(failure, RetriableError) and code_of(error) not in passing:
                raise failure from error
            waited_ms = (CLOCK.monotonic() - started) * 1000
            if block_ms_max is not None and waited_ms >= block_ms_max:
                raise failure from error
        if between is not None:
            between()


def completed(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of asynchronous work, also within a running event loop, as notebooks have one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # The work comes behind this block: its errors would show this one as their context.
        pass
    else:
        with ThreadPoolExecutor(1, "tidelog-work") as thread:
            return thread.submit(lambda: asyncio.run(work())).result()
    return asyncio.run(work())
