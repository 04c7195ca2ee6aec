"""Decides on principals' operations, and caches the decisions until the rules change."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final

from tidelog.broker.authorization.decisions import (
    BY_SUPER_USER,
    AccessDecision,
    Asker,
    decide,
    decide_for_any,
)
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.coordinator.cluster.state.acl_table import AclTable
from tidelog.security.acl_codes import AclOperation, ResourceType
from tidelog.security.principal import Principal

REMEMBERED_LENGTH_MAX: Final = 249
"""The longest name of a topic. Clients choose other names of up to 32 KiB, to be forgotten."""

_NO_KEYS: Final[frozenset[Hashable]] = frozenset()


class Granted:
    """A cache of permissions under the present rules, by keys that a caller chooses.

    It is a shorter way for repeated requests. It holds no refusals.
    """

    def __init__(self, table: Callable[[], AclTable], keys_max: int) -> None:
        self._table = table
        self._keys_max = keys_max
        self._keys = 0
        self._rules = table()
        self._by_asker: dict[tuple[Principal, str], set[Hashable]] = {}

    def includes(self, principal: Principal, host: str, keys: Sequence[Hashable]) -> bool:
        """Whether the rules grant all of these keys to the principal on this host."""
        rules = self._table()
        if rules is not self._rules:
            self._rules = rules
            self._clear()
        known = self._by_asker.get((principal, host), _NO_KEYS)
        for key in keys:  # noqa: SIM110 - the loop is faster, and there is mostly one
            if key not in known:
                return False
        return True

    def add(self, principal: Principal, host: str, keys: Sequence[Hashable]) -> None:
        """Remember granted keys, right after `includes`."""
        self._keys += len(keys)
        if self._keys > self._keys_max:
            self._clear()
            return
        self._by_asker.setdefault((principal, host), set()).update(keys)

    def _clear(self) -> None:
        self._by_asker.clear()
        self._keys = 0


class Authorizer:
    """The decisions of one broker. A repeated question costs one look-up."""

    def __init__(
        self,
        table: Callable[[], AclTable],
        super_users: frozenset[str],
        *,
        allow_without_rules: bool,
        decisions_max: int,
    ) -> None:
        """`table` returns the present rules: the same object until they change."""
        self._table = table
        self._super_users = super_users
        self._allow_without_rules = allow_without_rules
        self._decisions_max = decisions_max
        self._rules = table()
        self._decisions: dict[
            tuple[Principal, str, AclOperation, ResourceType, str | None], AccessDecision
        ] = {}

    def granted(self) -> Granted:
        """A new, empty memory of permissions."""
        return Granted(self._table, self._decisions_max)

    def decision(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str | None,
    ) -> AccessDecision:
        """Whether the principal may do it from this host. No name: with any resource of the
        type."""
        rules = self._table()
        if rules is not self._rules:
            self._rules = rules
            self._decisions.clear()
        question = (principal, host, operation, resource_type, name)
        known = self._decisions.get(question)
        if known is not None:
            return known
        if len(self._decisions) >= self._decisions_max:
            self._decisions.clear()
        found = self._decide(rules, Asker(principal, host), operation, resource_type, name)
        if name is None or len(name) <= REMEMBERED_LENGTH_MAX:
            self._decisions[question] = found
        return found

    def _decide(
        self,
        rules: AclTable,
        asker: Asker,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str | None,
    ) -> AccessDecision:
        if not self._super_users.isdisjoint(asker.names):
            return BY_SUPER_USER
        otherwise = self._allow_without_rules
        if name is None:
            return decide_for_any(rules, asker, operation, resource_type, if_no_rule=otherwise)
        return decide(rules, asker, operation, resource_type, name, if_no_rule=otherwise)


def open_authorizer(settings: BrokerSettings, table: Callable[[], AclTable]) -> Authorizer | None:
    """The authorizer that the settings ask for; None without authorization."""
    if settings.optional_text("authorizer.class.name") is None:
        return None
    return Authorizer(
        table,
        super_users(settings.text("super.users")),
        allow_without_rules=settings.boolean("allow.everyone.if.no.acl.found"),
        decisions_max=settings.integer("authorizer.decisions.max"),
    )


def super_users(text: str) -> frozenset[str]:
    """The principals of `super.users`."""
    return frozenset([each.strip() for each in text.split(";")]) - {""}
