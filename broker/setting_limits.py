"""The broker settings that limit what clients may ask for and what they may leave behind. Kafka has
none of them."""

from __future__ import annotations

from tidelog.broker.setting_kinds import AtLeast, Kind, Setting
from tidelog.coordinator.patterns import PATTERN_LENGTH_MAX
from tidelog.protocol.wire import ELEMENTS_MAX, SHORT_ELEMENTS_MAX


def _limit(name: str, kind: Kind, default: int, low: int, doc: str) -> Setting:
    return Setting(name=name, kind=kind, default=default, valid=AtLeast(low), doc=doc)


LIMIT_SETTINGS: tuple[Setting, ...] = (
    _limit(
        "long.requests.elements.max",
        Kind.INT,
        1_000_000,
        ELEMENTS_MAX,
        "Array elements (partitions, names) of all long requests that are served at a time; one"
        f" has more than {SHORT_ELEMENTS_MAX} and at most {ELEMENTS_MAX}. Others wait unread."
        " An element takes some 200 bytes of memory.",
    ),
    _limit(
        "topics.max",
        Kind.INT,
        20_000,
        1,
        "Topics of the cluster; one more is refused (POLICY_VIOLATION).",
    ),
    _limit(
        "partitions.max",
        Kind.INT,
        100_000,
        1,
        "Partitions of all topics of the cluster; more are refused (POLICY_VIOLATION). One that is"
        " used takes some 2.5 KB of memory.",
    ),
    _limit(
        "create.partitions.request.max",
        Kind.INT,
        10_000,
        1,
        "Partitions that one CreateTopics or CreatePartitions may ask for, as in Kafka, where it is"
        " no setting; with more, all of its topics are refused (POLICY_VIOLATION).",
    ),
    _limit(
        "auto.create.topics.request.max",
        Kind.INT,
        100,
        0,
        "Topics that one Metadata request creates; the others are answered"
        " UNKNOWN_TOPIC_OR_PARTITION, which clients take for a reason to ask again.",
    ),
    _limit(
        "auto.create.topics.minute.max",
        Kind.INT,
        1_000,
        0,
        "Topics that Metadata requests to this broker create in a minute; beyond it they are"
        " answered UNKNOWN_TOPIC_OR_PARTITION.",
    ),
    _limit(
        "regex.length.max",
        Kind.INT,
        PATTERN_LENGTH_MAX,
        1,
        "Characters of a regular expression in a consumer group's subscription or in"
        " ListTransactions; a longer one is refused (INVALID_REGULAR_EXPRESSION).",
    ),
)
