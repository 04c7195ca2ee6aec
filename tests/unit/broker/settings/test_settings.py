"""Settings: the tables, the sources of values, and their precedence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.settings.docs import configuration_page
from tidelog.broker.settings.group_config import GROUP_TABLE
from tidelog.broker.settings.kinds import Effect, SettingType, format_value, parse_value
from tidelog.broker.settings.loading import ENVIRONMENT_PREFIX, load_settings
from tidelog.broker.settings.settings import (
    BROKER_TABLE,
    TOPIC_TABLE,
    BrokerSettings,
    ConfigSynonym,
    SettingSource,
    check_dynamic_broker_configs,
    check_topic_configs,
    effective_topic_config,
)
from tidelog.errors import InvalidConfiguration

ROOT = Path(__file__).resolve().parents[4]
ALL_SETTINGS = [*BROKER_TABLE.values(), *TOPIC_TABLE.values(), *GROUP_TABLE.values()]


def load(
    *flags: str, environment: dict[str, str] | None = None, file: Path | None = None
) -> BrokerSettings:
    return load_settings(file=file, environment=environment or {}, flags=flags)


@pytest.mark.parametrize("setting", ALL_SETTINGS, ids=lambda s: f"{s.scope.value}:{s.name}")
def test_every_default_is_a_value_that_the_setting_takes(setting) -> None:
    if setting.default is not None:
        assert setting.parse(format_value(setting.default)) == setting.default
    assert setting.doc.endswith(".")
    for synonym in setting.synonyms:
        assert synonym.name in BROKER_TABLE


@pytest.mark.parametrize("setting", TOPIC_TABLE.values(), ids=lambda setting: setting.name)
def test_a_topic_without_settings_has_the_default_of_each(setting) -> None:
    assert effective_topic_config({}, BrokerSettings())[setting.name] == setting.default


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("message.max.bytes", 1048588),
        ("log.retention.hours", 168),
        ("offsets.topic.num.partitions", 50),
        ("offsets.topic.replication.factor", 3),
        ("transaction.state.log.num.partitions", 50),
        ("transaction.state.log.replication.factor", 3),
        ("transaction.state.log.min.isr", 2),
        ("transaction.state.log.segment.bytes", 104857600),
        ("transaction.max.timeout.ms", 900000),
        ("transactional.id.expiration.ms", 604800000),
        ("transaction.abort.timed.out.transaction.cleanup.interval.ms", 10000),
        ("producer.id.expiration.ms", 86400000),
        ("group.initial.rebalance.delay.ms", 3000),
        ("group.min.session.timeout.ms", 6000),
        ("group.max.session.timeout.ms", 1800000),
        ("group.consumer.session.timeout.ms", 45000),
        ("group.consumer.heartbeat.interval.ms", 5000),
        ("offsets.retention.minutes", 10080),
        ("offsets.retention.check.interval.ms", 600000),
        ("broker.heartbeat.interval.ms", 2000),
        ("broker.session.timeout.ms", 9000),
        ("socket.request.max.bytes", 104857600),
        ("fetch.max.bytes", 57671680),
        ("num.partitions", 1),
        ("wal.linger.ms", 5),
        ("wal.object.max.bytes", 8388608),
        ("wal.uploads.in.flight.max", 64),
        ("wal.puts.per.second.max", -1),
        ("wal.buffer.max.bytes", 67108864),
    ],
)
def test_defaults_that_others_rely_on(name: str, value: int) -> None:
    assert BrokerSettings().integer(name) == value


def test_a_setting_with_an_effect_is_read_somewhere_and_no_other_one_is() -> None:
    """The documented effect of each setting is its true effect."""
    code = "".join(
        path.read_text()
        for folder in ("broker", "wal", "coordinator", "storage", "tidelog")
        for path in (ROOT / folder).rglob("*.py")
        if path.parent != ROOT / "broker" / "settings" / "tables"
    )
    read = {name for name in (*BROKER_TABLE, *TOPIC_TABLE, *GROUP_TABLE) if f'"{name}"' in code}
    read |= {
        synonym.name
        for setting in TOPIC_TABLE.values()
        if setting.name in read
        for synonym in setting.synonyms
    }
    assert read == {s.name for s in ALL_SETTINGS if s.effect is Effect.REAL}


def test_the_documentation_is_that_of_the_tables() -> None:
    page = (ROOT / "docs" / "CONFIGURATION.md").read_text(encoding="utf-8")
    assert page == configuration_page() + "\n", (
        "write it again: python -m tidelog.broker.settings.docs docs/CONFIGURATION.md"
    )


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(
        'num.partitions = 2\n"max.connections" = 5\n"max.connections.per.ip" = 3\n'
        "auto.create.topics.enable = false\n[wal]\nlinger.ms = 9\n"
    )
    environment = {
        "TIDELOG_NUM_PARTITIONS": "3",
        "TIDELOG_MAX_CONNECTIONS": "6",
        "TIDELOG_BOOTSTRAP": "somewhere:9092",
        "PATH": "/bin",
    }
    settings = load("num.partitions=4", environment=environment, file=file)
    assert settings.integer("num.partitions") == 4
    assert settings.integer("max.connections") == 6
    assert settings.integer("max.connections.per.ip") == 3
    assert settings.boolean("auto.create.topics.enable") is False
    assert settings.integer("wal.linger.ms") == 9
    assert settings.integer("fetch.max.bytes") == 55 * 1024 * 1024
    assert settings.origins["num.partitions"] == "flag"
    assert settings.origins["max.connections"] == "environment TIDELOG_MAX_CONNECTIONS"
    assert settings.origins["wal.linger.ms"] == f"file {file}"
    assert "fetch.max.bytes" not in settings.origins


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("num.partitions=0", ["num.partitions", "flag", "at least 1"]),
        ("num.partitions=many", ["num.partitions", "'many'", "32-bit integer"]),
        ("num.partitions=99999999999", ["num.partitions", "32-bit integer", "2147483647"]),
        ("num.partitions=1_0", ["num.partitions"]),
        ("num.partitons=3", ["num.partitons", "did you mean num.partitions?"]),
        ("qqqq=3", ["qqqq", "CONFIGURATION.md"]),
        ("retention.ms=3", ["retention.ms", "setting of topics"]),
        ("log.dirs=/kafka", ["log.dirs", "leave it out", "--store"]),
        ("broker.id=3", ["broker.id", "--broker-id"]),
        ("controller.quorum.voters=1@a:9093", ["leave it out", "there is no quorum"]),
        ("auto.create.topics.enable=yes", ["true or false"]),
        ("log.message.timestamp.type=Never", ["one of CreateTime, LogAppendTime"]),
        ("log.cleanup.policy=delete,delete", ["a list of compact, delete"]),
        ("log.cleaner.min.cleanable.ratio=nan", ["number"]),
        ("compression.gzip.level=0", ["1 to 9, or -1"]),
        ("max.connections.per.ip.overrides=host", ["address:connections"]),
        ("num.partitions", ["name=value"]),
        ("=3", ["name=value"]),
        ("broker.session.timeout.ms=3000", ["half", "2000", "3000"]),
        ("wal.object.max.bytes=100000000", ["wal.buffer.max.bytes"]),
        ("log.cleaner.max.compaction.lag.ms=1", []),
    ],
)
def test_wrong_settings_are_named(flag: str, words: list[str]) -> None:
    if not words:
        load(flag)
        return
    with pytest.raises(InvalidConfiguration) as refusal:
        load(flag)
    for word in words:
        assert word in str(refusal.value)


def test_a_misspelt_variable_is_named() -> None:
    with pytest.raises(InvalidConfiguration, match=r"TIDELOG_NUM_PARTITONS.*num\.partitions\?"):
        load(environment={"TIDELOG_NUM_PARTITONS": "3"})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TIDELOG_SERVICE_HOST", "10.0.0.1"),
        ("TIDELOG_SERVICE_PORT", "9092"),
        ("TIDELOG_0_SERVICE_PORT_KAFKA", "9092"),
        ("TIDELOG_PORT", "tcp://10.0.0.1:9092"),
        ("TIDELOG_STORE_PORT_9092_TCP", "tcp://10.0.0.1:9092"),
        ("TIDELOG_BOOTSTRAP_PORT_9092_TCP_PROTO", "tcp"),
        ("TIDELOG_BOOTSTRAP_PORT_9092_TCP_PORT", "9092"),
        ("TIDELOG_BOOTSTRAP_PORT_9092_TCP_ADDR", "10.0.0.1"),
    ],
)
def test_a_variable_that_kubernetes_sets_for_a_service_is_named_with_the_remedy(
    variable: str, value: str
) -> None:
    """Kubernetes sets them in each pod, for each service of the pod's namespace."""
    with pytest.raises(InvalidConfiguration, match=f"{variable}.*enableServiceLinks: false"):
        load(environment={variable: value})


