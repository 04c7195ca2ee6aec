"""docs/CONFIGURATION.md, made from the tables: `python -m tidelog.broker.settings.docs PATH`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tidelog.broker.settings.kinds import INT_MAX, LONG_MAX, Effect, Scope, Setting, format_value
from tidelog.broker.settings.tables.authorization import AUTHORIZATION_SETTINGS
from tidelog.broker.settings.tables.brokers import (
    CLUSTER_SETTINGS,
    REPLICATION_SETTINGS,
    SERVER_SETTINGS,
)
from tidelog.broker.settings.tables.groups import (
    GROUP_SETTINGS,
    OF_GROUP_SETTINGS,
    OFFSETS_SETTINGS,
)
from tidelog.broker.settings.tables.http import HTTP_SETTINGS
from tidelog.broker.settings.tables.limits import LIMIT_SETTINGS
from tidelog.broker.settings.tables.listeners import LISTENER_SETTINGS
from tidelog.broker.settings.tables.logs import TOPIC_DEFAULT_SETTINGS
from tidelog.broker.settings.tables.own import OWN_SETTINGS
from tidelog.broker.settings.tables.producers import PRODUCER_SETTINGS
from tidelog.broker.settings.tables.quotas import QUOTA_SETTINGS
from tidelog.broker.settings.tables.security import AUTHENTICATION_SETTINGS, TLS_SETTINGS
from tidelog.broker.settings.tables.topics import TOPIC_SETTINGS

_INTRODUCTION = """\
# Configuration

Kafka's settings keep Kafka's names, types, defaults and rules. This page is generated from the
tables in `broker/settings/tables/`; a test compares the two.

## How a broker is configured

From the strongest to the weakest:

1. flags: `tidelog server --set log.retention.hours=24 --set num.partitions=3`
2. the environment: `TIDELOG_` and the name in capitals, with underscores for dots:
   `TIDELOG_NUM_PARTITIONS=3`
3. a TOML file: `tidelog server --config broker.toml`, with lines like `"num.partitions" = 3`. Quote
   the names: TOML cannot hold `max.connections` and `max.connections.per.ip` otherwise.
4. the defaults below

In a value of any of the first three, `${env:NAME}` stands for a variable of the environment, and
`${file:PATH:KEY}` for the value of KEY in a file with lines `KEY=value`, as with Kafka's config
providers `env` and `file`. The broker reads them once, at its start. Only settings of type password
are hidden from DescribeConfigs.

An unknown name or a forbidden value prevents the start; the message names the setting and its
source. The store, the addresses and the broker's id are flags of `tidelog server`.

Settings marked *dynamic* can be altered while the broker runs (`kafka-configs --alter --entity-type
brokers`), for one broker or, with `--entity-default`, for all; then they are stored in the bucket.
Settings of topics and groups can always be altered. A topic's value is the first of: its own
setting; the broker's synonym altered for this broker; altered for all brokers; given at the start;
the default. If there are several synonyms, the first in the list counts.

Settings marked *per listener* may be given for one listener: `listener.name.client.ssl.client.auth`
counts before `ssl.client.auth` for the listener CLIENT.

Settings marked *no effect* are accepted, stored and reported, so that clients and tools that set
them work, but nothing reads them: Tidelog has no replicas, no log files and no thread pools to
tune.
"""

_SECTIONS: Sequence[tuple[str, Sequence[Setting]]] = (
    ("Network and requests", SERVER_SETTINGS),
    ("Listeners", LISTENER_SETTINGS),
    ("TLS", TLS_SETTINGS),
    ("Authentication", AUTHENTICATION_SETTINGS),
    ("HTTP: health and metrics", HTTP_SETTINGS),
    ("Tidelog's own settings", OWN_SETTINGS),
    ("Limits on clients' requests and leftovers", LIMIT_SETTINGS),
    ("Topics: creation, and defaults of their settings", TOPIC_DEFAULT_SETTINGS),
    ("Brokers and their leases", CLUSTER_SETTINGS),
    ("Authorization", AUTHORIZATION_SETTINGS),
    ("Quotas", QUOTA_SETTINGS),
    ("Producers and transactions", PRODUCER_SETTINGS),
    ("Consumer groups", GROUP_SETTINGS),
    ("Committed offsets", OFFSETS_SETTINGS),
    ("Replication", REPLICATION_SETTINGS),
)


def configuration_page() -> str:
    """The whole page."""
    return "\n".join([_INTRODUCTION, *_broker_sections(), *_topic_section(), *_group_section()])


def _broker_sections() -> Iterator[str]:
    for title, settings in _SECTIONS:
        yield f"## {title}\n"
        yield "| setting | type | default | allowed | |"
        yield "|---|---|---|---|---|"
        for setting in settings:
            yield _row(setting, _default(setting))
        yield ""


def _topic_section() -> Iterator[str]:
    yield "## Settings of topics\n"
    yield (
        "Settings with a broker setting of the same name (`compression.type`, ...) are listed only "
        "here; brokers take them dynamically.\n"
    )
    yield from _table_with_synonyms(TOPIC_SETTINGS)
    yield ""


def _group_section() -> Iterator[str]:
    yield "## Settings of groups\n"
    yield (
        "Of single consumer groups (KIP-848), which need not exist yet: `kafka-configs --alter "
        "--entity-type groups --entity-name G --add-config consumer.session.timeout.ms=50000`. The "
        "bucket stores them until they are deleted (deleting the group keeps them). They take "
        "effect at a member's next heartbeat. Members with the classic protocol choose their own "
        "session timeout. A group's values must be within the brokers' `group.consumer.min.*` and "
        "`group.consumer.max.*`, and its session timeout above its heartbeat interval.\n"
    )
    yield from _table_with_synonyms(OF_GROUP_SETTINGS)


def _table_with_synonyms(settings: Sequence[Setting]) -> Iterator[str]:
    yield "| setting | type | default | broker settings | allowed | |"
    yield "|---|---|---|---|---|---|"
    for setting in settings:
        synonyms = ", ".join(f"`{synonym.name}`" for synonym in setting.synonyms)
        yield _row(setting, f"{_default(setting)} | {synonyms}")


def _row(setting: Setting, default: str) -> str:
    marks = []
    if setting.per_listener:
        marks.append("*Per listener.*")
    if setting.per_mechanism:
        marks.append("*Per listener and mechanism alone.*")
    if setting.dynamic and setting.scope is Scope.BROKER:
        marks.append("*Dynamic.*")
    if setting.effect is Effect.NONE:
        marks.append("*No effect.*")
    return " | ".join(
        (
            f"| `{setting.name}`",
            setting.kind.name.lower(),
            default,
            setting.valid.words,
            " ".join([setting.doc, *marks]) + " |",
        )
    )


def _default(setting: Setting) -> str:
    value = setting.default
    named = {INT_MAX: "2^31 - 1", LONG_MAX: "2^63 - 1"}
    if isinstance(value, int) and not isinstance(value, bool) and value in named:
        text = named[value]
    else:
        formatted = format_value(value)
        text = "unset" if formatted is None else f"`{formatted}`" if formatted else "empty"
    if setting.kafka_default is not None:
        text += f" (Kafka: {setting.kafka_default})"
    return text


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(configuration_page() + "\n", encoding="utf-8")
