"""The vocabulary of access control: Kafka's codes for resources, patterns, operations and
permissions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

WILDCARD: Final = "*"
"""As a literal resource's name, as a host, or as a user's name: any."""
ANY_USER: Final = "User:*"
"""The principal of a rule for everyone."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The only name of a resource of type CLUSTER."""


class ResourceType(IntEnum):
    """The type of a protected resource. Tidelog has no rules for delegation tokens and users."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How a name selects resources. ANY and MATCH occur in filters alone."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    """The name is a resource's, and the filter selects all rules that apply to it."""
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """An operation that a rule allows or denies on a resource."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class PermissionType(IntEnum):
    """Whether a rule allows or denies."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_OF_TOPICS: Final = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
OPERATIONS: Final[Mapping[ResourceType, tuple[AclOperation, ...]]] = MappingProxyType(
    {
        ResourceType.TOPIC: _OF_TOPICS,
        ResourceType.GROUP: (
            AclOperation.READ,
            AclOperation.DELETE,
            AclOperation.DESCRIBE,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
        ),
        ResourceType.CLUSTER: (
            AclOperation.CREATE,
            AclOperation.ALTER,
            AclOperation.DESCRIBE,
            AclOperation.CLUSTER_ACTION,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
            AclOperation.IDEMPOTENT_WRITE,
        ),
        ResourceType.TRANSACTIONAL_ID: (
            AclOperation.WRITE,
            AclOperation.DESCRIBE,
            AclOperation.TWO_PHASE_COMMIT,
        ),
    }
)
"""The operations that mean something for each type of resource."""


def name_of(code: IntEnum) -> str:
    """The name that Kafka's tools show: IdempotentWrite."""
    return "".join([word.capitalize() for word in code.name.split("_")])
