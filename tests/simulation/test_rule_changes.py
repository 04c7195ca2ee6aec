"""How long a change of the access control rules takes until every broker enforces it, in virtual
time.

Hints between brokers announce the change at once. Without any hint, the poll of the metadata log
finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.simulation.cluster import Environment
from tests.simulation.crowd.members import Members
from tests.simulation.run import System
from tests.simulation.test_stories import REST_SECONDS, World, tell
from tests.simulation.tidelog_system import clients, serving
from tests.simulation.world.patches import patched
from tests.simulation.world.releases import lost_hints
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.client.admin.acls import Acl, AclSelection, create_acls, delete_acls
from tidelog.security.acl_codes import AclOperation, PatternType, PermissionType, ResourceType
from tidelog.security.principal import Principal

BROKERS = 5
HINTED_SECONDS_MAX = 1.0
POLLED_SECONDS_MAX = 5.0
ALICE = Principal("alice")
RULE = Acl(
    ResourceType.TOPIC,
    PatternType.LITERAL,
    "topic",
    str(ALICE),
    "*",
    AclOperation.READ,
    PermissionType.ALLOW,
)


class Judges:
    """The authorizers of the running brokers."""

    def __init__(self) -> None:
        self._members = Members()
        settings = BrokerSettings({"authorizer.class.name": "acl", "super.users": "User:ANONYMOUS"})
        client, self.kafka, bucket = clients(settings)
        self.system = System(
            serving(settings, watches=(self._members.follow,)), client, self.kafka, bucket
        )

    def decisions(self) -> Iterator[bool]:
        """Whether Alice may read, by each broker."""
        for _, broker in self._members.running():
            authorizer = broker.services.cluster.authorizer
            assert authorizer is not None
            yield authorizer.decision(
                ALICE, "host", RULE.operation, RULE.resource_type, RULE.name
            ).is_allowed


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("is_hinted", "seconds_max"),
    [(True, HINTED_SECONDS_MAX), (False, POLLED_SECONDS_MAX)],
    ids=["hinted", "polled"],
)
def test_a_changed_rule_binds_all_brokers_in_time(
    seed: int, is_hinted: bool, seconds_max: float
) -> None:
    judges = Judges()

    async def story(world: World, environment: Environment) -> None:
        await asyncio.sleep(REST_SECONDS)
        assert list(judges.decisions()) == [False] * BROKERS
        client = judges.kafka(environment)
        for change, allowed in (
            (create_acls(client, [RULE]), True),
            (delete_acls(client, AclSelection(principal=str(ALICE))), False),
        ):
            await change
            changed_at = world.loop.time()
            while set(judges.decisions()) != {allowed}:
                assert world.loop.time() <= changed_at + seconds_max
                await asyncio.sleep(0.01)
        await client.close()

    with patched([] if is_hinted else lost_hints()):
        tell(story, seed, BROKERS, judges.system)
