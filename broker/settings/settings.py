"""A broker's and a topic's effective settings: the precedence of their sources.

Broker settings have layers: those altered at run time (for this broker, then for all brokers),
those given at the start (flag, then environment, then file), the defaults. A topic's own settings
override its broker synonyms (`log.retention.ms`, `log.retention.hours`, ...).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from itertools import chain
from types import MappingProxyType
from typing import Final

from tidelog.broker.settings.kafkas_own import remedy_of_kafkas
from tidelog.broker.settings.kinds import (
    InvalidValue,
    Scope,
    Setting,
    SettingType,
    SettingValue,
    format_value,
)
from tidelog.broker.settings.tables.authorization import AUTHORIZATION_SETTINGS
from tidelog.broker.settings.tables.brokers import (
    CLUSTER_SETTINGS,
    REPLICATION_SETTINGS,
    SERVER_SETTINGS,
)
from tidelog.broker.settings.tables.groups import GROUP_SETTINGS, OFFSETS_SETTINGS
from tidelog.broker.settings.tables.http import HTTP_SETTINGS
from tidelog.broker.settings.tables.limits import LIMIT_SETTINGS
from tidelog.broker.settings.tables.listeners import LISTENER_SETTINGS
from tidelog.broker.settings.tables.logs import TOPIC_DEFAULT_SETTINGS
from tidelog.broker.settings.tables.own import OWN_SETTINGS
from tidelog.broker.settings.tables.producers import PRODUCER_SETTINGS
from tidelog.broker.settings.tables.quotas import QUOTA_SETTINGS
from tidelog.broker.settings.tables.security import (
    AUTHENTICATION_SETTINGS,
    SASL_MECHANISMS,
    TLS_SETTINGS,
)
from tidelog.broker.settings.tables.topics import TOPIC_SETTINGS
from tidelog.errors import InvalidConfiguration

BROKER_TABLE: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        setting.name: setting
        for setting in chain(
            SERVER_SETTINGS,
            LISTENER_SETTINGS,
            TLS_SETTINGS,
            AUTHENTICATION_SETTINGS,
            HTTP_SETTINGS,
            TOPIC_DEFAULT_SETTINGS,
            (setting for setting in TOPIC_SETTINGS if setting.scope is Scope.BOTH),
            REPLICATION_SETTINGS,
            CLUSTER_SETTINGS,
            AUTHORIZATION_SETTINGS,
            QUOTA_SETTINGS,
            PRODUCER_SETTINGS,
            GROUP_SETTINGS,
            OFFSETS_SETTINGS,
            OWN_SETTINGS,
            LIMIT_SETTINGS,
        )
    }
)
TOPIC_TABLE: Final[Mapping[str, Setting]] = MappingProxyType(
    {setting.name: setting for setting in TOPIC_SETTINGS}
)
_SYNONYM_GROUPS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        synonym.name: tuple(other.name for other in setting.synonyms)
        for setting in TOPIC_SETTINGS
        for synonym in setting.synonyms
    }
)


LISTENER_PREFIX: Final = "listener.name."
_MECHANISMS: Final = frozenset({name.lower() for name in SASL_MECHANISMS})


class SettingSource(IntEnum):
    """The source of a value. The numbers are those of DescribeConfigs (KIP-226)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One possible source of a setting's value."""

    name: str
    value: str | None
    source: SettingSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting as DescribeConfigs reports it; the synonyms in order of precedence."""

    setting: Setting
    value: str | None
    source: SettingSource
    read_only: bool
    synonyms: tuple[ConfigSynonym, ...]


class TypedValues(Mapping[str, SettingValue]):
    """Values by setting name.

    The typed getters raise KeyError for an unknown name, and TypeError for a setting of another
    type or without a value.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, SettingValue]) -> None:
        self._values = MappingProxyType(dict(values))

    def __getitem__(self, name: str) -> SettingValue:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def integer(self, name: str) -> int:
        """The value of a setting of type int, short or long."""
        value = self._values[name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"setting {name} is not an integer: {value!r}")
        return value

    def number(self, name: str) -> float:
        """The value of a setting of any numeric type."""
        value = self._values[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"setting {name} is not a number: {value!r}")
        return value

    def boolean(self, name: str) -> bool:
        """The value of a setting of type boolean."""
        value = self._values[name]
        if not isinstance(value, bool):
            raise TypeError(f"setting {name} is not a boolean: {value!r}")
        return value

    def optional_text(self, name: str) -> str | None:
        """The value of a setting of type string that may be unset; None if it is unset or empty."""
        return None if self._values[name] is None else self.text(name) or None

    def text(self, name: str) -> str:
        """The value of a setting of type string."""
        value = self._values[name]
        if not isinstance(value, str):
            raise TypeError(f"setting {name} is not a text: {value!r}")
        return value

    def items_of(self, name: str) -> tuple[str, ...]:
        """The value of a setting of type list; empty if it has none."""
        value = self._values[name]
        if value is None:
            return ()
        if not isinstance(value, tuple):
            raise TypeError(f"setting {name} is not a list: {value!r}")
        return value


