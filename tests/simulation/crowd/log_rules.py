"""Rules on the state that brokers derive from the metadata log. Pure.

- Two brokers at the same entry have the same state, whether they read entries or a snapshot.
- No broker fences a living process that no fault has hit. An outage of the store hits all alike,
  so it ends without fences (B2).
- No record is written that a live broker cannot read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.records.records import (
    BrokerFenced,
    BrokerRegistered,
    LevelRaised,
    Record,
)
from tidelog.coordinator.cluster.state.features import VERSION_OF_RECORD, lacking
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Epoch

STRIDE = 7
"""The states are compared every this many entries, since a comparison walks through the state."""


class LogRules:
    """Follows each entry that each broker applies."""

    def __init__(self, may_be_fenced: Callable[[ProcessIdentity], bool]) -> None:
        """`may_be_fenced`: whether a process is dead by now, or was hit by a fault."""
        self.violations: list[str] = []
        self.compared = 0
        self.fences = 0
        self.levels_raised = 0
        self._may_be_fenced = may_be_fenced
        self._judged = -1
        self._processes: dict[Epoch, ProcessIdentity] = {}
        self._states: dict[int, tuple[str, ClusterState]] = {}

    def joined(self, who: str, state: ClusterState) -> None:
        """A broker follows the log from this state on."""
        self._processes.update({info.epoch: info.process for info in state.brokers.values()})
        self._compare(who, state)

    def applied(
        self, who: str, sequence: int, records: Sequence[Record], state: ClusterState
    ) -> None:
        """A broker has applied an entry, and has this state."""
        if sequence % STRIDE == 0:
            self._compare(who, state)
        if sequence <= self._judged:
            return
        # The first broker that applies an entry is the one that has just written it.
        self._judged = sequence
        for record in records:
            match record:
                case BrokerRegistered(process=process):
                    self._processes[Epoch(sequence)] = process
                case BrokerFenced(epoch):
                    self._judge_fence(who, sequence, epoch)
                case LevelRaised():
                    self.levels_raised += 1
                case _:
                    pass
            behind = lacking(state, VERSION_OF_RECORD.get(type(record), 0))
            if behind:
                ids = [info.broker_id for info in behind]
                self.violations.append(
                    f"entry {sequence} has a {type(record).__name__}, which brokers {ids} cannot"
                    " read"
                )

    def _judge_fence(self, who: str, sequence: int, epoch: Epoch) -> None:
        self.fences += 1
        process = self._processes.get(epoch)
        if process is not None and not self._may_be_fenced(process):
            self.violations.append(
                f"entry {sequence}, first applied by {who}, fences {process}, which lives and was"
                " hit by no fault"
            )

    def _compare(self, who: str, state: ClusterState) -> None:
        first, known = self._states.setdefault(state.sequence, (who, state))
        if known is state:
            return
        self.compared += 1
        if known != state:
            parts = [
                name for name in state.__slots__ if getattr(known, name) != getattr(state, name)
            ]
            self.violations.append(
                f"at entry {state.sequence} the states of {first} and {who} differ in {parts}"
            )
