"""Changes of the settings of topics, brokers and groups, as new overrides. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

from tidelog.broker.settings.group_config import GROUP_TABLE, check_group_configs, check_group_name
from tidelog.broker.settings.kinds import Setting, SettingType
from tidelog.broker.settings.settings import (
    BROKER_TABLE,
    TOPIC_TABLE,
    BrokerSettings,
    check_dynamic_broker_configs,
    check_topic_configs,
    effective_topic_config,
    suggested_setting,
)
from tidelog.coordinator.cluster.records.records import ConfigsChanged, ConfigScope
from tidelog.coordinator.cluster.records.topics import topic_name_fault
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import InvalidConfiguration, TidelogError
from tidelog.identifiers import BrokerId
from tidelog.protocol.error_codes import ErrorCode


class ConfigResourceType(IntEnum):
    """The types of resources with settings, by Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigOperation(IntEnum):
    """The operations of IncrementalAlterConfigs (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigRefused(TidelogError):
    """The resource keeps its settings; `code` is Kafka's error."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


_TABLES: Mapping[ConfigScope, Mapping[str, Setting]] = {
    ConfigScope.TOPIC: TOPIC_TABLE,
    ConfigScope.GROUP: GROUP_TABLE,
}
"""The table of a type's settings; BROKER_TABLE for all other types."""


@dataclass(frozen=True, slots=True)
class ConfiguredResource:
    """A topic, a broker or a group in the metadata log."""

    scope: ConfigScope
    name: str
    """The name in the log: a topic's id, a broker's id, a group's id, or nothing."""

    @property
    def table(self) -> Mapping[str, Setting]:
        """The settings that it may have."""
        return _TABLES.get(self.scope, BROKER_TABLE)

    @property
    def kind(self) -> str:
        """The type in a word: "broker" also for all brokers together."""
        return self.scope if self.scope in _TABLES else ConfigScope.BROKER


@dataclass(frozen=True, slots=True)
class Change:
    """One step of an incremental change. DELETE has no value."""

    name: str
    operation: int
    value: str | None


def find_resource(
    state: ClusterState, resource_type: int, name: str, broker_id: BrokerId
) -> ConfiguredResource:
    """The resource that a request names. Raises ConfigRefused.

    A broker answers only for itself, and for the defaults of all brokers, whose name is empty.
    """
    if resource_type == ConfigResourceType.TOPIC:
        if fault := topic_name_fault(name):
            raise ConfigRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        topic = state.topic_named(name)
        if topic is None:
            raise ConfigRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        return ConfiguredResource(ConfigScope.TOPIC, str(topic.topic_id))
    if resource_type == ConfigResourceType.BROKER:
        if name == "":
            return ConfiguredResource(ConfigScope.CLUSTER, "")
        if name != str(broker_id):
            raise ConfigRefused(
                ErrorCode.INVALID_REQUEST, f"this is broker {broker_id}, not {name[:20]!r}"
            )
        return ConfiguredResource(ConfigScope.BROKER, name)
    if resource_type == ConfigResourceType.GROUP:
        if name == "":
            raise ConfigRefused(
                ErrorCode.INVALID_REQUEST,
                "Group name must not be empty: the defaults of all groups are the brokers'"
                " group.consumer settings",
            )
        return ConfiguredResource(ConfigScope.GROUP, name)
    raise ConfigRefused(
        ErrorCode.INVALID_REQUEST,
        f"resources of type {resource_type} have no settings; topics (2), brokers (4) and groups"
        " (32) have",
    )


def replaced(
    state: ClusterState,
    resource: ConfiguredResource,
    configs: Sequence[tuple[str, str | None]],
    settings: BrokerSettings,
) -> ConfigsChanged:
    """The record that gives the resource exactly these settings. Raises ConfigRefused."""
    _check_names([name for name, _ in configs])
    overrides = {name: value for name, value in configs if value is not None}
    if len(overrides) != len(configs):
        raise ConfigRefused(ErrorCode.INVALID_REQUEST, "a setting has no value")
    before = state.configs(resource.scope, resource.name)
    changed = [name for name, value in overrides.items() if before.get(name) != value]
    _check(resource, overrides, changed, settings)
    return ConfigsChanged(resource.scope, resource.name, overrides)


def incremented(
    state: ClusterState,
    resource: ConfiguredResource,
    changes: Sequence[Change],
    settings: BrokerSettings,
) -> ConfigsChanged:
    """The record that changes single settings of the resource. Raises ConfigRefused."""
    _check_names([change.name for change in changes])
    overrides = dict(state.configs(resource.scope, resource.name))
    for change in changes:
        value = _applied(resource, overrides, change, settings)
        if value is None:
            overrides.pop(change.name, None)
        else:
            overrides[change.name] = value
    changed = [change.name for change in changes if change.name in overrides]
    _check(resource, overrides, changed, settings)
    return ConfigsChanged(resource.scope, resource.name, overrides)


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise ConfigRefused(ErrorCode.INVALID_REQUEST, "the request names a setting twice")


def _applied(
    resource: ConfiguredResource,
    overrides: Mapping[str, str],
    change: Change,
    settings: BrokerSettings,
) -> str | None:
    """The setting's new value; None if it returns to its default."""
    setting = resource.table.get(change.name)
    if setting is None and not (
        change.operation == ConfigOperation.DELETE and change.name in overrides
    ):
        raise ConfigRefused(
            ErrorCode.INVALID_CONFIG,
            f"unknown {resource.kind} setting {change.name}:"
            f" {suggested_setting(change.name, resource.table)}",
        )
    if change.operation == ConfigOperation.DELETE:
        return None
    if change.value is None:
        raise ConfigRefused(ErrorCode.INVALID_REQUEST, f"{change.name} has no value")
    if change.operation == ConfigOperation.SET:
        return change.value
    if change.operation not in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        raise ConfigRefused(
            ErrorCode.INVALID_REQUEST, f"there is no operation {change.operation} on settings"
        )
    assert setting is not None
    if setting.kind is not SettingType.LIST:
        raise ConfigRefused(
            ErrorCode.INVALID_CONFIG,
            f"{change.name} is not a list, so nothing can be appended or subtracted",
        )
    items = _items(overrides.get(change.name, _inherited(resource, change.name, settings)))
    given = _items(change.value)
    if change.operation == ConfigOperation.APPEND:
        items += [item for item in dict.fromkeys(given) if item not in items]
    else:
        items = [item for item in items if item not in given]
    return ",".join(items)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _inherited(resource: ConfiguredResource, name: str, settings: BrokerSettings) -> str:
    """The inherited value of a list setting; groups have no list settings."""
    entry = (
        effective_topic_config({}, settings).entry(name)
        if resource.scope is ConfigScope.TOPIC
        else settings.entry(name)
    )
    return entry.value or ""


def _check(
    resource: ConfiguredResource,
    overrides: Mapping[str, str],
    changed: Sequence[str],
    settings: BrokerSettings,
) -> None:
    try:
        if resource.scope is ConfigScope.TOPIC:
            check_topic_configs(overrides, settings, changed)
        elif resource.scope is ConfigScope.GROUP:
            check_group_name(resource.name)
            check_group_configs(overrides, settings, changed)
        else:
            check_dynamic_broker_configs({name: overrides[name] for name in changed})
    except InvalidConfiguration as error:
        raise ConfigRefused(ErrorCode.INVALID_CONFIG, str(error)) from error


def topic_id_of(resource: ConfiguredResource) -> UUID:
    """The id of a topic resource."""
    return UUID(resource.name)
