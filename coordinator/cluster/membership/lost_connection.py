"""Decides by a broken connection that a broker is dead, before its lease ends (rule B2). Pure.

A process that dies breaks its connections, and its address refuses new ones. The seal makes a fence
safe at any moment, so a wrong one costs a take-over and no record. These conditions keep wrong ones
rare:

- on the broken connection the broker had named its incarnation. A starting broker refuses
  connections too, but has not named itself to anyone;
- its registered address refuses twice, 100 ms apart: the machine is there, the process is not. An
  address that does not answer at all says nothing;
- a PUT of the own lease has succeeded since: this broker reaches the store;
- another broker has answered since, or no other lives: this broker reaches the network;
- this broker has fenced no other in this way within a session timeout;
- the broker has written no entry of the metadata log since (`Verdict.holds`).

If one is not met, the lease decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidelog.coordinator.cluster.membership.lease_watch import Renewal, Verdict
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Epoch, Incarnation, Slot

REFUSALS_SECONDS_APART = 0.1
"""From the first refusal to the second."""


@dataclass(frozen=True, slots=True)
class LostConnection:
    """The findings after a connection broke on which a broker had named its incarnation."""

    to: BrokerInfo
    began_at: float
    """The beginning of the investigation, after the break."""
    refused_at: tuple[float, ...]
    """When its registered address was tried and refused."""
    last_entry: int
    """Its newest entry, by a read of the metadata log that began after `began_at`."""
    durable_end: Slot
    """Its WAL's durable end by its last lease (rule C10)."""
    answered: frozenset[Epoch]
    """The incarnations that have answered a request since then."""


class ConnectionVerdicts:
    """One broker's verdicts by lost connections."""

    def __init__(self, me: Incarnation) -> None:
        self._me = me
        self._fenced_at = -math.inf

    def fenced(self, now: float) -> None:
        """This broker has fenced another one by a lost connection."""
        self._fenced_at = now

    def verdict(
        self, state: ClusterState, lost: LostConnection, renewal: Renewal | None, now: float
    ) -> Verdict | None:
        """The verdict, if the incarnation may be fenced now.

        `renewal`: the last successful PUT of the own lease.
        """
        live = frozenset(state.live_epochs.values())
        others = live - {self._me.epoch, lost.to.epoch}
        met = (
            lost.to.epoch in live
            and _refuses(lost)
            and renewal is not None
            and renewal.started_at >= lost.began_at
            and (not others or not others.isdisjoint(lost.answered))
            and now - self._fenced_at >= lost.to.session_timeout_ms / 1000
        )
        if not met:
            return None
        return Verdict(lost.to, lost.last_entry, lost.durable_end, live, alone=not others)


def _refuses(lost: LostConnection) -> bool:
    times = lost.refused_at
    if not times or times[0] < lost.began_at:
        return False
    return times[-1] - times[0] >= REFUSALS_SECONDS_APART
