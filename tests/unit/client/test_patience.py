"""The client repeats safe requests after passing failures, and after no others."""

from __future__ import annotations

import asyncio

import pytest

from tidelog.client.errors import ReadRefused, RequestRefused
from tidelog.client.patience import ClientRetrySettings, Patience
from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.protocol.error_codes import ErrorCode

LOADS = ReadRefused("group g", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
FORBIDDEN = ReadRefused("group g", ErrorCode.GROUP_AUTHORIZATION_FAILED)


def answered(*outcomes: RequestRefused | str, timeout_ms: int = 10_000) -> str:
    """The answer to a request that has these outcomes, one after the other."""
    left = list(outcomes)

    async def ask() -> str:
        outcome = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(outcome, RequestRefused):
            raise outcome
        return outcome

    settings = ClientRetrySettings(backoff_ms_min=1, backoff_ms_max=2)
    patience = Patience(SystemClock(), SystemEntropy(), settings, timeout_ms)
    return asyncio.run(patience.answer(ask))


def test_a_coordinator_that_loads_is_asked_again() -> None:
    assert answered(LOADS, LOADS, "the answer") == "the answer"


def test_a_refusal_that_does_not_pass_is_final() -> None:
    with pytest.raises(ReadRefused) as refusal:
        answered(LOADS, FORBIDDEN, "the answer")
    assert refusal.value is FORBIDDEN


def test_the_deadline_ends_the_patience() -> None:
    with pytest.raises(ReadRefused) as refusal:
        answered(LOADS, timeout_ms=20)
    assert refusal.value is LOADS
