"""The needs of each API's requests: one declaration an API, as Kafka 4.1 checks them.

Clients need nothing to learn the versions and to authenticate. Tidelog's own requests are under the
same rules: operators need ALTER on the cluster, brokers CLUSTER_ACTION.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from tidelog.broker.authorization.access import Access, Need, Want, cluster, needed
from tidelog.broker.dispatch.permissions.declarations import (
    VERSION_MAX,
    Asking,
    NeedsOfElement,
    NeedsOfRequest,
    Parts,
    Permission,
    Shown,
)
from tidelog.broker.settings.config_changes import ConfigResourceType as Settings
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.group.requests.group_offsets import SINK_PROGRESS_TOPIC
from tidelog.protocol.api import ApiKey, OwnApiKey
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.own.features import NO_LEVEL
from tidelog.protocol.wire import NULL_UUID
from tidelog.security.acl_codes import AclOperation, ResourceType

READ, WRITE = AclOperation.READ, AclOperation.WRITE
CREATE, DELETE = AclOperation.CREATE, AclOperation.DELETE
ALTER, DESCRIBE = AclOperation.ALTER, AclOperation.DESCRIBE
ALTER_CONFIGS, DESCRIBE_CONFIGS = AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS
CLUSTER_ACTION = AclOperation.CLUSTER_ACTION
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID

_OF_CLUSTER: Final = frozenset({Settings.BROKER, Settings.BROKER_LOGGER, Settings.CLIENT_METRICS})
"""The settings that are under the cluster's rules."""
_GROUP_KEYS, _TRANSACTION_KEYS = 0, 1
_ATTRIBUTES, _TRANSACTIONAL = 22, 0x10
"""The position of a batch's flags, and the one of transactional batches."""
_UNKNOWN_NUMBER: Final = -1
NAME_LENGTH_MAX: Final = 249
"""The longest name that is remembered, that of a topic."""


def _on_cluster(*operations: AclOperation) -> NeedsOfRequest:
    """One of these operations on the cluster; only the last refusal is news."""
    *others, last = operations
    need = Need.of(*(cluster(each, is_quiet=True) for each in others), cluster(last))
    return lambda _asking: (need,)


def _on(operation: AclOperation, kind: ResourceType, field: str) -> NeedsOfRequest:
    """The operation on the resource that a field of the request names."""
    return lambda asking: (Need.of(Want(operation, kind, getattr(asking.request, field))),)


def _read_and_write(*each: NeedsOfRequest) -> NeedsOfRequest:
    return lambda asking: (need for needs in each for need in needs(asking))


def _each(operation: AclOperation, kind: ResourceType, field: str = "") -> NeedsOfElement:
    """The operation on the resource that an element names, by a field or as a plain text."""

    def needs(element: Any, _asking: Asking) -> tuple[Need, ...]:
        return (Need.of(Want(operation, kind, getattr(element, field) if field else element)),)

    return needs


def _each_topic(operation: AclOperation) -> NeedsOfElement:
    """The operation on the topic that an element names by `topic_id` or by `name`.

    An unknown id needs nothing: the handler answers that there is no such topic.
    """

    def needs(element: Any, asking: Asking) -> tuple[Need, ...]:
        name = _topic_name(element, asking)
        if name is None:
            return ()
        if len(name) <= NAME_LENGTH_MAX:
            return (needed(operation, TOPIC, name),)
        return (Need.of(Want(operation, TOPIC, name)),)

    return needs


def _but_progress(needs: NeedsOfElement) -> NeedsOfElement:
    """These needs of an offset's topic, and none for the progress of an exactly-once sink (H7).

    Its group's permission suffices. READ on the internal topic would show the offsets of all
    groups.
    """
    return lambda topic, asking: () if topic.name == SINK_PROGRESS_TOPIC else needs(topic, asking)


def _topic_name(element: Any, asking: Asking) -> str | None:
    topic_id = element.topic_id
    # Comparing UUIDs is slow, and a request by names has this very one.
    if topic_id is NULL_UUID or topic_id == NULL_UUID:
        name: str | None = element.name
        return name
    topic = asking.state.topics.get(topic_id)
    return None if topic is None else topic.name


def _produce(asking: Asking) -> tuple[Need, ...]:
    request = asking.request
    for topic in request.topic_data:
        for data in topic.partition_data:
            records = data.records
            if records is None or len(records) <= _ATTRIBUTES:
                continue
            if records[_ATTRIBUTES] & _TRANSACTIONAL:
                if request.transactional_id is None:
                    return (Need((), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),)
                return (Need.of(Want(WRITE, TRANSACTIONAL_ID, request.transactional_id)),)
    return ()