@dataclass(frozen=True, slots=True)
class _Layer:
    source: SettingSource
    values: Mapping[str, SettingValue]


class BrokerSettings(TypedValues):
    """All broker settings, immutable. `overridden` adds altered settings on top."""

    __slots__ = ("_layers", "_topic_defaults", "origins", "rereads")

    def __init__(
        self,
        static: Mapping[str, SettingValue] | None = None,
        *,
        dynamic_default: Mapping[str, SettingValue] | None = None,
        dynamic_broker: Mapping[str, SettingValue] | None = None,
        origins: Mapping[str, str] | None = None,
        rereads: Mapping[str, Callable[[], str]] | None = None,
    ) -> None:
        """The values must be parsed already."""
        self._layers = (
            _Layer(SettingSource.DYNAMIC_BROKER, dynamic_broker or {}),
            _Layer(SettingSource.DYNAMIC_DEFAULT_BROKER, dynamic_default or {}),
            _Layer(SettingSource.STATIC_BROKER, static or {}),
        )
        self.origins: Mapping[str, str] = MappingProxyType(dict(origins or {}))
        """The source of each setting given at the start: "flag", "environment X" or "file Y"."""
        self.rereads: Mapping[str, Callable[[], str]] = MappingProxyType(dict(rereads or {}))
        """For each setting that refers to a file (`${file:PATH:KEY}`): reads its present text.

        Raises InvalidConfiguration."""
        values = {name: setting.default for name, setting in BROKER_TABLE.items()}
        for layer in reversed(self._layers):
            values.update(layer.values)
        super().__init__(values)
        self._topic_defaults: Mapping[str, SettingValue] | None = None

    @classmethod
    def of(cls, **named: object) -> BrokerSettings:
        """Settings by keyword, dots as underscores: `BrokerSettings.of(num_partitions=3)`."""
        names = {name.replace(".", "_"): name for name in BROKER_TABLE}
        names |= {key: key for key in named if key.startswith(LISTENER_PREFIX)}
        unknown = sorted(set(named) - set(names))
        if unknown:
            raise InvalidConfiguration(f"unknown setting {unknown[0].replace('_', '.')}")
        given = {names[key]: value for key, value in named.items()}
        parsed = {name: parse_broker_setting(name, raw, "argument") for name, raw in given.items()}
        check_together(parsed)
        return cls(parsed, origins=dict.fromkeys(parsed, "argument"))

    def at_listener(self, listener: str) -> TypedValues:
        """The values that hold for a listener: its own, else the broker's."""
        prefix = f"{LISTENER_PREFIX}{listener.lower()}."
        own = {
            name.removeprefix(prefix): value
            for name, value in self.items()
            if name.startswith(prefix)
        }
        return TypedValues({**self, **own})

    def overridden(
        self, dynamic_default: Mapping[str, str], dynamic_broker: Mapping[str, str]
    ) -> BrokerSettings:
        """These settings, overridden by those altered for all brokers and for this one.

        Altered settings that this version does not know or would refuse are left out: another
        version has accepted them, and a broker must start with them.
        """
        return BrokerSettings(
            self._layers[2].values,
            dynamic_default=parse_stored(dynamic_default, BROKER_TABLE),
            dynamic_broker=parse_stored(dynamic_broker, BROKER_TABLE),
            origins=self.origins,
            rereads=self.rereads,
        )

    def entry(self, name: str) -> ConfigEntry:
        """The setting as DescribeConfigs reports it for a broker. KeyError for any other name."""
        setting = BROKER_TABLE[name]
        synonyms = self.synonyms(_SYNONYM_GROUPS.get(name, (name,)))
        return ConfigEntry(
            setting,
            format_value(self[name]),
            synonyms[0].source if synonyms else SettingSource.DEFAULT,
            not setting.dynamic,
            synonyms,
        )

    def default_entries(self) -> tuple[ConfigEntry, ...]:
        """The settings altered for all brokers, as DescribeConfigs reports them for broker ""."""
        entries = []
        for name, value in self._layers[1].values.items():
            text = format_value(value)
            synonym = ConfigSynonym(name, text, SettingSource.DYNAMIC_DEFAULT_BROKER)
            entries.append(ConfigEntry(BROKER_TABLE[name], text, synonym.source, False, (synonym,)))
        return tuple(entries)

    def topic_defaults(self) -> Mapping[str, SettingValue]:
        """The values of a topic without own settings."""
        if self._topic_defaults is None:
            self._topic_defaults = MappingProxyType(
                {name: _inherited(setting, self) for name, setting in TOPIC_TABLE.items()}
            )
        return self._topic_defaults

    def synonyms(self, names: Iterable[str]) -> tuple[ConfigSynonym, ...]:
        """The values of these names, layer by layer, then their defaults."""
        names = tuple(names)
        defaults = {name: BROKER_TABLE[name].default for name in names}
        layers = (*self._layers, _Layer(SettingSource.DEFAULT, defaults))
        return tuple(
            ConfigSynonym(name, format_value(layer.values[name]), layer.source)
            for layer in layers
            for name in names
            if layer.values.get(name) is not None
        )


