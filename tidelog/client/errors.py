"""Errors of client requests, with their effect on the requested change."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from tidelog.errors import Refused, Unreachable
from tidelog.protocol.error_codes import ErrorCode, error_name


class RequestOutcome(enum.Enum):
    """The known effect of a failed request."""

    NOT_APPLIED = "it was certainly not applied"
    UNKNOWN = "it may or may not have been applied"


class RequestFailed(Unreachable):
    """No answer came. NOT_APPLIED: no byte of the request reached the network."""

    def __init__(self, request: str, address: str, outcome: RequestOutcome, why: str) -> None:
        fate = "nothing was sent" if outcome is RequestOutcome.NOT_APPLIED else outcome.value
        super().__init__(f"{request} to {address}: {why}; {fate}")
        self.request = request
        self.address = address
        self.outcome = outcome
        self.why = why


_APPLIED_PERHAPS = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


class RequestRefused(Refused):
    """The broker answered with an error code."""

    def __init__(self, subject: str, code: int, message: str | None = None) -> None:
        self.code = code
        self.outcome = self._outcome_of(code)
        detail = f" ({message})" if message else ""
        super().__init__(f"{subject}: {error_name(code)}{detail}{self._fate()}")

    def _outcome_of(self, code: int) -> RequestOutcome:
        return RequestOutcome.UNKNOWN if code in _APPLIED_PERHAPS else RequestOutcome.NOT_APPLIED

    def _fate(self) -> str:
        return f"; {self.outcome.value}"

    @property
    def retriable(self) -> bool:
        """True if the same request may succeed later; False for unknown codes."""
        try:
            return ErrorCode(self.code).retriable
        except ValueError:
            return False


class ReadRefused(RequestRefused):
    """The broker answered a read request with an error code."""

    def _outcome_of(self, code: int) -> RequestOutcome:
        return RequestOutcome.NOT_APPLIED

    def _fate(self) -> str:
        return ""


def check(subject: str, code: int, message: str | None = None) -> None:
    """Raise RequestRefused if a change request's answer has an error code."""
    if code != ErrorCode.NONE:
        raise RequestRefused(subject, code, message)


def check_read(subject: str, code: int, message: str | None = None) -> None:
    """Raise ReadRefused if a read request's answer has an error code."""
    if code != ErrorCode.NONE:
        raise ReadRefused(subject, code, message)


def no_topic(name: str, code: int, message: str | None = None) -> ReadRefused:
    """The refusal of a request about a topic."""
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        message = f"there is no such topic; create it with: tidelog topics create {name}"
    return ReadRefused(f"topic {name}", code, message)


class NoCommonVersion(Refused):
    """The broker and this client share no version of an API. Nothing was sent."""


class TooManyRequests(Refused):
    """The queue of a connection is full. Nothing was sent."""


def raise_together(refusals: Sequence[RequestRefused]) -> None:
    """Raise the first refusal, with the others as notes."""
    if not refusals:
        return
    first, *others = refusals
    for other in others:
        first.add_note(str(other))
    raise first
