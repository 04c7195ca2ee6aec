"""The records that the cluster may write, so that each live broker can read them. Pure.

A broker registers with its version: its release reads all records up to that version. A record is
written only while all live brokers can read it. So a cluster that is upgraded broker by broker
never writes a record that stops one of them.

That alone would not let an operator go back: the last upgraded broker may write a newer record at
once. So each record of a version above FIRST_LEVEL waits for the cluster's level too. An operator
raises it (`tidelog cluster features upgrade`) when no way back is needed any more. From then on a
broker of a lower version is refused at its registration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from tidelog.coordinator.cluster.records.records import (
    ACL_VERSION,
    CREDENTIALS_VERSION,
    DRAIN_VERSION,
    FIRST_LEVEL,
    LEVEL_VERSION,
    LISTENERS_VERSION,
    QUOTAS_VERSION,
    AclsChanged,
    CredentialsChanged,
    DrainChanged,
    LevelRaised,
    ListenersRegistered,
    QuotasChanged,
    Record,
)
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import Refused

VERSION_OF_RECORD: Final[Mapping[type[Record], int]] = MappingProxyType(
    {
        DrainChanged: DRAIN_VERSION,
        AclsChanged: ACL_VERSION,
        CredentialsChanged: CREDENTIALS_VERSION,
        ListenersRegistered: LISTENERS_VERSION,
        LevelRaised: LEVEL_VERSION,
        QuotasChanged: QUOTAS_VERSION,
    }
)
"""The lowest version of brokers that can read a record. The records that the table lacks are known
to all brokers that share a bucket."""


class FeatureRefused(Refused):
    """Not all live brokers can read such a record, or its level is not raised; nothing changed."""


def level_of(state: ClusterState) -> int:
    """The highest version whose records the cluster may write."""
    return max(state.level, FIRST_LEVEL)


def lacking(state: ClusterState, version: int) -> list[BrokerInfo]:
    """The live brokers of an earlier version."""
    return [info for info in state.live_brokers() if info.version < version]


def check_readable(state: ClusterState, records: Iterable[Record]) -> None:
    """Raise FeatureRefused unless each live broker reads these records, and the level has them."""
    for record in records:
        version = VERSION_OF_RECORD.get(type(record), 0)
        old = lacking(state, version)
        if old:
            raise FeatureRefused(
                f"these brokers are of an earlier release, which cannot read"
                f" {type(record).__name__}: {named(old)}; upgrade them first"
            )
        if version > level_of(state):
            raise FeatureRefused(
                f"{type(record).__name__} needs level {version}, and the cluster has"
                f" {level_of(state)}; raise it with `tidelog cluster features upgrade`"
            )


def raised(state: ClusterState, version: int) -> tuple[LevelRaised, ...]:
    """The record that raises the cluster's level to a version; none if it is so already.

    Raises FeatureRefused.
    """
    if version <= level_of(state):
        return ()
    old = lacking(state, version)
    if old:
        raise FeatureRefused(
            f"these brokers are of an earlier release, which has not level {version}: {named(old)};"
            " upgrade them first"
        )
    return (LevelRaised(version),)


def named(brokers: Iterable[BrokerInfo]) -> str:
    """The ids of brokers, for messages."""
    return ", ".join(str(info.broker_id) for info in brokers)
