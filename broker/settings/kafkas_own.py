"""Settings of Kafka's brokers that Tidelog lacks, each with its remedy."""

from __future__ import annotations

from typing import Final

_DISKS: Final = "leave it out: a broker keeps nothing on disks, and --store names the store"
_METADATA: Final = "leave it out: the bucket holds the cluster's metadata, and there is no quorum"
_ID: Final = "leave it out, or give the id with --broker-id"
_REMEDIES: Final = {
    "broker.id": _ID,
    "node.id": _ID,
    "log.dir": _DISKS,
    "log.dirs": _DISKS,
    "process.roles": _METADATA,
}
_REMEDIES_BY_PREFIX: Final = {
    "controller.": _METADATA,
    "metadata.log.": _METADATA,
    "zookeeper.": _METADATA,
    "remote.log.": "leave it out: all of a topic's records lie in the store",
}


def remedy_of_kafkas(name: str) -> str | None:
    """The remedy for a line of Kafka's `server.properties`; None if it is none of these."""
    by_prefix = (
        remedy for prefix, remedy in _REMEDIES_BY_PREFIX.items() if name.startswith(prefix)
    )
    return _REMEDIES.get(name) or next(by_prefix, None)
