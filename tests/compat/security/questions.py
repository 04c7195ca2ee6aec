"""The list of requests and rules as questions to brokers, and the compared parts of the answers."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from tests.unit.broker.dispatch.permission_cases import (
    CASES,
    DESCRIBE_TOPIC,
    GROUP,
    TOPIC,
    TOPIC_ID,
    Case,
    needs,
    rules_for,
)
from tidelog.coordinator.cluster.records.acl_rules import AclRule
from tidelog.protocol.api import OWN_KEYS_FROM
from tidelog.protocol.message import Request, Struct
from tidelog.protocol.schemas import groups
from tidelog.protocol.schemas.cluster import metadata, topics
from tidelog.protocol.wire import NULL_UUID

_CHOOSES_CREATION_FROM: Final = 4
DELETE_TOPIC = needs("DELETE", "TOPIC")
DELETE_GROUP = needs("DELETE", "GROUP")
SINGLE_CASES: Final = [
    Case(
        metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=True
        ),
        (4, 13),
        (DESCRIBE_TOPIC, needs("CREATE", "TOPIC")),
        note=" that creates",
    ),
    Case(
        topics.DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=30_000),
        (1, 5),
        (DESCRIBE_TOPIC, DELETE_TOPIC),
        note=" of one that exists",
    ),
    Case(
        topics.DeleteTopicsRequest(topics=[topics.DeleteTopicState(name=TOPIC)], timeout_ms=30_000),
        (6,),
        (DESCRIBE_TOPIC, DELETE_TOPIC),
        note=" of one that exists",
    ),
    Case(
        topics.DeleteTopicsRequest(
            topics=[topics.DeleteTopicState(name=None, topic_id=TOPIC_ID)], timeout_ms=30_000
        ),
        (6,),
        (DESCRIBE_TOPIC, DELETE_TOPIC),
        note=" by id",
    ),
    Case(
        topics.DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=30_000),
        (5,),
        (needs("DELETE", "CLUSTER"),),
        note=" by a right on the cluster",
    ),
    Case(
        topics.CreateTopicsRequest(
            topics=[topics.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)],
            timeout_ms=30_000,
        ),
        (2, 7),
        (needs("CREATE", "TOPIC"),),
        note=" of a new one",
    ),
    Case(groups.DeleteGroupsRequest(groups_names=[GROUP]), (0, 2), (DELETE_GROUP,)),
]
"""Requests that change the named resource."""
ABSENT: Final = "ghosts"
"""A topic that does not exist."""
ABSENT_ID: Final = UUID(int=2)
EVERYONE: Final = "User:*"
_ALICE: Final = "User:alice"
_TOLD: Final = frozenset(
    {
        "name",
        "topic",
        "topic_name",
        "group_id",
        "transactional_id",
        "resource_name",
        "user",
        "partition_index",
        "index",
        "partition",
    }
)
"""Compared fields of answers with names and places. Fields that end as `_ENDS` have errors and
operations."""
_ENDS: Final = ("error_code", "authorized_operations")
_COUNTED: Final = "configs"
"""Settings differ, so the comparison is only whether some are returned."""


@dataclass(frozen=True)
class Question:
    """A request of one principal, with rules for that principal."""

    case: str
    kind: str
    """The kind of rule, and the permission that it is about."""
    request: Request[Any]
    versions: tuple[int, ...]
    principal: str
    rules: tuple[AclRule, ...]
    topic: str = TOPIC
    group: str = GROUP
    """The topic and the group that the request names."""

    @property
    def is_about_everyone(self) -> bool:
        """Whether its rules bind other principals too."""
        return any(rule.principal == EVERYONE for rule in self.rules)


def questions() -> Iterator[Question]:
    """Every case that Kafka has, with every kind of rule, for topics that exist and that do not."""
    for case in CASES:
        if case.request.API_KEY >= OWN_KEYS_FROM or _is_forwarded(case.request):
            continue
        versions = tuple(range(case.versions[0], case.versions[-1] + 1))
        yield from _asked(case, str(case), case.request, versions, {})
        absent = deepcopy(case.request)
        if _replace(absent, {TOPIC: ABSENT, TOPIC_ID: ABSENT_ID}):
            # Before this version the request itself creates the topic.
            if isinstance(absent, metadata.MetadataRequest):
                versions = tuple(each for each in versions if each >= _CHOOSES_CREATION_FROM)
            if versions:
                yield from _asked(case, f"{case}, absent topic", absent, versions, {TOPIC: ABSENT})


def questions_of_single_resources() -> Iterator[Question]:
    """Requests that change the named resource, so each question names another one."""
    for case in SINGLE_CASES:
        for version in case.versions:
            for question in _asked(
                case, f"{case} in version {version}", case.request, (version,), {}
            ):
                topic, group = (f"{each}-{question.principal}" for each in (TOPIC, GROUP))
                request = deepcopy(case.request)
                _replace(request, {TOPIC: topic, GROUP: group})
                rules = tuple(
                    replace(rule, name=f"{rule.name}-{question.principal}")
                    if rule.name in (TOPIC, GROUP)
                    else rule
                    for rule in question.rules
                )
                yield replace(question, request=request, rules=rules, topic=topic, group=group)


def _asked(
    case: Case,
    name: str,
    request: Request[Any],
    versions: tuple[int, ...],
    renamed: Mapping[str, str],
) -> Iterator[Question]:
    """The questions of a case; `renamed` are other names of its resources."""
    code = zlib.crc32(name.encode())
    for number, (kind, rules) in enumerate(_kinds(case)):
        principal = f"p{code:08x}{number}"
        yield Question(
            name,
            kind,
            request,
            versions,
            principal,
            tuple(
                replace(
                    rule,
                    name=_renamed(rule.name, renamed),
                    principal=f"User:{principal}" if rule.principal == _ALICE else rule.principal,
                )
                for rule in dict.fromkeys(rules)
            ),
        )


def _kinds(case: Case) -> Iterator[tuple[str, list[AclRule]]]:
    if not case.needed:
        yield "no rule", []
    for need in case.needed:
        others = [each.rule() for each in case.needed if each is not need]
        for kind, rules, _ in rules_for(need):
            yield f"{kind} ({need.operation} {need.of})", [*others, *rules]


def _renamed(name: str, renamed: Mapping[str, str]) -> str:
    """A rule's name for another resource: the whole name, its prefix or a longer one."""
    for old, new in renamed.items():
        if name.startswith(old):
            return new + name[len(old) :]
        if old.startswith(name):
            return new[: len(name)]
    return name