def test_other_unknown_variables_are_not_blamed_on_kubernetes() -> None:
    for variable in ("TIDELOG_NUM_PARTITONS", "TIDELOG_PORTS", "TIDELOG_SERVICE"):
        with pytest.raises(InvalidConfiguration) as refused:
            load(environment={variable: "3"})
        assert "Kubernetes" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("max.connections = 5\nmax.connections.per.ip = 3\n", "quote the names"),
        ("num.partitions = \n", "not TOML"),
        ("num.partitions = 1.5\n", "32-bit integer"),
        ("num.partitions = true\n", "32-bit integer"),
        ('auto.create.topics.enable = "maybe"\n', "true or false"),
        ("log.cleanup.policy = [1]\n", "comma-separated"),
        ("[num]\npartitionz = 1\n", "did you mean num.partitions?"),
    ],
)
def test_wrong_settings_in_a_file_are_named(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(content)
    with pytest.raises(InvalidConfiguration) as refusal:
        load(file=file)
    assert words in str(refusal.value)
    assert str(file) in str(refusal.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"absent\.toml"):
        load(file=tmp_path / "absent.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfiguration, match="UTF-8"):
        load(file=binary)


def test_every_setting_has_a_variable_of_its_own() -> None:
    variables = {ENVIRONMENT_PREFIX + name.upper().replace(".", "_") for name in BROKER_TABLE}
    assert len(variables) == len(BROKER_TABLE)


def test_typed_access_refuses_other_types_and_unknown_names() -> None:
    settings = BrokerSettings()
    assert settings.items_of("log.cleanup.policy") == ("delete",)
    assert settings.text("compression.type") == "producer"
    with pytest.raises(TypeError, match=r"num\.partitions"):
        settings.boolean("num.partitions")
    with pytest.raises(TypeError):
        settings.integer("auto.create.topics.enable")
    with pytest.raises(TypeError):
        settings.text("num.partitions")
    with pytest.raises(TypeError):
        settings.items_of("num.partitions")
    with pytest.raises(KeyError):
        settings.integer("no.such.setting")


def test_settings_by_keyword_are_checked_too() -> None:
    assert BrokerSettings.of(num_partitions=3).integer("num.partitions") == 3
    with pytest.raises(InvalidConfiguration, match=r"no\.such"):
        BrokerSettings.of(no_such=1)
    with pytest.raises(InvalidConfiguration, match="at least 1"):
        BrokerSettings.of(num_partitions=0)


def test_a_topics_own_setting_beats_every_synonym() -> None:
    broker = load("log.retention.hours=2").overridden(
        {"log.retention.ms": "3000"}, {"log.retention.ms": "4000"}
    )
    config = effective_topic_config({"retention.ms": "5000"}, broker)
    entry = config.entry("retention.ms")
    assert config.integer("retention.ms") == 5000
    assert entry.source is SettingSource.TOPIC
    assert entry.synonyms == (
        ConfigSynonym("retention.ms", "5000", SettingSource.TOPIC),
        ConfigSynonym("log.retention.ms", "4000", SettingSource.DYNAMIC_BROKER),
        ConfigSynonym("log.retention.ms", "3000", SettingSource.DYNAMIC_DEFAULT_BROKER),
        ConfigSynonym("log.retention.hours", "2", SettingSource.STATIC_BROKER),
        ConfigSynonym("log.retention.hours", "168", SettingSource.DEFAULT),
    )


@pytest.mark.parametrize(
    ("flags", "dynamic", "milliseconds", "source"),
    [
        ((), {}, 168 * 3_600_000, SettingSource.DEFAULT),
        (("log.retention.hours=1",), {}, 3_600_000, SettingSource.STATIC_BROKER),
        (
            ("log.retention.hours=1", "log.retention.minutes=1"),
            {},
            60_000,
            SettingSource.STATIC_BROKER,
        ),
        (("log.retention.minutes=1", "log.retention.ms=7"), {}, 7, SettingSource.STATIC_BROKER),
        (
            ("log.retention.ms=7",),
            {"log.retention.ms": "8"},
            8,
            SettingSource.DYNAMIC_DEFAULT_BROKER,
        ),
        (("log.retention.hours=-1",), {}, -1, SettingSource.STATIC_BROKER),
    ],
)
def test_the_first_synonym_of_the_strongest_source_counts(
    flags: tuple[str, ...], dynamic: dict[str, str], milliseconds: int, source: SettingSource
) -> None:
    config = effective_topic_config({}, load(*flags).overridden(dynamic, {}))
    assert config.integer("retention.ms") == milliseconds
    assert config.entry("retention.ms").source is source
    assert not config.entry("retention.ms").read_only


def test_a_brokers_entry_says_whether_it_can_be_altered() -> None:
    broker = load("message.max.bytes=5", "num.partitions=2")
    assert not broker.entry("message.max.bytes").read_only
    assert broker.entry("num.partitions").read_only
    assert broker.entry("num.partitions").source is SettingSource.STATIC_BROKER
    assert broker.entry("num.partitions").synonyms == (
        ConfigSynonym("num.partitions", "2", SettingSource.STATIC_BROKER),
        ConfigSynonym("num.partitions", "1", SettingSource.DEFAULT),
    )
    assert broker.entry("log.retention.ms").value is None
    overridden = broker.overridden({"message.max.bytes": "9"}, {})
    assert overridden.integer("message.max.bytes") == 9
    assert broker.integer("message.max.bytes") == 5
    (default,) = overridden.default_entries()
    assert (default.setting.name, default.value) == ("message.max.bytes", "9")


def test_a_broker_starts_with_altered_settings_that_it_does_not_understand() -> None:
    """Another version accepted the settings. If the start were refused, all users would be locked
    out."""
    broker = load().overridden({"future.setting": "1"}, {"message.max.bytes": "many"})
    assert broker.integer("message.max.bytes") == 1048588
    config = effective_topic_config({"future.setting": "1", "retention.ms": "x"}, broker)
    assert config.integer("retention.ms") == 604800000
    check_topic_configs({"future.setting": "1", "retention.ms": "5"}, broker, ["retention.ms"])


@pytest.mark.parametrize(
    ("configs", "words"),
    [
        ({"retention.mss": "1"}, r"unknown topic setting retention\.mss"),
        ({"retention.ms": "-2"}, "at least -1"),
        ({"segment.bytes": "1"}, "at least 1048576"),
        ({"max.message.bytes": ""}, "32-bit integer"),
        ({"remote.storage.enable": "true"}, "only false"),
        ({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"}, "above max.compaction"),
        ({"max.compaction.lag.ms": "0"}, "at least 1"),
        ({"leader.replication.throttled.replicas": "1"}, "partition:broker"),
        ({"num.partitions": "1"}, "unknown topic setting"),
    ],
)
def test_settings_that_a_topic_may_not_have(configs: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidConfiguration, match=words):
        check_topic_configs(configs, BrokerSettings())


def test_settings_that_a_running_broker_does_not_take() -> None:
    check_dynamic_broker_configs({"message.max.bytes": "1", "max.connections": "3"})
    for configs, words in (
        ({"num.partitions": "3"}, "cannot be altered"),
        ({"message.max.bytes": "-1"}, "at least 0"),
        ({"no.such.setting": "1"}, "unknown setting"),
    ):
        with pytest.raises(InvalidConfiguration, match=words):
            check_dynamic_broker_configs(configs)


@given(name=st.sampled_from(sorted(BROKER_TABLE)), text=st.text(max_size=40))
def test_any_text_is_taken_or_refused_with_the_settings_name(name: str, text: str) -> None:
    try:
        settings = load(f"{name}={text}")
    except InvalidConfiguration as error:
        refusal = str(error)
    else:
        # The broker reports each accepted value in a form that it accepts again with the same
        # meaning.
        again = format_value(settings[name])
        assert again is not None
        assert load(f"{name}={again}")[name] == settings[name]
        refusal = name
    assert name in refusal


@given(
    kind=st.sampled_from(SettingType),
    raw=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=4,
    ),
)
def test_any_value_of_a_file_is_parsed_or_refused(kind: SettingType, raw: object) -> None:
    try:
        value = parse_value(kind, raw)
    except InvalidConfiguration:
        return
    text = format_value(value)
    assert text is not None
    if kind is not SettingType.LIST or all("," not in item for item in value):
        assert parse_value(kind, text) == value or value == ("",)


LAYERS = st.dictionaries(
    st.sampled_from(["log.retention.ms", "message.max.bytes", "log.segment.bytes"]),
    st.integers(2**20, 2**21),
)


@given(static=LAYERS, default=LAYERS, own=LAYERS, topic=st.booleans())
def test_the_strongest_layer_that_has_a_value_counts(
    static: dict[str, int], default: dict[str, int], own: dict[str, int], topic: bool
) -> None:
    broker = load(*(f"{name}={value}" for name, value in static.items())).overridden(
        {name: str(value) for name, value in default.items()},
        {name: str(value) for name, value in own.items()},
    )
    overrides = {"segment.bytes": "3000000"} if topic else {}
    config = effective_topic_config(overrides, broker)
    expected = {"log.segment.bytes": 1024**3, **static, **default, **own}["log.segment.bytes"]
    assert broker.integer("log.segment.bytes") == expected
    assert config.integer("segment.bytes") == (3000000 if topic else expected)
    entry = config.entry("segment.bytes")
    assert entry.value == str(config["segment.bytes"])
    assert [synonym.source for synonym in entry.synonyms] == sorted(
        synonym.source for synonym in entry.synonyms
    )
    assert entry.source is entry.synonyms[0].source
