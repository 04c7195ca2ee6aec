"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.administered import AdministeredBroker, administer, new_broker
from tests.unit.broker.handlers.test_topics import create, topic
from tidelog.broker.handlers.configs.configs import (
    alter_configs,
    describe_configs,
    incremental_alter_configs,
)
from tidelog.broker.settings.settings import BROKER_TABLE, TOPIC_TABLE, parse_broker_setting
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.records import ConfigsChanged, ConfigScope
from tidelog.errors import InvalidConfiguration
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from tidelog.storage.stores.memory import MemoryStore

TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)
Resource = tuple[int, str]
Change = tuple[str, int, str | None]


async def describe(
    broker: AdministeredBroker,
    resource: Resource,
    *keys: str,
    version: int = 4,
    synonyms: bool = False,
    documentation: bool = False,
) -> DescribeConfigsResult:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=resource[0],
                resource_name=resource[1],
                configuration_keys=list(keys) or None,
            )
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )
    (result,) = (await broker.ask(describe_configs, request, version)).results
    assert (result.resource_type, result.resource_name) == resource
    return result


async def described(
    broker: AdministeredBroker, resource: Resource, key: str
) -> DescribeConfigsResourceResult:
    result = await describe(broker, resource, key, synonyms=True, documentation=True)
    (config,) = result.configs
    return config


async def alter(
    broker: AdministeredBroker,
    *resources: tuple[Resource, list[Change]],
    check: bool = False,
    version: int = 1,
) -> list[tuple[int, str | None]]:
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    IncrementalAlterableConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in changes
                ],
            )
            for (kind, name), changes in resources
        ],
        validate_only=check,
    )
    response = await broker.ask(incremental_alter_configs, request, version)
    asked = [resource for resource, _ in resources]
    assert [(each.resource_type, each.resource_name) for each in response.responses] == asked
    return [(each.error_code, each.error_message) for each in response.responses]


async def replace(
    broker: AdministeredBroker,
    resource: Resource,
    *configs: tuple[str, str | None],
    check: bool = False,
    version: int = 2,
) -> int:
    request = AlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=resource[0],
                resource_name=resource[1],
                configs=[AlterableConfig(name=key, value=value) for key, value in configs],
            )
        ],
        validate_only=check,
    )
    (response,) = (await broker.ask(alter_configs, request, version)).responses
    return response.error_code


def test_kafkas_facts_about_a_broker_are_described_and_cannot_be_set() -> None:
    async def story(broker: AdministeredBroker) -> None:
        told = {each.name: each for each in (await describe(broker, (BROKER, "1"))).configs}
        expected = {
            "advertised.listeners": "PLAINTEXT://host:9092",
            "listeners": "PLAINTEXT://[::]:9092",
            "inter.broker.listener.name": None,
            "node.id": "1",
            "broker.id": "1",
            "log.dirs": "memory://",
            "ssl.keystore.password": None,
            "sasl.enabled.mechanisms": "",
            "remote.log.storage.system.enable": "false",
            "quota.window.num": "11",
            "controller.quorum.fetch.timeout.ms": "2000",
        }
        assert {name: told[name].value for name in expected} == expected
        assert all(told[name].read_only for name in expected)
        assert {each.name for each in told.values() if each.is_sensitive} == {
            "delegation.token.secret.key",
            "http.bearer.token",
            "http.ssl.key.password",
            "sasl.jaas.config",
            "ssl.key.password",
            "ssl.keystore.certificate.chain",
            "ssl.keystore.key",
            "ssl.keystore.password",
            "ssl.truststore.certificates",
            "ssl.truststore.password",
        }
        one = await describe(broker, (BROKER, "1"), "advertised.listeners", "num.partitions")
        assert {each.name for each in one.configs} == {"advertised.listeners", "num.partitions"}
        for name in ("node.id", "ssl.keystore.password"):
            with pytest.raises(InvalidConfiguration, match=f"unknown setting {name}"):
                parse_broker_setting(name, "x", "flag")

    administer(story)


