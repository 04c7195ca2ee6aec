"""Broker settings that limit clients' requests and leftovers. Kafka has none of them."""

from __future__ import annotations

from tidelog.broker.settings.kinds import AtLeast, Setting
from tidelog.broker.settings.tables.columns import INT, LONG, MIB
from tidelog.coordinator.patterns import PATTERN_LENGTH_MAX
from tidelog.protocol.wire import ELEMENTS_MAX, SHORT_ELEMENTS_MAX

# fmt: off
LIMIT_SETTINGS: tuple[Setting, ...] = (
    Setting("long.requests.elements.max", INT, 1_000_000, AtLeast(ELEMENTS_MAX),
        "Array elements (partitions, names) of all long requests that are served at a time; more"
        f" wait unread. A long request has more than {SHORT_ELEMENTS_MAX} elements, and at most"
        f" {ELEMENTS_MAX}. An element takes some 200 bytes of memory."),
    Setting("topics.max", INT, 20_000, AtLeast(1),
        "Topics of the cluster; further ones are refused (POLICY_VIOLATION)."),
    Setting("partitions.max", INT, 100_000, AtLeast(1),
        "Partitions of all topics of the cluster; further ones are refused (POLICY_VIOLATION). A"
        " partition in use takes some 2.5 KB of memory."),
    Setting("create.partitions.request.max", INT, 10_000, AtLeast(1),
        "Partitions that one CreateTopics or CreatePartitions may ask for; Kafka has the limit,"
        " but no setting. With more, all topics of the request are refused (POLICY_VIOLATION)."),
    Setting("auto.create.topics.request.max", INT, 100, AtLeast(0),
        "Topics that one Metadata request creates. The answer for further ones is"
        " UNKNOWN_TOPIC_OR_PARTITION, and clients retry."),
    Setting("auto.create.topics.minute.max", INT, 1_000, AtLeast(0),
        "Topics that Metadata requests to this broker create in a minute. The answer for further"
        " ones is UNKNOWN_TOPIC_OR_PARTITION."),
    Setting("id.length.max", INT, 1024, AtLeast(1),
        "Characters of the id of a group, a member, a static member or a transaction. Longer ones"
        " are refused: group ids with INVALID_GROUP_ID, others with INVALID_REQUEST."),
    Setting("group.member.max.bytes", INT, MIB, AtLeast(1),
        "Memory that one group member's ids, subscription and protocol metadata take. A JoinGroup"
        " or ConsumerGroupHeartbeat with more is refused (INVALID_REQUEST)."),
    Setting("group.max.bytes", INT, 16 * MIB, AtLeast(1),
        "Memory that all members of a group take, with the assignments of a leader. Beyond it, new"
        " members are refused (GROUP_MAX_SIZE_REACHED), and so are assignments"
        " (UNKNOWN_SERVER_ERROR)."),
    Setting("groups.max", INT, 100_000, AtLeast(1),
        "Groups that a broker coordinates. The first member or offset of a further one is refused"
        " (COORDINATOR_NOT_AVAILABLE), and clients retry."),
    Setting("groups.max.bytes", LONG, 256 * MIB, AtLeast(1),
        "Memory that all groups of a broker take, with their committed offsets. Beyond it,"
        " members, offsets and assignments are refused (COORDINATOR_NOT_AVAILABLE), and consumer"
        " groups get no partitions of further topics."),
    Setting("transactional.ids.max", INT, 250_000, AtLeast(1),
        "Transactional ids that a broker coordinates. Further ones are refused (POLICY_VIOLATION)"
        " until some expire (transactional.id.expiration.ms)."),
    Setting("transaction.max.partitions", INT, 20_000, AtLeast(1),
        "Partitions of one transaction. Further ones are refused (POLICY_VIOLATION), and the"
        " producer aborts the transaction."),
    Setting("transactions.max.partitions", INT, 1_000_000, AtLeast(1),
        "Partitions of all open transactions that a broker coordinates; further ones are refused"
        " (POLICY_VIOLATION). One takes some 200 bytes of memory."),
    Setting("producer.ids.max", INT, 500_000, AtLeast(1),
        "Producers whose sequence numbers a broker's partitions remember; a producer of ten"
        " partitions counts ten times. A batch of a further one is refused (POLICY_VIOLATION) until"
        " some expire (producer.id.expiration.ms). One takes some 1 KB of memory."),
    Setting("regex.length.max", INT, PATTERN_LENGTH_MAX, AtLeast(1),
        "Characters of a regular expression in a consumer group's subscription or in"
        " ListTransactions; a longer one is refused (INVALID_REGULAR_EXPRESSION)."),
)
# fmt: on
