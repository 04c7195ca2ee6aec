"""The vocabulary in which `table.py` declares the needs of each API."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from tidelog.broker.authorization.access import Access, Need, Want
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.security.acl_codes import AclOperation, ResourceType

VERSION_MAX = 2**15 - 1
ALL_VERSIONS = range(VERSION_MAX)


class Asking(NamedTuple):
    """A request, and the facts that its needs may depend on."""

    request: Any
    version: int
    state: ClusterState


NeedsOfRequest: TypeAlias = Callable[[Asking], Iterable[Need]]
NeedsOfElement: TypeAlias = Callable[[Any, Asking], Iterable[Need]]
KeysOfRequest: TypeAlias = Callable[[Any, ClusterState], "Sequence[Hashable] | None"]


def nothing_needed(_asking: Asking) -> Iterable[Need]:
    """For requests that are served in any case, at least in part."""
    return ()


@dataclass(frozen=True, slots=True)
class Parts:
    """Elements of a request with needs of their own. A refused one gets its error, and the handler
    serves the others."""

    path: tuple[str, ...]
    """The lists that lead from the request to the elements."""
    answers: tuple[str, ...]
    """The lists that lead from the response to the elements' answers."""
    needs: NeedsOfElement
    versions: range = ALL_VERSIONS
    parent: str = ""
    """The field that identifies an element of the first list, if the path has two."""
    is_all_or_none: bool = False
    """Whether one refused element keeps the handler from serving the others."""
    names_refused: Callable[[Any, Any, Access, Asking], None] | None = None
    """Fills in the fields of a refused element's answer, besides the error."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Elements of a response that the client did not name, and sees only if it may."""

    path: tuple[str, ...]
    operation: AclOperation
    resource_type: ResourceType
    name: str
    """The field with the resource's name."""
    unless: Want | None = None
    """A permission that shows all of them."""
    holders: Callable[[Any, Sequence[Any]], Sequence[Any]] = lambda _request, holders: holders
    """Those parts of the response whose lists the client left open, of all that have such a
    list."""


@dataclass(frozen=True, slots=True)
class Permission:
    """The needs of one API's requests."""

    whole: NeedsOfRequest = nothing_needed
    """Needed for anything at all. The response to a refusal has the error of the first lack."""
    parts: tuple[Parts, ...] = ()
    shown: tuple[Shown, ...] = ()
    hides: Callable[[Any, Access], None] | None = None
    """Removes other content that the client may not see from the response."""
    by_handler: tuple[tuple[AclOperation, ResourceType], ...] = ()
    """The needs that the handler itself checks, by `RequestContext.access`."""
    keys: KeysOfRequest | None = None
    """Short names of all that a request needs, to remember that it was allowed. None for a request
    that is not worth it. Only for requests whose permissions leave no line in the audit log."""
    is_open: bool = False
    """Whether everyone may send the request."""
