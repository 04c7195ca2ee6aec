"""The audit log: one line of JSON for each refused operation and each administrator's change.

The lines go to the logger `tidelog.audit`. An attacker could fill disks with refusals, so a second
has a limited number of lines. The first line of a later second tells how many were left out.
"""

from __future__ import annotations

import json
import logging
from typing import Final

from tidelog.broker.authorization.decisions import AccessDecision
from tidelog.clock import Clock
from tidelog.security.acl_codes import AclOperation, ResourceType, name_of
from tidelog.security.principal import Principal

logger = logging.getLogger("tidelog.audit")

TEXT_LENGTH_MAX: Final = 256
"""Characters of one member of a line; clients choose names of up to 32 KiB."""
ANY_NAME: Final = "*"


class AuditLog:
    """The audit log of one broker."""

    def __init__(self, clock: Clock, lines_per_second_max: int) -> None:
        self._clock = clock
        self._lines_max = lines_per_second_max
        self._second = float("-inf")
        self._lines = 0
        self._left_out = 0

    def note(
        self,
        principal: Principal,
        host: str,
        client_id: str | None,
        api: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str | None,
        decision: AccessDecision,
    ) -> None:
        """Write a line about a decision, if this second has room for it."""
        if not self._has_room():
            self._left_out += 1
            return
        line: dict[str, object] = {
            "decision": "allowed" if decision.is_allowed else "denied",
            "principal": str(principal),
            "host": host,
            "client_id": client_id,
            "api": api,
            "operation": name_of(operation),
            "resource": f"{name_of(resource_type)}:{ANY_NAME if name is None else name}",
            "rule": decision.ground.value if decision.rule is None else str(decision.rule),
        }
        line = {key: _short(value) for key, value in line.items()}
        if self._left_out:
            line["left_out"] = self._left_out
            self._left_out = 0
        logger.info("%s", json.dumps(line))

    def _has_room(self) -> bool:
        now = self._clock.monotonic()
        if now - self._second >= 1.0:
            self._second, self._lines = now, 0
        self._lines += 1
        return self._lines <= self._lines_max


def _short(value: object) -> object:
    if isinstance(value, str) and len(value) > TEXT_LENGTH_MAX:
        return value[: TEXT_LENGTH_MAX - 3] + "..."
    return value
