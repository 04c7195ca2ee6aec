"""Composes several callers' changes into one entry of the metadata log (rule A3). Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tidelog.coordinator.cluster.records.records import Record
from tidelog.coordinator.cluster.state.features import check_readable
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import Fenced
from tidelog.identifiers import Epoch

Build: TypeAlias = Callable[[ClusterState], Sequence[Record]]
"""Returns the records of a change, given the state that they will follow.

It may be called several times and has no side effects. It raises Refused if the change is
impossible.
"""


@dataclass(frozen=True, slots=True)
class Composition:
    """One entry for several builds.

    `state` is the state after the entry's records, not yet advanced. `errors[i]` is the exception
    of the i-th build, or None.
    """

    records: tuple[Record, ...]
    state: ClusterState
    errors: tuple[Exception | None, ...]

    @property
    def depends_on_state(self) -> bool:
        """Whether some answer depends on the state alone and not on the entry's success."""
        return not self.records or any(error is not None for error in self.errors)


def compose(state: ClusterState, author: Epoch | None, builds: Sequence[Build]) -> Composition:
    """Run the builds one after the other, each on the state after the previous one."""
    records: list[Record] = []
    errors: list[Exception | None] = []
    for build in builds:
        try:
            check_author(state, author)
            added = tuple(build(state))
            following = state.extended(author, added)
            if author is not None:
                # A newcomer judges for itself: it fences the dead in its next entry.
                check_readable(following, added)
            state = following
        except Exception as error:  # noqa: BLE001 - the error of a build goes to its caller
            errors.append(error)
        else:
            records.extend(added)
            errors.append(None)
    return Composition(tuple(records), state, tuple(errors))


def check_author(state: ClusterState, author: Epoch | None) -> None:
    """Raise Fenced if the author was registered and is now fenced, retired or forgotten."""
    if author is None or author > state.sequence or state.is_live(author):
        return
    raise Fenced(
        f"broker incarnation {state.incarnation(author) or f'of epoch {author}'} was fenced at or"
        f" before entry {state.sequence} of the metadata log; the change was not made. This process"
        " must stop"
    )
