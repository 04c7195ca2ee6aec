"""Settings of single groups (`kafka-configs --entity-type groups`), and their rules. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from tidelog.broker.settings.kinds import InvalidValue, Setting, format_value
from tidelog.broker.settings.settings import (
    BrokerSettings,
    ConfigEntry,
    ConfigSynonym,
    SettingSource,
    TypedValues,
    parse_stored,
)
from tidelog.broker.settings.tables.groups import OF_GROUP_SETTINGS
from tidelog.coordinator.cluster.state.setting_transitions import GROUP_NAME_BYTES_MAX
from tidelog.coordinator.group.settings import ConsumerTimeouts
from tidelog.errors import InvalidConfiguration

GROUP_TABLE: Final[Mapping[str, Setting]] = MappingProxyType(
    {setting.name: setting for setting in OF_GROUP_SETTINGS}
)
_SESSION, _HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
_BOUNDS: Final = (
    (
        _HEARTBEAT,
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    (_SESSION, "group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
)


class GroupConfig(TypedValues):
    """The effective settings of a group: its own, else the broker's. Immutable."""

    __slots__ = ("_broker", "_overrides")

    def __init__(self, overrides: Mapping[str, str], broker: BrokerSettings) -> None:
        self._broker = broker
        self._overrides = parse_stored(overrides, GROUP_TABLE)
        inherited = {name: broker[each.synonyms[0].name] for name, each in GROUP_TABLE.items()}
        super().__init__({**inherited, **self._overrides})

    def entry(self, name: str) -> ConfigEntry:
        """The setting as DescribeConfigs reports it. KeyError for any other name."""
        setting = GROUP_TABLE[name]
        value = format_value(self[name])
        synonyms = self._broker.synonyms(synonym.name for synonym in setting.synonyms)
        if name in self._overrides:
            synonyms = (ConfigSynonym(name, value, SettingSource.GROUP), *synonyms)
        return ConfigEntry(setting, value, synonyms[0].source, False, synonyms)

    @property
    def consumer_timeouts(self) -> ConsumerTimeouts:
        """The timeouts of the group's members with the consumer protocol."""
        return ConsumerTimeouts(self.integer(_SESSION), self.integer(_HEARTBEAT))


def check_group_name(name: str) -> None:
    """Raise InvalidConfiguration if a group's name is too long for settings of its own."""
    size = len(name.encode())
    if size > GROUP_NAME_BYTES_MAX:
        raise InvalidConfiguration(
            f"a group with settings of its own has a name of at most {GROUP_NAME_BYTES_MAX} bytes;"
            f" this one has {size}"
        )


def check_group_configs(
    overrides: Mapping[str, str], broker: BrokerSettings, changed: Iterable[str]
) -> None:
    """Raise InvalidConfiguration, with Kafka's message, for settings that a group may not have.

    Settings that are not `changed` exist already: another version may have accepted their names.
    """
    for name in changed:
        setting = GROUP_TABLE.get(name)
        if setting is None:
            raise InvalidConfiguration(
                f"Unknown group config name: {name}; groups have {', '.join(GROUP_TABLE)}"
            )
        try:
            setting.parse(overrides[name])
        except InvalidValue as error:
            raise InvalidConfiguration(f"{name} = {overrides[name]!r}: {error}") from None
    config = GroupConfig(overrides, broker)
    for name, low, high in _BOUNDS:
        # The bounds do not hold for the broker's own values, so inherited ones are not checked.
        if name not in overrides:
            continue
        for is_within, words, bound in (
            (config.integer(name) >= broker.integer(low), "greater", low),
            (config.integer(name) <= broker.integer(high), "less", high),
        ):
            if not is_within:
                raise InvalidConfiguration(
                    f"{name} must be {words} than or equal to {bound} ({broker.integer(bound)})"
                )
    if overrides and config.integer(_SESSION) <= config.integer(_HEARTBEAT):
        raise InvalidConfiguration(
            f"{_SESSION} ({config.integer(_SESSION)}) must be greater than"
            f" {_HEARTBEAT} ({config.integer(_HEARTBEAT)})"
        )