def _keys_of_produce(request: Any, state: ClusterState) -> list[Hashable] | None:
    """The topics, and the transactional id in a tuple."""
    keys: list[Hashable] = []
    is_transactional = False
    for topic in request.topic_data:
        name = topic.name
        topic_id = topic.topic_id
        if topic_id is not NULL_UUID and topic_id != NULL_UUID:
            known = state.topics.get(topic_id)
            if known is None:
                return None
            name = known.name
        if len(name) > NAME_LENGTH_MAX:
            return None
        keys.append(name)
        for data in topic.partition_data:
            records = data.records
            if records is not None and len(records) > _ATTRIBUTES:
                is_transactional |= records[_ATTRIBUTES] & _TRANSACTIONAL != 0
    if is_transactional:
        transactional_id = request.transactional_id
        if transactional_id is None or len(transactional_id) > NAME_LENGTH_MAX:
            return None
        keys.append((transactional_id,))
    return keys


def _coordinator_of(key: str, key_type: int) -> Iterator[Need]:
    if key_type == _GROUP_KEYS:
        yield Need.of(Want(DESCRIBE, GROUP, key))
    elif key_type == _TRANSACTION_KEYS:
        yield Need.of(Want(DESCRIBE, TRANSACTIONAL_ID, key))


def _find_coordinator(asking: Asking) -> Iterator[Need]:
    if asking.version < _SEVERAL_KEYS_FROM:
        yield from _coordinator_of(asking.request.key, asking.request.key_type)


