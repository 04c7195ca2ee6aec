"""Asks for permission before a handler is called, and merges the refused parts into the answer.

The guard exists only on brokers with an authorizer: without one the dispatcher calls the handlers
themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from tidelog.broker.authorization.access import Access, Need
from tidelog.broker.authorization.audit import AuditLog
from tidelog.broker.authorization.authorizer import Authorizer
from tidelog.broker.dispatch.permissions.declarations import (
    Asking,
    Parts,
    Permission,
    Shown,
    nothing_needed,
)
from tidelog.broker.handlers.error_responses import element_errors, error_response, wants_answer
from tidelog.broker.handlers.request_context import CloseConnection, RequestContext
from tidelog.named_tuples import new_tuple
from tidelog.protocol.api import ApiKey, response_type
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Request, Response
from tidelog.protocol.wire import STEP_ELEMENTS

if TYPE_CHECKING:
    from tidelog.broker.handlers.services import Services

Handler: TypeAlias = "Callable[[Any, Any, RequestContext], Awaitable[Response | None]]"
MESSAGES: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
    ErrorCode.OPERATION_NOT_ATTEMPTED: "Another part of the request was refused.",
}


class _Refused(NamedTuple):
    """Elements of one list of the request that the handler does not get, with their errors."""

    parts: Parts
    parent: Any
    """The element of the request that has the list; None if the request has it."""
    structure: type[Any]
    """The type that has the list."""
    elements: list[tuple[Any, ErrorCode]]


class _Split(NamedTuple):
    """A request for the handler, None if nothing is left of it; and the rest."""

    request: Any | None
    refused: Sequence[_Refused]


_NOTHING: Final[Sequence[_Refused]] = ()


class Guard:
    """Wraps handlers so that they serve allowed requests, and the allowed parts of others."""

    def __init__(self, authorizer: Authorizer, audit: AuditLog) -> None:
        self._authorizer = authorizer
        self._audit = audit

    def guarded(self, key: int, api: str, permission: Permission, handler: Handler) -> Handler:
        """A handler that answers refusals itself, in the shape of the API's answers."""
        if permission.is_open:
            return handler
        authorizer, audit = self._authorizer, self._audit
        is_judged = permission.whole is not nothing_needed or permission.parts != ()
        keys_of, granted = permission.keys, authorizer.granted()

        def guarded(
            services: Services, request: Any, context: RequestContext
        ) -> Awaitable[Response | None]:
            version, _, client_id, host, _, _, principal, _ = context
            state = services.cluster.metadata.state
            keys = None if keys_of is None else keys_of(request, state)
            if keys is not None and granted.includes(principal, host, keys):
                return handler(services, request, context)
            access = Access(authorizer, audit, principal, host, api, client_id)
            asking = Asking(request, version, state)
            allowed, refused = request, _NOTHING
            if is_judged:
                code = access.lacks(permission.whole(asking))
                if code is not ErrorCode.NONE:
                    return _refusal(request, version, code)
                allowed, refused = _split(permission.parts, asking, access)
            if keys is not None and not refused:
                granted.add(principal, host, keys)
            if allowed is None:
                nothing = response_type(key)() if wants_answer(request) else None
                answer: Awaitable[Response | None] = _ready(nothing)
            else:
                if permission.by_handler:
                    context = new_tuple(RequestContext, (*context[:-1], access))
                # A plain function takes effect here and now, in the order of the requests.
                answer = handler(services, allowed, context)
            if refused and key == ApiKey.PRODUCE:
                _count(services, api, refused)
            if not (refused or permission.shown or permission.hides):
                return answer
            if not isinstance(answer, asyncio.Future):
                answer = asyncio.ensure_future(answer)
            return _finished(services, permission, asking, access, answer, refused)

        return guarded


def _ready(response: Response | None) -> asyncio.Future[Response | None]:
    ready: asyncio.Future[Response | None] = asyncio.get_running_loop().create_future()
    ready.set_result(response)
    return ready


def _refusal(
    request: Request[Response], version: int, code: ErrorCode
) -> asyncio.Future[Response | None]:
    """The answer to a request that is refused as a whole."""
    response = error_response(request, version, code, MESSAGES[code])
    if response is None:
        raise CloseConnection("unauthorized", f"{MESSAGES[code]} Its client asked for no answer.")
    return _ready(response)


