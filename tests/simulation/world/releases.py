"""Brokers with less knowledge of each other: one of an earlier release, and lost hints."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.simulation.world.owners import OWNER
from tests.simulation.world.patches import Patch
from tidelog.broker.peers.hints import HintForm
from tidelog.coordinator.cluster.membership import registration
from tidelog.coordinator.cluster.records.records import SHARING_VERSION, BrokerRegistered
from tidelog.protocol.schemas.own.metadata_moved import MetadataMovedRequest

_PROCESSES_MAX = 3
"""At most this many processes of the broker id run, one after the other, before it is upgraded."""


def earlier_release(chance: random.Random, brokers: int) -> list[Patch]:
    """Let the first processes of one broker id register as the first release that shares a bucket.
    Later processes are upgraded."""
    earlier = f"broker-{chance.randrange(brokers)}."
    processes = chance.randint(1, _PROCESSES_MAX)
    seen: list[str] = []

    def registered(**named: Any) -> BrokerRegistered:
        owner = OWNER.get()
        assert owner is not None
        if owner.name.startswith(earlier) and owner.name not in seen:
            seen.append(owner.name)
        if owner.name in seen[:processes]:
            named["version"] = SHARING_VERSION
        return BrokerRegistered(**named)

    return [(registration, "BrokerRegistered", registered)]


def lost_hints() -> list[Patch]:
    """Let every hint name an entry that its receiver has."""

    def request(_: HintForm, __: Sequence[int]) -> MetadataMovedRequest:
        return MetadataMovedRequest(sequence=0)

    return [(HintForm, "request", request)]
