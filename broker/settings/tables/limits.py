"""The broker settings that limit what clients may ask for and what they may leave behind. Kafka has
none of them."""

from __future__ import annotations

from tidelog.broker.settings.kinds import AtLeast, Setting, SettingType
from tidelog.broker.settings.tables.brokers import MIB
from tidelog.coordinator.patterns import PATTERN_LENGTH_MAX
from tidelog.protocol.wire import ELEMENTS_MAX, SHORT_ELEMENTS_MAX


def _limit(name: str, kind: SettingType, default: int, low: int, doc: str) -> Setting:
    return Setting(name=name, kind=kind, default=default, valid=AtLeast(low), doc=doc)


LIMIT_SETTINGS: tuple[Setting, ...] = (
    _limit(
        "long.requests.elements.max",
        SettingType.INT,
        1_000_000,
        ELEMENTS_MAX,
        "Array elements (partitions, names) of all long requests that are served at a time; one"
        f" has more than {SHORT_ELEMENTS_MAX} and at most {ELEMENTS_MAX}. Others wait unread."
        " An element takes some 200 bytes of memory.",
    ),
    _limit(
        "topics.max",
        SettingType.INT,
        20_000,
        1,
        "Topics of the cluster; one more is refused (POLICY_VIOLATION).",
    ),
    _limit(
        "partitions.max",
        SettingType.INT,
        100_000,
        1,
        "Partitions of all topics of the cluster; more are refused (POLICY_VIOLATION). One that is"
        " used takes some 2.5 KB of memory.",
    ),
    _limit(
        "create.partitions.request.max",
        SettingType.INT,
        10_000,
        1,
        "Partitions that one CreateTopics or CreatePartitions may ask for, as in Kafka, where it is"
        " no setting; with more, all of its topics are refused (POLICY_VIOLATION).",
    ),
    _limit(
        "auto.create.topics.request.max",
        SettingType.INT,
        100,
        0,
        "Topics that one Metadata request creates; the others are answered"
        " UNKNOWN_TOPIC_OR_PARTITION, which clients take for a reason to ask again.",
    ),
    _limit(
        "auto.create.topics.minute.max",
        SettingType.INT,
        1_000,
        0,
        "Topics that Metadata requests to this broker create in a minute; beyond it they are"
        " answered UNKNOWN_TOPIC_OR_PARTITION.",
    ),
    _limit(
        "id.length.max",
        SettingType.INT,
        1024,
        1,
        "Characters of the id of a group, a member, a static member or a transaction. A longer"
        " group id is refused (INVALID_GROUP_ID), and so are other ids (INVALID_REQUEST).",
    ),
    _limit(
        "group.member.max.bytes",
        SettingType.INT,
        MIB,
        1,
        "Memory that one group member's ids, subscription and protocol metadata take. A JoinGroup"
        " or ConsumerGroupHeartbeat with more is refused (INVALID_REQUEST).",
    ),
    _limit(
        "group.max.bytes",
        SettingType.INT,
        16 * MIB,
        1,
        "Memory that all members of a group take, with the assignments of a leader. A member that"
        " would take it beyond is refused (GROUP_MAX_SIZE_REACHED), and so are assignments"
        " (UNKNOWN_SERVER_ERROR).",
    ),
    _limit(
        "groups.max",
        SettingType.INT,
        100_000,
        1,
        "Groups that a broker coordinates. The first member or offset of another one is refused"
        " (COORDINATOR_NOT_AVAILABLE), which clients take for a reason to ask again.",
    ),
    _limit(
        "groups.max.bytes",
        SettingType.LONG,
        256 * MIB,
        1,
        "Memory that all groups of a broker take, with their committed offsets. Members, offsets"
        " and assignments that would take it beyond are refused (COORDINATOR_NOT_AVAILABLE), and"
        " consumer groups get no partitions of further topics.",
    ),
    _limit(
        "transactional.ids.max",
        SettingType.INT,
        250_000,
        1,
        "Transactional ids that a broker coordinates. Another one is refused (POLICY_VIOLATION)"
        " until some have expired (transactional.id.expiration.ms).",
    ),
    _limit(
        "transaction.max.partitions",
        SettingType.INT,
        20_000,
        1,
        "Partitions of one transaction; more are refused (POLICY_VIOLATION), and the producer"
        " aborts the transaction.",
    ),
    _limit(
        "transactions.max.partitions",
        SettingType.INT,
        1_000_000,
        1,
        "Partitions of all open transactions that a broker coordinates; more are refused"
        " (POLICY_VIOLATION). One takes some 200 bytes of memory.",
    ),
    _limit(
        "producer.ids.max",
        SettingType.INT,
        500_000,
        1,
        "Producers whose sequence numbers a broker's partitions remember; one that writes to ten"
        " partitions counts ten times. A batch of another one is refused (POLICY_VIOLATION) until"
        " some have expired (producer.id.expiration.ms). One takes some 1 KB of memory.",
    ),
    _limit(
        "regex.length.max",
        SettingType.INT,
        PATTERN_LENGTH_MAX,
        1,
        "Characters of a regular expression in a consumer group's subscription or in"
        " ListTransactions; a longer one is refused (INVALID_REGULAR_EXPRESSION).",
    ),
)