def _split(parts: Sequence[Parts], asking: Asking, access: Access) -> _Split:
    """The request with its allowed parts, and the refused ones."""
    request, left = asking.request, True
    refused: list[_Refused] = []
    for each in parts:
        if asking.version not in each.versions:
            continue
        *parents, name = each.path
        if not parents:
            request, has = _without_refused(each, name, request, None, asking, access, refused)
            left = left and has
            continue
        (first,) = parents
        elements = [
            _without_refused(each, name, element, element, asking, access, refused)[0]
            for element in getattr(request, first)
        ]
        request = copy(request)
        setattr(request, first, elements)
    return _Split(request if left else None, refused)


def _without_refused(
    parts: Parts,
    name: str,
    holder: Any,
    parent: Any,
    asking: Asking,
    access: Access,
    refused: list[_Refused],
) -> tuple[Any, bool]:
    """The holder of a list, with the allowed elements alone; and whether any are left of some."""
    elements = getattr(holder, name)
    if not elements:
        return holder, True
    codes = [access.lacks(parts.needs(element, asking)) for element in elements]
    if not any(codes):
        return holder, True
    if parts.is_all_or_none:
        codes = [code or ErrorCode.OPERATION_NOT_ATTEMPTED for code in codes]
    pairs = list(zip(elements, codes, strict=True))
    allowed = [element for element, code in pairs if not code]
    rest = [(element, code) for element, code in pairs if code]
    refused.append(_Refused(parts, parent, type(holder), rest))
    holder = copy(holder)
    setattr(holder, name, allowed)
    return holder, bool(allowed)


async def _finished(
    services: Services,
    permission: Permission,
    asking: Asking,
    access: Access,
    answer: asyncio.Future[Response | None],
    refused: Sequence[_Refused],
) -> Response | None:
    """The handler's answer with the refused parts, without parts that the client may not see."""
    response = await answer
    if response is None:
        if refused:
            # As Kafka does: the client learns of the error when it sends more.
            raise CloseConnection("unauthorized", "a part of a request without answer is refused")
        return None
    through = services.cluster.turns.through
    for shown in permission.shown:
        await through(_show(shown, asking.request, response, access))
    if permission.hides is not None:
        permission.hides(response, access)
    if not getattr(response, "error_code", ErrorCode.NONE):
        for each in refused:
            _merge(each, response, asking, access)
    return response


def _show(shown: Shown, request: Any, response: Any, access: Access) -> Generator[None, None, None]:
    """Keep the elements that the client may see, in steps."""
    if shown.unless is not None and not access.lacks((Need.of(shown.unless),)):
        return
    *parents, name = shown.path
    holders = [response] if not parents else getattr(response, parents[0])
    left = STEP_ELEMENTS
    for holder in shown.holders(request, holders):
        kept = []
        for element in getattr(holder, name) or ():
            seen = access.may(
                shown.operation, shown.resource_type, getattr(element, shown.name), is_quiet=True
            )
            if seen:
                kept.append(element)
            left -= 1
            if not left:
                left = STEP_ELEMENTS
                yield
        setattr(holder, name, kept)


def _merge(refused: _Refused, response: Any, asking: Asking, access: Access) -> None:
    """Add the answers to refused elements to the response."""
    parts = refused.parts
    holder = _holder(refused, response)
    if holder is None:
        return
    by_code: dict[ErrorCode, list[Any]] = {}
    for element, code in refused.elements:
        by_code.setdefault(code, []).append(element)
    for code, elements in by_code.items():
        answers = element_errors(
            (refused.structure, parts.path[-1]),
            (type(holder), parts.answers[-1]),
            elements,
            asking.version,
            code,
            MESSAGES[code],
        )
        if parts.names_refused is not None:
            for element, answer in zip(elements, answers, strict=True):
                parts.names_refused(element, answer, access, asking)
        getattr(holder, parts.answers[-1]).extend(answers)


def _holder(refused: _Refused, response: Any) -> Any | None:
    """The part of the response that takes the answers; None if its error counts for all of them."""
    if refused.parent is None:
        return response
    key = refused.parts.parent
    wanted = getattr(refused.parent, key)
    for each in getattr(response, refused.parts.answers[0]):
        if getattr(each, key) == wanted:
            return None if each.error_code else each
    return None


def _count(services: Services, api: str, refused: Sequence[_Refused]) -> None:
    """Count the refused partitions of a Produce, whose handler counts the others."""
    errors = services.metrics.api(api).errors
    for each in refused:
        for topic, code in each.elements:
            errors.of(code.name).value += len(topic.partition_data)