def _init_producer_id(asking: Asking) -> Iterator[Need]:
    transactional_id = asking.request.transactional_id
    if transactional_id is not None:
        yield Need.of(Want(WRITE, TRANSACTIONAL_ID, transactional_id))
        return
    # KIP-679: a principal that may write to some topic may write to it idempotently.
    wants = (cluster(AclOperation.IDEMPOTENT_WRITE, is_quiet=True), Want(WRITE, TOPIC, None))
    yield Need(wants, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def _add_partitions(asking: Asking) -> Iterator[Need]:
    if asking.version < _BATCHED_TRANSACTIONS_FROM:
        name = asking.request.v3_and_below_transactional_id
        yield Need.of(Want(WRITE, TRANSACTIONAL_ID, name))
    else:
        yield Need.of(cluster(CLUSTER_ACTION))


def _sync_group(asking: Asking) -> Iterator[Need]:
    # Kafka refuses an incomplete request before it asks for permission.
    if not asking.request.lacks_protocol(asking.version):
        yield Need.of(Want(READ, GROUP, asking.request.group_id))


def _heartbeat(asking: Asking) -> Iterator[Need]:
    yield Need.of(Want(READ, GROUP, asking.request.group_id))
    for name in dict.fromkeys(asking.request.subscribed_topic_names or ()):
        yield Need.of(Want(DESCRIBE, TOPIC, name))


def _create_topic(topic: Any, _asking: Asking) -> tuple[Need, ...]:
    return (Need.of(cluster(CREATE, is_quiet=True), Want(CREATE, TOPIC, topic.name)),)


def _delete_topic(topic: Any, asking: Asking) -> Iterator[Need]:
    name = topic if isinstance(topic, str) else _topic_name(topic, asking)
    if name is None:
        return
    by_cluster = cluster(DELETE, is_quiet=True)
    if isinstance(topic, str) or topic.topic_id == NULL_UUID:
        yield Need.of(by_cluster, Want(DESCRIBE, TOPIC, name))
    if asking.state.topic_named(name) is not None:
        yield Need.of(by_cluster, Want(DELETE, TOPIC, name))


def _name_undeleted(topic: Any, answer: Any, access: Access, asking: Asking) -> None:
    """A topic that was named by its id gets its name if the client may see it."""
    if isinstance(topic, str) or topic.topic_id == NULL_UUID:
        return
    name = _topic_name(topic, asking)
    if name is not None and access.may(DESCRIBE, TOPIC, name, is_quiet=True):
        answer.name = name


def _hide_configs(response: Any, access: Access) -> None:
    """CreateTopics: the settings of a created topic are shown to clients that may read them."""
    for topic in response.topics:
        if not topic.error_code and not access.may(
            DESCRIBE_CONFIGS, TOPIC, topic.name, is_quiet=True
        ):
            topic.configs = []
            topic.num_partitions = topic.replication_factor = _UNKNOWN_NUMBER
            topic.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _hide_members(response: Any, access: Access) -> None:
    """ConsumerGroupDescribe: a group with topics that the client may not see shows no members."""
    for group in response.groups:
        names = {
            topic.topic_name
            for member in group.members
            for assignment in (member.assignment, member.target_assignment)
            for topic in assignment.topic_partitions
        }
        if not all(access.may(DESCRIBE, TOPIC, name) for name in sorted(names)):
            group.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            group.error_message = (
                "The group has described topic(s) that the client is not authorized to describe."
            )
            group.members = []


def _configs(operation: AclOperation) -> tuple[Parts, ...]:
    """Settings, each under the resource that they belong to."""

    def needs(resource: Any, _asking: Asking) -> Iterator[Need]:
        if resource.resource_type == Settings.TOPIC:
            yield Need.of(Want(operation, TOPIC, resource.resource_name))
        elif resource.resource_type == Settings.GROUP:
            yield Need.of(Want(operation, GROUP, resource.resource_name))
        elif resource.resource_type in _OF_CLUSTER:
            yield Need.of(cluster(operation))

    answers = "results" if operation is DESCRIBE_CONFIGS else "responses"
    return (Parts(("resources",), (answers,), needs),)


def _topics(operation: AclOperation) -> tuple[Parts, ...]:
    """The topics of a request with `topics` and a response with `topics`, by name."""
    return (Parts(("topics",), ("topics",), _each(operation, TOPIC, "name")),)


def _forwarded(operation: AclOperation) -> NeedsOfRequest:
    """An operator's request, which brokers pass on to each other."""
    return lambda asking: (
        Need.of(cluster(CLUSTER_ACTION if asking.request.is_forwarded else operation)),
    )


def _drains(asking: Asking) -> Iterator[Need]:
    """The names of draining brokers, or drains that begin or end."""
    yield Need.of(cluster(ALTER if asking.request.brokers else DESCRIBE))


def _features(asking: Asking) -> Iterator[Need]:
    """A description, or a raise of the level."""
    is_description = asking.request.raise_to == NO_LEVEL
    yield Need.of(cluster(DESCRIBE if is_description else ALTER))


_SEVERAL_KEYS_FROM = 4
_BATCHED_TRANSACTIONS_FROM = 4
_SEVERAL_GROUPS_FROM = 8
_TOPIC_STATES_FROM = 6
_OPEN: Final = Permission(is_open=True)
_ASKS_AS_MEMBER: Final = Permission(whole=_on(READ, GROUP, "group_id"))


def _offset_fetch(asking: Asking) -> Iterator[Need]:
    if asking.version < _SEVERAL_GROUPS_FROM:
        yield Need.of(Want(DESCRIBE, GROUP, asking.request.group_id))


def _groups_with_open_topics(request: Any, groups: Sequence[Any]) -> Sequence[Any]:
    """The answers to those groups of an OffsetFetch for which the client names no topics."""
    # A group named more than once is answered for its last naming.
    is_open = {each.group_id: each.topics is None for each in request.groups}
    return [each for each in groups if is_open[each.group_id]]


_OFFSET_FETCH: Final = Permission(
    whole=_offset_fetch,
    parts=(
        Parts(
            ("topics",),
            ("topics",),
            _each(DESCRIBE, TOPIC, "name"),
            range(_SEVERAL_GROUPS_FROM),
        ),
        Parts(
            ("groups",),
            ("groups",),
            _each(DESCRIBE, GROUP, "group_id"),
            range(_SEVERAL_GROUPS_FROM, VERSION_MAX),
        ),
        Parts(
            ("groups", "topics"),
            ("groups", "topics"),
            _but_progress(_each_topic(DESCRIBE)),
            range(_SEVERAL_GROUPS_FROM, VERSION_MAX),
            parent="group_id",
        ),
    ),
    # A client that names no topics gets those that it may see.
    shown=(
        Shown(
            ("topics",),
            DESCRIBE,
            TOPIC,
            "name",
            holders=lambda request, holders: holders if request.topics is None else (),
        ),
        Shown(("groups", "topics"), DESCRIBE, TOPIC, "name", holders=_groups_with_open_topics),
    ),
)
_GROUPS: Final[Mapping[int, Permission]] = {
    ApiKey.FIND_COORDINATOR: Permission(
        whole=_find_coordinator,
        parts=(
            Parts(
                ("coordinator_keys",),
                ("coordinators",),
                lambda key, asking: _coordinator_of(key, asking.request.key_type),
                range(_SEVERAL_KEYS_FROM, VERSION_MAX),
            ),
        ),
    ),
    ApiKey.JOIN_GROUP: _ASKS_AS_MEMBER,
    ApiKey.SYNC_GROUP: Permission(whole=_sync_group),
    ApiKey.HEARTBEAT: _ASKS_AS_MEMBER,
    ApiKey.LEAVE_GROUP: _ASKS_AS_MEMBER,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Permission(whole=_heartbeat),
    ApiKey.OFFSET_COMMIT: Permission(whole=_on(READ, GROUP, "group_id"), parts=_topics(READ)),
    ApiKey.OFFSET_FETCH: _OFFSET_FETCH,
    ApiKey.OFFSET_DELETE: Permission(whole=_on(DELETE, GROUP, "group_id"), parts=_topics(READ)),
    ApiKey.DESCRIBE_GROUPS: Permission(
        parts=(Parts(("groups",), ("groups",), _each(DESCRIBE, GROUP)),),
        by_handler=((DESCRIBE, GROUP),),
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Permission(
        parts=(Parts(("group_ids",), ("groups",), _each(DESCRIBE, GROUP)),),
        hides=_hide_members,
        by_handler=((DESCRIBE, GROUP),),
    ),
    ApiKey.LIST_GROUPS: Permission(
        shown=(
            Shown(
                ("groups",),
                DESCRIBE,
                GROUP,
                "group_id",
                unless=cluster(DESCRIBE, is_quiet=True),
            ),
        )
    ),
    ApiKey.DELETE_GROUPS: Permission(
        parts=(Parts(("groups_names",), ("results",), _each(DELETE, GROUP)),)
    ),
}
_TRANSACTIONS: Final[Mapping[int, Permission]] = {
    ApiKey.INIT_PRODUCER_ID: Permission(whole=_init_producer_id),
    ApiKey.ADD_PARTITIONS_TO_TXN: Permission(
        whole=_add_partitions,
        parts=(
            Parts(
                ("v3_and_below_topics",),
                ("results_by_topic_v3_and_below",),
                _each(WRITE, TOPIC, "name"),
                range(_BATCHED_TRANSACTIONS_FROM),
                is_all_or_none=True,
            ),
        ),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Permission(
        whole=_read_and_write(
            _on(WRITE, TRANSACTIONAL_ID, "transactional_id"), _on(READ, GROUP, "group_id")
        )
    ),
    ApiKey.TXN_OFFSET_COMMIT: Permission(
        whole=_read_and_write(
            _on(WRITE, TRANSACTIONAL_ID, "transactional_id"), _on(READ, GROUP, "group_id")
        ),
        parts=(Parts(("topics",), ("topics",), _but_progress(_each(READ, TOPIC, "name"))),),
    ),
    ApiKey.END_TXN: Permission(whole=_on(WRITE, TRANSACTIONAL_ID, "transactional_id")),
    ApiKey.WRITE_TXN_MARKERS: Permission(whole=_on_cluster(ALTER, CLUSTER_ACTION)),
    ApiKey.DESCRIBE_PRODUCERS: Permission(parts=_topics(READ)),
    ApiKey.DESCRIBE_TRANSACTIONS: Permission(
        parts=(
            Parts(
                ("transactional_ids",), ("transaction_states",), _each(DESCRIBE, TRANSACTIONAL_ID)
            ),
        ),
        shown=(Shown(("transaction_states", "topics"), DESCRIBE, TOPIC, "topic"),),
    ),
    ApiKey.LIST_TRANSACTIONS: Permission(
        shown=(Shown(("transaction_states",), DESCRIBE, TRANSACTIONAL_ID, "transactional_id"),)
    ),
}
_DATA: Final[Mapping[int, Permission]] = {
    ApiKey.PRODUCE: Permission(
        whole=_produce,
        parts=(Parts(("topic_data",), ("responses",), _each_topic(WRITE)),),
        keys=_keys_of_produce,
    ),
    # The partitions of a fetch session are in no request.
    ApiKey.FETCH: Permission(by_handler=((READ, TOPIC),)),
    ApiKey.LIST_OFFSETS: Permission(parts=_topics(DESCRIBE)),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Permission(
        parts=(
            Parts(
                ("topics",),
                ("topics",),
                lambda topic, _: (
                    Need.of(
                        cluster(CLUSTER_ACTION, is_quiet=True), Want(DESCRIBE, TOPIC, topic.topic)
                    ),
                ),
            ),
        )
    ),
    ApiKey.DELETE_RECORDS: Permission(parts=_topics(DELETE)),
    OwnApiKey.FLUSH_TOPICS: Permission(
        parts=(
            Parts(
                ("topics",),
                ("topics",),
                lambda topic, _: (
                    Need.of(cluster(ALTER, is_quiet=True), Want(ALTER, TOPIC, topic.name)),
                ),
            ),
        )
    ),
    OwnApiKey.ADOPT: Permission(
        whole=_on(WRITE, TRANSACTIONAL_ID, "transactional_id"),
        parts=(
            Parts(
                ("topics",),
                ("topics",),
                lambda topic, asking: (
                    Need.of(Want(WRITE, TOPIC, found.name))
                    for found in (asking.state.topics.get(topic.topic_id),)
                    if found is not None
                ),
            ),
        ),
        # The handler may find topics that were created while it served the ones before.
        by_handler=((WRITE, TOPIC),),
    ),
}
_CLUSTER: Final[Mapping[int, Permission]] = {
    ApiKey.SASL_HANDSHAKE: _OPEN,
    ApiKey.SASL_AUTHENTICATE: _OPEN,
    ApiKey.API_VERSIONS: _OPEN,
    # All topics, topics that are created, and bit fields of operations.
    ApiKey.METADATA: Permission(by_handler=((DESCRIBE, TOPIC), (CREATE, TOPIC))),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Permission(by_handler=((DESCRIBE, TOPIC),)),
    ApiKey.DESCRIBE_CLUSTER: Permission(by_handler=((DESCRIBE, ResourceType.CLUSTER),)),
    ApiKey.CREATE_TOPICS: Permission(
        parts=(Parts(("topics",), ("topics",), _create_topic),), hides=_hide_configs
    ),
    ApiKey.DELETE_TOPICS: Permission(
        parts=(
            Parts(("topic_names",), ("responses",), _delete_topic, range(_TOPIC_STATES_FROM)),
            Parts(
                ("topics",),
                ("responses",),
                _delete_topic,
                range(_TOPIC_STATES_FROM, VERSION_MAX),
                names_refused=_name_undeleted,
            ),
        ),
        # The handler may find topics that this broker did not know.
        by_handler=((DELETE, TOPIC),),
    ),
    ApiKey.CREATE_PARTITIONS: Permission(
        parts=(Parts(("topics",), ("results",), _each(ALTER, TOPIC, "name")),)
    ),
    ApiKey.DESCRIBE_ACLS: Permission(whole=_on_cluster(DESCRIBE)),
    ApiKey.CREATE_ACLS: Permission(whole=_on_cluster(ALTER)),
    ApiKey.DELETE_ACLS: Permission(whole=_on_cluster(ALTER)),
    ApiKey.DESCRIBE_CONFIGS: Permission(parts=_configs(DESCRIBE_CONFIGS)),
    ApiKey.ALTER_CONFIGS: Permission(parts=_configs(ALTER_CONFIGS)),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Permission(parts=_configs(ALTER_CONFIGS)),
    ApiKey.LIST_CONFIG_RESOURCES: Permission(whole=_on_cluster(DESCRIBE_CONFIGS)),
    ApiKey.DESCRIBE_LOG_DIRS: Permission(whole=_on_cluster(DESCRIBE)),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Permission(whole=_on_cluster(ALTER)),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Permission(whole=_on_cluster(DESCRIBE_CONFIGS)),
    ApiKey.ALTER_CLIENT_QUOTAS: Permission(whole=_on_cluster(ALTER_CONFIGS)),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Permission(whole=_on_cluster(DESCRIBE)),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Permission(whole=_on_cluster(ALTER)),
    ApiKey.DESCRIBE_QUORUM: Permission(whole=_on_cluster(DESCRIBE)),
    ApiKey.ELECT_LEADERS: Permission(whole=_on_cluster(ALTER)),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Permission(whole=_forwarded(ALTER)),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Permission(whole=_forwarded(DESCRIBE)),
    ApiKey.UNREGISTER_BROKER: Permission(whole=_on_cluster(ALTER)),
    OwnApiKey.METADATA_MOVED: Permission(whole=_on_cluster(CLUSTER_ACTION)),
    OwnApiKey.DRAIN_BROKERS: Permission(whole=_drains),
    OwnApiKey.REBALANCE_BROKERS: Permission(whole=_forwarded(ALTER)),
    OwnApiKey.CLUSTER_FEATURES: Permission(whole=_features),
}
PERMISSIONS: Final[Mapping[int, Permission]] = MappingProxyType(
    {**_DATA, **_CLUSTER, **_GROUPS, **_TRANSACTIONS}
)
