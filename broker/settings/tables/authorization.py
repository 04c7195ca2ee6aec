"""The settings of authorization."""

from __future__ import annotations

import re

from tidelog.broker.settings.kinds import AtLeast, Matching, OneOf, Setting
from tidelog.broker.settings.tables.columns import ANY, BOOLEAN, INT, STRING

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SHORT_NAME = "acl"
_SUPER_USERS = re.compile(r"(\s*((User|Group):[^;]*[^;\s])?\s*;)*\s*((User|Group):[^;]*[^;\s])?\s*")

# fmt: off
AUTHORIZATION_SETTINGS: tuple[Setting, ...] = (
    Setting("authorizer.class.name", STRING, "", OneOf(("", STANDARD_AUTHORIZER, SHORT_NAME)),
        "Switches access control rules on; both names mean the same. Without it every client may do"
        " everything."),
    Setting("super.users", STRING, "",
        Matching(_SUPER_USERS, "User:name or Group:name, separated by semicolons"),
        "Principals that may do everything, whatever the rules say. Brokers need to be among them,"
        " or need rules that allow them CLUSTER_ACTION."),
    Setting("allow.everyone.if.no.acl.found", BOOLEAN, False, ANY,
        "Whether an operation is allowed if no rule at all is about its resource."),
    Setting("authorizer.decisions.max", INT, 100_000, AtLeast(1),
        "Decisions that a broker remembers until the rules change."),
    Setting("audit.lines.per.second.max", INT, 1000, AtLeast(0),
        "Lines that a broker writes to the audit log in a second; further ones are counted."),
)
# fmt: on