class TopicConfig(TypedValues):
    """The effective settings of a topic: its own, else the broker's. Immutable."""

    __slots__ = ("_broker", "_overrides")

    def __init__(self, overrides: Mapping[str, str], broker: BrokerSettings) -> None:
        self._broker = broker
        self._overrides = parse_stored(overrides, TOPIC_TABLE)
        super().__init__({**broker.topic_defaults(), **self._overrides})

    def entry(self, name: str) -> ConfigEntry:
        """The setting as DescribeConfigs reports it. KeyError for any other name."""
        setting = TOPIC_TABLE[name]
        value = format_value(self[name])
        synonyms = self._broker.synonyms(synonym.name for synonym in setting.synonyms)
        if name in self._overrides:
            synonyms = (ConfigSynonym(name, value, SettingSource.TOPIC), *synonyms)
        source = synonyms[0].source if synonyms else SettingSource.DEFAULT
        return ConfigEntry(setting, value, source, False, synonyms)


def effective_topic_config(overrides: Mapping[str, str], broker: BrokerSettings) -> TopicConfig:
    """The effective settings of a topic with these own settings.

    `broker` must include altered broker settings; build it once for each state of the metadata.
    """
    return TopicConfig(overrides, broker)


def _inherited(setting: Setting, broker: BrokerSettings) -> SettingValue:
    by_name = {synonym.name: synonym for synonym in setting.synonyms}
    found = broker.synonyms(by_name)
    if not found:
        return setting.default
    synonym = by_name[found[0].name]
    return synonym.in_topic_unit(BROKER_TABLE[synonym.name].parse(found[0].value))


def parse_stored(texts: Mapping[str, str], table: Mapping[str, Setting]) -> dict[str, SettingValue]:
    """The values of settings that are stored in the bucket.

    Values that this version does not know or would refuse are left out: another version has
    accepted them.
    """
    values = {}
    for name, text in texts.items():
        setting = table.get(name)
        if setting is None:
            continue
        try:
            values[name] = setting.parse(text)
        except InvalidValue:
            continue
    return values


