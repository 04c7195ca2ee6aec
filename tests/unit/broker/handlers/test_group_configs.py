"""The settings of single groups: their values, refusals, and the groups that they apply to."""

from __future__ import annotations

import pytest

from tests.unit.broker.administered import AdministeredBroker, administer
from tests.unit.broker.group_client import GROUP, ask, find, ready, world
from tests.unit.broker.handlers.test_configs import (
    DELETE,
    SET,
    Change,
    alter,
    describe,
    described,
    replace,
)
from tests.unit.broker.handlers.test_consumer_groups import beat, join
from tests.unit.broker.handlers.test_topics import create, topic
from tests.unit.broker.one_broker import run
from tidelog.broker.handlers.configs.configs import incremental_alter_configs, list_config_resources
from tidelog.broker.settings.group_config import GROUP_TABLE
from tidelog.coordinator.cluster.records.records import ConfigsChanged, ConfigScope
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)

OF_GROUP = 32
G = (OF_GROUP, "g")
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def own(broker: AdministeredBroker) -> dict[str, str]:
    """The settings of group g."""
    return dict(broker.state.configs(ConfigScope.GROUP, "g"))


def test_a_group_that_sets_nothing_has_the_brokers_settings() -> None:
    async def story(broker: AdministeredBroker) -> None:
        found = await describe(broker, G)
        assert {each.name for each in found.configs} == set(GROUP_TABLE)
        assert not any(each.read_only for each in found.configs)
        session = await described(broker, G, SESSION)
        assert (session.value, session.config_source, session.config_type) == ("45000", 5, 3)
        assert session.documentation == GROUP_TABLE[SESSION].doc
        heartbeat = await described(broker, G, HEARTBEAT)
        assert (heartbeat.value, heartbeat.config_source) == ("6000", 4)

    administer(story, group_consumer_heartbeat_interval_ms=6000)


def test_a_group_is_given_a_setting_and_loses_it_again() -> None:
    async def story(broker: AdministeredBroker) -> None:
        assert await alter(broker, (G, [(SESSION, SET, "50000")])) == [(0, None)]
        assert own(broker) == {SESSION: "50000"}
        config = await described(broker, G, SESSION)
        assert (config.value, config.config_source, config.read_only) == ("50000", 8, False)
        assert [(each.name, each.value, each.source) for each in config.synonyms] == [
            (SESSION, "50000", 8),
            ("group.consumer.session.timeout.ms", "45000", 5),
        ]
        assert (await described(broker, (OF_GROUP, "other"), SESSION)).value == "45000"
        assert await alter(broker, (G, [(SESSION, DELETE, None)])) == [(0, None)]
        assert own(broker) == {}
        assert (await described(broker, G, SESSION)).config_source == 5

    administer(story)


def test_replacing_a_groups_settings_drops_unnamed_settings() -> None:
    async def story(broker: AdministeredBroker) -> None:
        assert await replace(broker, G, (SESSION, "50000"), (HEARTBEAT, "6000")) == 0
        assert await replace(broker, G, (HEARTBEAT, "7000")) == 0
        assert own(broker) == {HEARTBEAT: "7000"}
        assert await replace(broker, G, (HEARTBEAT, "8000"), check=True) == 0
        assert own(broker) == {HEARTBEAT: "7000"}
        assert await replace(broker, G) == 0
        assert own(broker) == {}

    administer(story)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([(SESSION, SET, "44999")], f"{SESSION} must be greater than or equal to group.consumer"),
        ([(SESSION, SET, "60001")], f"{SESSION} must be less than or equal to group.consumer"),
        ([(HEARTBEAT, SET, "4999")], f"{HEARTBEAT} must be greater than or equal to"),
        ([(HEARTBEAT, SET, "15001")], f"{HEARTBEAT} must be less than or equal to"),
        ([(SESSION, SET, "0")], "at least 1"),
        ([(SESSION, SET, "soon")], "32-bit integer"),
        ([("share.session.timeout.ms", SET, "50000")], "share.session.timeout.ms"),
        ([("retention.ms", SET, "50000")], "retention.ms"),
        ([(SESSION, SET, "50000"), (HEARTBEAT, SET, "1")], HEARTBEAT),
    ],
)
def test_invalid_settings_of_a_group_are_refused_by_name(changes: list[Change], why: str) -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t"))
        good: list[Change] = [("retention.ms", SET, "5")]
        (code, message), of_topic = await alter(broker, (G, changes), ((2, "t"), good))
        assert code == ErrorCode.INVALID_CONFIG
        assert why in (message or "")
        assert of_topic == (0, None)
        assert own(broker) == {}
        named = [(name, value) for name, _, value in changes]
        assert await replace(broker, G, *named) == ErrorCode.INVALID_CONFIG

    administer(story)


