"""Divides topics into those that a client may see and the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from tidelog.broker.authorization.access import Access, Need, Want, cluster
from tidelog.broker.fairness.turns import SliceTurns
from tidelog.protocol.error_codes import ErrorCode
from tidelog.security.acl_codes import CLUSTER_NAME, AclOperation, ResourceType

SLICE_TOPICS: Final = 256
"""Topics that a slice of the event loop asks about."""
T = TypeVar("T")


async def visible_of(
    turns: SliceTurns,
    access: Access | None,
    topics: Iterable[T],
    name_of: Callable[[T], str | None],
    *,
    is_quiet: bool,
) -> tuple[list[T], list[T]]:
    """The topics that the client may describe, and the others. One without a name is no secret.

    `is_quiet`: the client did not name the topics, so a refusal is no news.
    """
    if access is None:
        return list(topics), []
    seen: list[T] = []
    hidden: list[T] = []
    async for topic in turns.over(topics, SLICE_TOPICS):
        name = name_of(topic)
        may = name is None or access.may(
            AclOperation.DESCRIBE, ResourceType.TOPIC, name, is_quiet=is_quiet
        )
        (seen if may else hidden).append(topic)
    return seen, hidden


def may_create(access: Access | None, name: str) -> bool:
    """Whether the client may create a topic."""
    if access is None:
        return True
    create = AclOperation.CREATE
    need = Need.of(cluster(create, is_quiet=True), Want(create, ResourceType.TOPIC, name))
    return access.lacks((need,)) is ErrorCode.NONE


def may_delete(access: Access | None, name: str) -> bool:
    """Whether the client may delete a topic. An allowed deletion leaves no line in the audit log:
    the guard has noted it."""
    if access is None:
        return True
    delete = AclOperation.DELETE
    return access.may(delete, ResourceType.CLUSTER, CLUSTER_NAME, is_quiet=True) or access.may(
        delete, ResourceType.TOPIC, name
    )
