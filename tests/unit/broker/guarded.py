"""A broker whose handlers are guarded by rules that a test sets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

from tests.unit.broker.one_broker import OneBroker, World
from tidelog.broker.authorization.audit import AuditLog
from tidelog.broker.authorization.authorizer import Authorizer
from tidelog.broker.dispatch.permissions.guard import Guard, Handler
from tidelog.broker.dispatch.permissions.table import PERMISSIONS
from tidelog.broker.dispatch.routes import HANDLERS
from tidelog.broker.handlers.error_responses import count_errors
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.telemetry.metrics import RequestMetrics
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.acl_rules import AclRule
from tidelog.coordinator.cluster.state.acl_table import NO_RULES
from tidelog.protocol.codec import decode, encode
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Request, Response
from tidelog.security.principal import Principal
from tidelog.storage.stores.memory import MemoryStore

R = TypeVar("R", bound=Response)
ALICE = Principal("alice")
ADMIN = Principal("admin")
"""A super user."""
HOST = "127.0.0.1"


class GuardedBroker:
    """A broker, and its guard with rules of the test's own."""

    def __init__(self, one: OneBroker) -> None:
        self.one = one
        self.table = NO_RULES
        self.audit = AuditLog(SystemClock(), 1_000_000)
        self.guard = Guard(self.authorizer(), self.audit)
        self._handlers: dict[int, Handler] = {}

    def authorizer(self) -> Authorizer:
        return Authorizer(
            lambda: self.table,
            frozenset({str(ADMIN)}),
            allow_without_rules=False,
            decisions_max=1000,
        )

    def allow(self, *rules: AclRule) -> None:
        """Replace the rules by these."""
        self.table = NO_RULES.changed(rules, ())

    async def ask(
        self, request: Request[R], version: int, principal: Principal = ALICE, host: str = HOST
    ) -> R:
        """The answer as its client decodes it."""
        answer = await self.answer(request, version, principal, host)
        assert answer is not None
        return answer

    async def ask_until_served(self, request: Request[R], version: int) -> R:
        """The first answer without an error to a super user, whose coordinator may be loading."""
        for _ in range(100_000):
            answer = await self.ask(request, version, ADMIN)
            if not codes(answer):
                return answer
            await asyncio.sleep(0)
        raise AssertionError(f"not served: {answer}")

    async def answer(
        self, request: Request[R], version: int, principal: Principal = ALICE, host: str = HOST
    ) -> R | None:
        """The answer, if there is one."""
        key = request.API_KEY
        received = decode(type(request), b"".join(map(bytes, encode(request, version))), version)
        context = RequestContext(version, 1, "test", host, 1, principal=principal)
        name = type(request).__name__.removesuffix("Request")
        handler = self._handlers.get(key)
        if handler is None:
            handler = self.guard.guarded(key, name, PERMISSIONS[key], HANDLERS[key])
            self._handlers[key] = handler
        async with asyncio.timeout(20):
            answer = await handler(self.one.broker.services, received, context)
        if answer is None:
            return None
        sent = b"".join(map(bytes, encode(answer, version)))
        return cast(R, decode(type(answer), sent, version))


@asynccontextmanager
async def guarded_broker(**settings: object) -> AsyncIterator[GuardedBroker]:
    """A new broker on an empty bucket."""
    async with World(MemoryStore(SystemClock()), **settings).broker() as one:
        yield GuardedBroker(one)


def codes(response: Any) -> set[ErrorCode]:
    """All errors in a response."""
    metrics = RequestMetrics()
    for _ in count_errors(response, metrics):
        pass
    return {ErrorCode[name] for name in metrics.errors.by_label}