def _is_forwarded(request: Request[Any]) -> bool:
    return bool(getattr(request, "is_forwarded", False))


def _replace(node: Any, values: Mapping[Any, Any]) -> bool:
    """Replace values in a message. Returns whether the message had one."""
    found = False
    for field in node.FIELDS:
        value = getattr(node, field.name)
        if isinstance(value, list):
            for position, each in enumerate(value):
                if isinstance(each, Struct):
                    found |= _replace(each, values)
                elif isinstance(each, str) and each in values:
                    value[position] = values[each]
                    found = True
        elif isinstance(value, str | UUID) and value in values:
            setattr(node, field.name, values[value])
            found = True
    return found


def outcome(node: Any, left_out: frozenset[str] = frozenset()) -> Any:
    """An answer's part about permissions: errors, names, operations, and whether it has ids.

    `left_out` are names of fields that are not compared.
    """
    told: dict[str, Any] = {}
    for field in node.FIELDS:
        name, value = field.name, getattr(node, field.name)
        if name in left_out:
            continue
        if name == _COUNTED:
            told[name] = bool(value)
        elif isinstance(value, list):
            parts = [outcome(each, left_out) for each in value if isinstance(each, Struct)]
            if any(parts):
                told[name] = sorted(parts, key=repr)
        elif name in _TOLD or name.endswith(_ENDS):
            told[name] = value
        elif isinstance(value, UUID):
            told[name] = value != NULL_UUID
    return told