@pytest.mark.parametrize("at", ["start", "all brokers", "broker", "topic"])
def test_the_replicas_that_must_be_in_sync_are_told_as_they_are_set(at: str) -> None:
    """The settings have no effect, but the broker reports the values that an operator has set."""
    settings = {"min_insync_replicas": 2} if at == "start" else {}

    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t"))
        places = {"all brokers": (BROKER, ""), "broker": (BROKER, "1"), "topic": (TOPIC, "t")}
        if at in places:
            change: Change = ("min.insync.replicas", SET, "2")
            assert await alter(broker, (places[at], [change])) == [(0, None)]
        of_topic = await describe(broker, (TOPIC, "t"), "min.insync.replicas")
        assert [each.value for each in of_topic.configs] == ["2"]
        of_broker = await describe(broker, (BROKER, "1"), "min.insync.replicas")
        assert [each.value for each in of_broker.configs] == ["1" if at == "topic" else "2"]

    administer(story, **settings)


@pytest.mark.parametrize("version", range(1, 5))
def test_everything_about_a_topic_or_a_broker(version: int) -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t"))
        of_topic = await describe(broker, (TOPIC, "t"), version=version)
        assert {each.name for each in of_topic.configs} == set(TOPIC_TABLE)
        of_broker = await describe(broker, (BROKER, "1"), version=version)
        names = [each.name for each in of_broker.configs]
        assert len(names) == len(set(names))
        assert set(names) > set(BROKER_TABLE)
        for config in (*of_topic.configs, *of_broker.configs):
            assert config.synonyms == []
            assert not config.documentation
        assert not any(each.read_only for each in of_topic.configs)

    administer(story)


