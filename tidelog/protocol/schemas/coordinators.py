"""FindCoordinator (10): the coordinator of a group or of a transactional id."""

from __future__ import annotations

from tidelog.protocol.fields import array, int8, int16, int32, string
from tidelog.protocol.message import Request, Response, Struct


class FindCoordinatorRequest(
    Request["FindCoordinatorResponse"], api_key=10, versions=(0, 6), flexible=3
):
    """Request the coordinators of keys: one key up to version 3, several from 4.

    `key_type` 0: groups, 1: transactional ids, 2: share groups.
    """

    key: str = string("0-3")
    key_type: int = int8("1+")
    coordinator_keys: list[str] = array(string, "4+")


class Coordinator(Struct):
    """The coordinator of one key."""

    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class FindCoordinatorResponse(Response, api_key=10, versions=(0, 6), flexible=3):
    """One coordinator up to version 3, several from 4."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0-3")
    error_message: str | None = string("1-3", nullable="0+")
    node_id: int = int32("0-3")
    host: str = string("0-3")
    port: int = int32("0-3")
    coordinators: list[Coordinator] = array(Coordinator, "4+")
