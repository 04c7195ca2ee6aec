"""Tidelog's command line, as a later release with one more feature, which exists only for a test.

Its brokers have one version more, and know the record `BeaconLit`. The metadata log must not hold
this record while a broker of the present release may read it. Each broker of this build tries again
and again to write the record, from its start on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tidelog.broker import startup
from tidelog.broker.ownership import ownership
from tidelog.broker.ownership.ownership import Ownership
from tidelog.cli import main
from tidelog.coordinator.cluster.membership import registration
from tidelog.coordinator.cluster.records import records
from tidelog.coordinator.cluster.state import features, transitions
from tidelog.coordinator.cluster.state.draft import Draft
from tidelog.errors import Refused
from tidelog.identifiers import Epoch

NEWER_VERSION = records.BROKER_VERSION + 1
RECORD_NAME = "BeaconLit"
TRY_SECONDS = 0.2
lighting: set[asyncio.Task[None]] = set()


@dataclass(frozen=True, slots=True)
class BeaconLit:
    """A record that changes no state."""

    epoch: Epoch


def _beacon_lit(_draft: Draft, _record: BeaconLit) -> None:
    pass


def install() -> None:
    """Add the feature to this process."""
    beginning: Callable[..., Ownership] = ownership.new_ownership

    def new_ownership(environment: Any, settings: Any, membership: Any, *others: Any) -> Ownership:
        task = asyncio.get_running_loop().create_task(_light(membership))
        lighting.add(task)
        return beginning(environment, settings, membership, *others)

    changes: list[tuple[ModuleType, str, object]] = [
        (records, "RECORD_TYPES", {**records.RECORD_TYPES, RECORD_NAME: BeaconLit}),
        (
            features,
            "VERSION_OF_RECORD",
            dict([*features.VERSION_OF_RECORD.items(), (BeaconLit, NEWER_VERSION)]),
        ),
        (
            transitions,
            "TRANSITIONS",
            dict([*transitions.TRANSITIONS.items(), (BeaconLit, _beacon_lit)]),
        ),
        (registration, "BROKER_VERSION", NEWER_VERSION),
        (startup, "new_ownership", new_ownership),
    ]
    for module, name, value in changes:
        setattr(module, name, value)


async def _light(membership: Any) -> None:
    """Write one record as soon as the cluster lets this broker do so."""
    epoch = membership.incarnation.epoch

    def build(_: object) -> Sequence[Any]:
        return [BeaconLit(epoch)]

    while True:
        await asyncio.sleep(TRY_SECONDS)
        try:
            await membership.metadata.append(epoch, build)
        except Refused as refused:
            if not isinstance(refused, features.FeatureRefused):
                return
        else:
            return


if __name__ == "__main__":
    install()
    main()