def parse_broker_setting(name: str, raw: object, origin: str, shown: object = None) -> SettingValue:
    """The value of a broker setting. InvalidConfiguration names setting, source and remedy.

    `shown`: a text that messages show in the place of the value.
    """
    setting = _setting_of(name)
    if setting is None:
        remedy = "it is a setting of topics"
        if name in BROKER_TABLE:
            remedy = f"give it for a listener and a mechanism, as listener.name.x.plain.{name}"
        elif name not in TOPIC_TABLE:
            remedy = remedy_of_kafkas(name) or suggested_setting(name, BROKER_TABLE)
        raise InvalidConfiguration(f"unknown setting {name} ({origin}): {remedy}")
    try:
        return setting.parse(raw)
    except InvalidValue as error:
        if setting.kind is SettingType.PASSWORD:
            told = "[hidden]"
        else:
            told = repr(raw if shown is None else shown)
        raise InvalidConfiguration(f"{name} = {told} ({origin}): {error}") from None


def _setting_of(name: str) -> Setting | None:
    """The setting of this name.

    For `listener.name.NAME.SETTING` and `listener.name.NAME.MECHANISM.SETTING` that of the last
    part.
    """
    if not name.startswith(LISTENER_PREFIX):
        setting = BROKER_TABLE.get(name)
        return None if setting is None or setting.per_mechanism else setting
    _, _, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
    mechanism, _, last = rest.partition(".")
    if mechanism in _MECHANISMS:
        setting = BROKER_TABLE.get(last)
        return setting if setting is not None and setting.per_mechanism else None
    setting = BROKER_TABLE.get(rest)
    return setting if setting is not None and setting.per_listener else None


def suggested_setting(name: str, known: Iterable[str]) -> str:
    """The known name closest to a mistyped one; if none is close, the page with all names."""
    close = get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]}?" if close else "docs/CONFIGURATION.md lists all settings"


def check_topic_configs(
    overrides: Mapping[str, str], broker: BrokerSettings, changed: Iterable[str] | None = None
) -> None:
    """Raise InvalidConfiguration, with the reason, for settings that a topic may not have.

    With `changed`, the other settings exist already: another version may have accepted them.
    """
    for name in overrides if changed is None else changed:
        setting = TOPIC_TABLE.get(name)
        if setting is None:
            remedy = suggested_setting(name, TOPIC_TABLE)
            raise InvalidConfiguration(f"unknown topic setting {name}: {remedy}")
        try:
            setting.parse(overrides[name])
        except InvalidValue as error:
            raise InvalidConfiguration(f"{name} = {overrides[name]!r}: {error}") from None
    config = effective_topic_config(overrides, broker)
    shortest = config.integer("min.compaction.lag.ms")
    longest = config.integer("max.compaction.lag.ms")
    if shortest > longest:
        raise InvalidConfiguration(
            f"min.compaction.lag.ms ({shortest}) is above max.compaction.lag.ms ({longest})"
        )


def check_dynamic_broker_configs(overrides: Mapping[str, str]) -> None:
    """Raise InvalidConfiguration for settings that a running broker does not take."""
    for name, text in overrides.items():
        parse_broker_setting(name, text, "dynamic")
        if name not in BROKER_TABLE or not BROKER_TABLE[name].dynamic:
            raise InvalidConfiguration(f"{name} cannot be altered while the broker runs")


def check_together(values: Mapping[str, SettingValue]) -> None:
    """Check the rules between several of a broker's settings. Raises InvalidConfiguration."""
    settings = BrokerSettings(values)
    heartbeat = settings.integer("broker.heartbeat.interval.ms")
    session = settings.integer("broker.session.timeout.ms")
    if heartbeat * 2 > session:
        raise InvalidConfiguration(
            f"broker.heartbeat.interval.ms ({heartbeat}) must be at most half of "
            f"broker.session.timeout.ms ({session})"
        )
    for less, more in (
        ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
        ("wal.object.max.bytes", "wal.buffer.max.bytes"),
    ):
        if settings.integer(less) > settings.integer(more):
            raise InvalidConfiguration(
                f"{less} ({settings.integer(less)}) must be at most "
                f"{more} ({settings.integer(more)})"
            )