def test_a_topics_setting_has_its_type_its_synonyms_and_its_documentation() -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t", retention_ms="5"))
        config = await described(broker, (TOPIC, "t"), "retention.ms")
        assert (config.value, config.config_source, config.config_type) == ("5", 1, 5)
        assert config.documentation == TOPIC_TABLE["retention.ms"].doc
        assert [(each.name, each.value, each.source) for each in config.synonyms] == [
            ("retention.ms", "5", 1),
            ("log.retention.hours", "2", 4),
            ("log.retention.hours", "168", 5),
        ]
        inherited = await described(broker, (TOPIC, "t"), "segment.ms")
        assert (inherited.value, inherited.config_source) == ("604800000", 5)

    administer(story, log_retention_hours=2)


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        ((TOPIC, "missing"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ((TOPIC, "not valid"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        ((TOPIC, ""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        ((BROKER, "2"), ErrorCode.INVALID_REQUEST),
        ((BROKER, "one"), ErrorCode.INVALID_REQUEST),
        ((LOGGER, "1"), ErrorCode.INVALID_REQUEST),
        ((99, "x"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_resource_without_settings_is_refused_everywhere(
    resource: Resource, code: ErrorCode
) -> None:
    async def story(broker: AdministeredBroker) -> None:
        result = await describe(broker, resource)
        assert (result.error_code, result.configs) == (code, [])
        assert result.error_message
        ((altered, message),) = await alter(broker, (resource, [("retention.ms", SET, "1")]))
        assert altered == code
        assert message
        assert await replace(broker, resource, ("retention.ms", "1")) == code

    administer(story)


def test_unknown_keys_are_passed_over() -> None:
    async def story(broker: AdministeredBroker) -> None:
        result = await describe(broker, (BROKER, "1"), "num.partitions", "no.such.setting")
        assert [each.name for each in result.configs] == ["num.partitions"]
        assert result.configs[0].read_only

    administer(story)


@pytest.mark.parametrize("version", [0, 1])
def test_settings_are_set_and_deleted_one_by_one(version: int) -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t", retention_ms="5", segment_bytes="2000000"))
        changes: list[Change] = [
            ("retention.ms", SET, "6"),
            ("segment.bytes", DELETE, None),
            ("max.message.bytes", SET, "77"),
            ("flush.ms", DELETE, None),
        ]
        assert await alter(broker, ((TOPIC, "t"), changes), version=version) == [(0, None)]
        assert broker.topic("t").configs == {"retention.ms": "6", "max.message.bytes": "77"}

    administer(story)


@pytest.mark.parametrize(
    ("before", "operation", "value", "after"),
    [
        (None, APPEND, "compact", "delete,compact"),
        ("compact", APPEND, "delete", "compact,delete"),
        ("compact", APPEND, "compact", "compact"),
        ("compact,delete", SUBTRACT, "delete", "compact"),
        ("compact", SUBTRACT, "delete", "compact"),
        (None, SUBTRACT, "delete", ""),
        (None, APPEND, "compact,compact", "delete,compact"),
    ],
)
def test_lists_are_appended_to_and_subtracted_from(
    before: str | None, operation: int, value: str, after: str
) -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t", **({"cleanup_policy": before} if before else {})))
        outcome = await alter(broker, ((TOPIC, "t"), [("cleanup.policy", operation, value)]))
        assert outcome == [(0, None)]
        assert broker.topic("t").configs == {"cleanup.policy": after}

    administer(story)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("no.such", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("no.such", DELETE, None)], ErrorCode.INVALID_CONFIG),
        ([("num.partitions", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("cleanup.policy", APPEND, "shrink")], ErrorCode.INVALID_CONFIG),
        ([("min.compaction.lag.ms", SET, "9999")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", 7, "1")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_change_that_is_refused_changes_nothing_and_stops_no_other(
    changes: list[Change], code: ErrorCode
) -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t", max_compaction_lag_ms="1000"), topic("u"))
        good: list[Change] = [("retention.ms", SET, "5")]
        outcome = await alter(broker, ((TOPIC, "t"), changes), ((TOPIC, "u"), good))
        assert [each for each, _ in outcome] == [code, 0]
        assert outcome[0][1]
        assert broker.topic("t").configs == {"max.compaction.lag.ms": "1000"}
        assert broker.topic("u").configs == {"retention.ms": "5"}

    administer(story)


def test_a_resource_named_twice_is_changed_not_even_once() -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t"))
        change: list[Change] = [("retention.ms", SET, "5")]
        outcome = await alter(broker, ((TOPIC, "t"), change), ((TOPIC, "t"), change))
        assert [each for each, _ in outcome] == [ErrorCode.INVALID_REQUEST] * 2
        assert broker.topic("t").configs == {}

    administer(story)


def test_checking_only_changes_nothing() -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t"))
        before = broker.state.sequence
        outcome = await alter(
            broker,
            ((TOPIC, "t"), [("retention.ms", SET, "5")]),
            ((BROKER, ""), [("message.max.bytes", SET, "-5")]),
            check=True,
        )
        assert [each for each, _ in outcome] == [0, ErrorCode.INVALID_CONFIG]
        assert await replace(broker, (TOPIC, "t"), ("retention.ms", "5"), check=True) == 0
        assert broker.state.sequence == before

    administer(story)


@pytest.mark.parametrize("version", range(3))
def test_replacing_settings_drops_unnamed_settings(version: int) -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t", retention_ms="5", flush_ms="6"))
        resource = (TOPIC, "t")
        assert await replace(broker, resource, ("segment.ms", "7"), version=version) == 0
        assert broker.topic("t").configs == {"segment.ms": "7"}
        for wrong, code in (
            ([("segment.ms", "0")], ErrorCode.INVALID_CONFIG),
            ([("no.such", "0")], ErrorCode.INVALID_CONFIG),
            ([("segment.ms", None)], ErrorCode.INVALID_REQUEST),
            ([("segment.ms", "1"), ("segment.ms", "2")], ErrorCode.INVALID_REQUEST),
        ):
            assert await replace(broker, resource, *wrong, version=version) == code
        assert broker.topic("t").configs == {"segment.ms": "7"}
        assert await replace(broker, resource, version=version) == 0
        assert broker.topic("t").configs == {}

    administer(story)


def test_a_running_broker_takes_dynamic_settings_for_itself_and_for_all() -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t"))
        everywhere: list[Change] = [("message.max.bytes", SET, "1000")]
        here: list[Change] = [("message.max.bytes", SET, "2000")]
        assert await alter(broker, ((BROKER, ""), everywhere)) == [(0, None)]
        assert broker.settings.integer("message.max.bytes") == 1000
        assert await alter(broker, ((BROKER, "1"), here)) == [(0, None)]
        config = await described(broker, (BROKER, "1"), "message.max.bytes")
        assert (config.value, config.config_source, config.read_only) == ("2000", 2, False)
        assert [(each.value, each.source) for each in config.synonyms] == [
            ("2000", 2),
            ("1000", 3),
            ("1048588", 5),
        ]
        of_topic = await described(broker, (TOPIC, "t"), "max.message.bytes")
        assert (of_topic.value, of_topic.config_source) == ("2000", 2)
        defaults = await describe(broker, (BROKER, ""))
        assert [(each.name, each.value, each.config_source) for each in defaults.configs] == [
            ("message.max.bytes", "1000", 3)
        ]
        await alter(
            broker,
            ((BROKER, ""), [("message.max.bytes", DELETE, None)]),
            ((BROKER, "1"), [("message.max.bytes", DELETE, None)]),
        )
        assert broker.settings.integer("message.max.bytes") == 1048588

    administer(story)


@pytest.mark.parametrize(
    "change",
    [
        ("num.partitions", SET, "3"),
        ("retention.ms", SET, "3"),
        ("message.max.bytes", SET, "x"),
        ("wal.linger.ms", SET, "3"),
    ],
)
def test_a_running_broker_takes_no_other_settings(change: Change) -> None:
    async def story(broker: AdministeredBroker) -> None:
        for name in ("", "1"):
            ((code, message),) = await alter(broker, ((BROKER, name), [change]))
            assert code == ErrorCode.INVALID_CONFIG
            assert change[0] in (message or "")

    administer(story)


def test_a_setting_that_only_another_version_knows_can_be_deleted_and_disturbs_nothing() -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t"))
        topic_id = str(broker.topic("t").topic_id)
        record = ConfigsChanged(ConfigScope.TOPIC, topic_id, {"future.setting": "1"})
        await broker.metadata.append(broker.incarnation.epoch, lambda _: (record,))
        resource = (TOPIC, "t")
        assert await alter(broker, (resource, [("retention.ms", SET, "5")])) == [(0, None)]
        assert broker.topic("t").configs == {"future.setting": "1", "retention.ms": "5"}
        assert await alter(broker, (resource, [("future.setting", DELETE, None)])) == [(0, None)]
        assert broker.topic("t").configs == {"retention.ms": "5"}

    administer(story)


def test_changes_of_two_brokers_at_once_both_hold() -> None:
    async def main() -> None:
        store = MemoryStore(SystemClock())
        brokers = [await new_broker(store, 1), await new_broker(store, 2)]
        await create(brokers[1], topic("t"))
        await brokers[0].metadata.refresh()
        await asyncio.gather(
            alter(brokers[0], ((TOPIC, "t"), [("retention.ms", SET, "5")])),
            alter(brokers[1], ((TOPIC, "t"), [("segment.ms", SET, "6")])),
        )
        for broker in brokers:
            await broker.metadata.refresh()
            assert broker.topic("t").configs == {"retention.ms": "5", "segment.ms": "6"}
            await broker.metadata.close()

    asyncio.run(main())


def test_a_fenced_broker_sends_clients_away() -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, topic("t"))
        await broker.end()
        outcome = await alter(
            broker,
            ((TOPIC, "t"), [("retention.ms", SET, "5")]),
            ((TOPIC, "u"), [("retention.ms", SET, "5")]),
        )
        assert outcome[0][0] == ErrorCode.NOT_CONTROLLER
        assert outcome[1][0] in (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NOT_CONTROLLER,
        )

    administer(story)


def test_secrets_are_not_told() -> None:
    async def story(broker: AdministeredBroker) -> None:
        (told,) = (await describe(broker, (BROKER, "1"), "ssl.key.password")).configs
        assert (told.value, told.is_sensitive) == (None, True)
        assert all(each.value is None for each in told.synonyms)

    administer(story, ssl_key_password="hidden")