def test_a_session_must_outlast_a_heartbeat_even_if_one_setting_is_the_brokers() -> None:
    async def story(broker: AdministeredBroker) -> None:
        ((code, message),) = await alter(broker, (G, [(SESSION, SET, "9000")]))
        assert code == ErrorCode.INVALID_CONFIG
        assert f"{SESSION} (9000) must be greater than {HEARTBEAT} (9000)" in (message or "")
        assert await alter(broker, (G, [(SESSION, SET, "9001")])) == [(0, None)]

    # The broker's own heartbeat interval lies outside of the bounds for groups.
    administer(
        story,
        group_consumer_heartbeat_interval_ms=9000,
        group_consumer_max_heartbeat_interval_ms=8000,
        group_consumer_min_session_timeout_ms=1000,
    )


def test_a_group_with_a_long_name_keeps_the_brokers_settings() -> None:
    async def story(broker: AdministeredBroker) -> None:
        long, longest = (OF_GROUP, "ä" * 513), (OF_GROUP, "ä" * 512)
        ((code, message),) = await alter(broker, (long, [(SESSION, SET, "50000")]))
        assert code == ErrorCode.INVALID_CONFIG
        assert "at most 1024 bytes; this one has 1026" in (message or "")
        assert (await described(broker, long, SESSION)).value == "45000"
        assert await alter(broker, (longest, [(SESSION, SET, "50000")])) == [(0, None)]

    administer(story)


def test_settings_of_all_groups_together_are_refused() -> None:
    async def story(broker: AdministeredBroker) -> None:
        everyone = (OF_GROUP, "")
        assert (await describe(broker, everyone)).error_code == ErrorCode.INVALID_REQUEST
        ((code, message),) = await alter(broker, (everyone, [(SESSION, SET, "50000")]))
        assert code == ErrorCode.INVALID_REQUEST
        assert "must not be empty" in (message or "")

    administer(story)


def test_unknown_stored_settings_disturb_nothing_and_can_be_deleted() -> None:
    async def story(broker: AdministeredBroker) -> None:
        stored = {"future.setting": "1", SESSION: "never", HEARTBEAT: "7000"}
        record = ConfigsChanged(ConfigScope.GROUP, "g", stored)
        await broker.metadata.append(broker.incarnation.epoch, lambda _: (record,))
        assert (await described(broker, G, SESSION)).config_source == 5
        assert (await described(broker, G, HEARTBEAT)).value == "7000"
        gone: list[Change] = [("future.setting", DELETE, None), (SESSION, DELETE, None)]
        assert await alter(broker, (G, gone)) == [(0, None)]
        assert own(broker) == {HEARTBEAT: "7000"}

    administer(story)


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ([OF_GROUP], [(OF_GROUP, "a"), (OF_GROUP, "g")]),
        ([4, 2], [(4, "1"), (2, "t")]),
        ([8, 16], []),
        ([], [(2, "t"), (4, "1"), (OF_GROUP, "a"), (OF_GROUP, "g")]),
    ],
)
def test_resources_with_settings_are_listed(
    types: list[int], expected: list[tuple[int, str]]
) -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t"))
        for name in ("g", "a", "gone"):
            assert await replace(broker, (OF_GROUP, name), (SESSION, "50000")) == 0
        assert await replace(broker, (OF_GROUP, "gone")) == 0
        request = ListConfigResourcesRequest(resource_types=types)
        answer = await broker.ask(list_config_resources, request, 1)
        assert answer.error_code == 0
        found = [(each.resource_type, each.resource_name) for each in answer.config_resources]
        assert found == expected
        # The first version asks for client metrics, and Tidelog has none.
        before = await broker.ask(list_config_resources, ListConfigResourcesRequest(), 0)
        assert (before.error_code, before.config_resources) == (0, [])

    administer(story)


def test_a_type_of_resource_that_does_not_exist_is_refused() -> None:
    async def story(broker: AdministeredBroker) -> None:
        request = ListConfigResourcesRequest(resource_types=[OF_GROUP, 3])
        answer = await broker.ask(list_config_resources, request, 1)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION

    administer(story)


def test_members_are_told_with_their_next_heartbeat_and_by_a_successor() -> None:
    async def story() -> None:
        bucket = world()
        async with bucket.broker(politely=False) as broker:
            await broker.create_topic()
            await find(broker)
            assert (await join(broker)).heartbeat_interval_ms == 5000
            change = IncrementalAlterConfigsResource(
                resource_type=OF_GROUP,
                resource_name=GROUP,
                configs=[
                    IncrementalAlterableConfig(name=HEARTBEAT, config_operation=SET, value="9000")
                ],
            )
            request = IncrementalAlterConfigsRequest(resources=[change])
            altered = await ask(broker, incremental_alter_configs, request, 1)
            assert altered.responses[0].error_code == 0
            assert (await beat(broker, "m", 1)).heartbeat_interval_ms == 9000
        async with bucket.broker() as broker:
            await ready(broker)
            assert (await beat(broker, "m", 1)).heartbeat_interval_ms == 9000

    run(story)
