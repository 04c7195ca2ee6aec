"""An administrator for asyncio: `tidelog.Admin` in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from tidelog.client.admin.quotas import LimitedClient
from tidelog.sdk import admin as blocking
from tidelog.sdk.access_rules import AccessRule
from tidelog.sdk.admin import (
    BROKERS_DEFAULT,
    SCRAM_DEFAULT,
    GroupDescription,
    TransactionDescription,
)
from tidelog.security.scram import ITERATIONS_MIN


class Admin:
    """`Admin("127.0.0.1:9092")`. Arguments, answers and errors are those of `tidelog.Admin`."""

    def __init__(self, bootstrap: str, **settings: Any) -> None:
        """Raises InvalidConfiguration."""
        self._admin = blocking.Admin(bootstrap, **settings)

    async def topics(self) -> dict[str, int]:
        """The topics, internal ones left out, and their numbers of partitions."""
        return await asyncio.to_thread(self._admin.topics)

    async def create_topic(
        self,
        name: str,
        partitions: int = BROKERS_DEFAULT,
        configs: Mapping[str, object] | None = None,
    ) -> None:
        """Create a topic."""
        await asyncio.to_thread(self._admin.create_topic, name, partitions, configs)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records."""
        await asyncio.to_thread(self._admin.delete_topic, name)

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """Raise a topic's number of partitions to `partitions`. Keys may change their partition."""
        await asyncio.to_thread(self._admin.add_partitions, topic, partitions)

    async def configs(self, topic: str) -> dict[str, str]:
        """A topic's settings, with those that it has not set itself."""
        return await asyncio.to_thread(self._admin.configs, topic)

    async def set_configs(self, topic: str, configs: Mapping[str, object | None]) -> None:
        """Change some of a topic's settings, by Kafka's names. None: back to the default."""
        await asyncio.to_thread(self._admin.set_configs, topic, configs)

    async def groups(self) -> list[str]:
        """The names of the consumer groups."""
        return await asyncio.to_thread(self._admin.groups)

    async def group(self, group: str) -> GroupDescription:
        """A group's state and members."""
        return await asyncio.to_thread(self._admin.group, group)

    async def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """The committed offsets of a group, by topic and partition."""
        return await asyncio.to_thread(self._admin.group_offsets, group)

    async def set_group_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Set committed offsets of a group that has no members."""
        await asyncio.to_thread(self._admin.set_group_offsets, group, offsets)

    async def delete_group(self, group: str) -> None:
        """Delete a group that has no members, and its offsets."""
        await asyncio.to_thread(self._admin.delete_group, group)

    async def transactions(self) -> dict[str, str]:
        """The transactional ids, and the states of their newest transactions."""
        return await asyncio.to_thread(self._admin.transactions)

    async def transaction(self, transactional_id: str) -> TransactionDescription:
        """The newest transaction of a transactional id."""
        return await asyncio.to_thread(self._admin.transaction, transactional_id)

    async def quotas(
        self, *, user: str | None = None, client_id: str | None = None, ip: str | None = None
    ) -> dict[LimitedClient, dict[str, float]]:
        """The quotas of all clients with these names."""
        return await asyncio.to_thread(self._admin.quotas, user=user, client_id=client_id, ip=ip)

    async def set_quotas(
        self,
        quotas: Mapping[str, float | None],
        *,
        user: str | None = None,
        client_id: str | None = None,
        ip: str | None = None,
    ) -> None:
        """Set quotas of a user, a client id, both, or an address. None removes a quota."""
        await asyncio.to_thread(
            self._admin.set_quotas, quotas, user=user, client_id=client_id, ip=ip
        )

    async def users(self) -> dict[str, dict[str, int]]:
        """The users with a password, and the iterations of each of their mechanisms."""
        return await asyncio.to_thread(self._admin.users)

    async def set_user(
        self,
        user: str,
        password: str,
        mechanism: str = SCRAM_DEFAULT,
        iterations: int = ITERATIONS_MIN,
    ) -> None:
        """Add a user, or replace the password of one."""
        await asyncio.to_thread(self._admin.set_user, user, password, mechanism, iterations)

    async def delete_user(self, user: str, mechanism: str = SCRAM_DEFAULT) -> None:
        """Remove a user's password for a mechanism."""
        await asyncio.to_thread(self._admin.delete_user, user, mechanism)

    async def rules(
        self, *, principal: str | None = None, name: str | None = None
    ) -> list[AccessRule]:
        """The access control rules, of all or of one principal, and of a resource's name."""
        return await asyncio.to_thread(self._admin.rules, principal=principal, name=name)

    async def add_rules(self, rules: Sequence[AccessRule]) -> None:
        """Add access control rules; those that there are stay."""
        await asyncio.to_thread(self._admin.add_rules, rules)

    async def delete_rules(self, rules: Sequence[AccessRule]) -> None:
        """Delete these rules; those that there are not are passed over."""
        await asyncio.to_thread(self._admin.delete_rules, rules)
