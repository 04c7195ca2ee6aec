"""Decides whether a broker may be drained, or a drain undone. Pure.

A draining broker goes on running, gives all of its partitions away and gets no new ones. The drain
is a record of the metadata log, so all brokers know it and no death loses it but the drained
broker's own: the next incarnation of its id is not drained.

If all brokers that could take partitions die meanwhile, the draining ones keep what they have and
take over what the dead ones had: a drain never leaves a partition without a leader.
"""

from __future__ import annotations

from tidelog.coordinator.cluster.records.records import DRAIN_VERSION, DrainChanged
from tidelog.coordinator.cluster.state.features import lacking, named
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import Refused
from tidelog.identifiers import BrokerId


class DrainRefused(Refused):
    """The broker cannot be drained now; nothing was changed."""


class NotLive(DrainRefused):
    """No live broker has this id."""


def drain_changes(
    state: ClusterState, broker_id: BrokerId, *, draining: bool
) -> tuple[DrainChanged, ...]:
    """The records that begin or end the drain of a broker; none if it is so already.

    Raises DrainRefused.
    """
    info = state.broker(broker_id)
    if info is None:
        raise NotLive(not_live(state, broker_id))
    if info.draining == draining:
        return ()
    if draining:
        old = lacking(state, DRAIN_VERSION)
        if old:
            raise DrainRefused(
                "these brokers are of an earlier release, which knows no drains:"
                f" {named(old)}; upgrade them first"
            )
        if not any(each.epoch != info.epoch for each in state.takers()):
            raise DrainRefused(_last(state, broker_id))
    return (DrainChanged(info.epoch, draining),)


def not_live(state: ClusterState, broker_id: int) -> str:
    """Why an operator's request for a broker is refused: it is unknown or has ended."""
    live = ", ".join(str(info.broker_id) for info in state.live_brokers())
    return f"there is no live broker {broker_id}; these live: {live}"


def is_drained(broker_id: int) -> str:
    """Why a broker gets no partition that an operator wants there."""
    return (
        f"broker {broker_id} is being drained; end that with"
        f" `tidelog cluster drain {broker_id} --undo`"
    )


def _last(state: ClusterState, broker_id: int) -> str:
    others = [each.broker_id for each in state.live_brokers() if each.draining]
    remedy = "start another broker first"
    if others:
        named = ", ".join(map(str, others))
        remedy += f", or undo the drain of another one: {named}"
    return f"broker {broker_id} is the last one that can take partitions; {remedy}"
