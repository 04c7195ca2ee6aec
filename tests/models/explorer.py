"""Explicit-state exploration: breadth first, or long random walks."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

W = TypeVar("W", bound=Hashable)


class Violation(Exception):
    """A state that the protocol must never reach."""


class Outcome(NamedTuple):
    """The findings of an exploration."""

    states: int
    whole: bool
    """Whether every reachable state was visited."""
    violation: str | None
    trace: tuple[str, ...]
    """The steps that lead to the violation."""

    def __str__(self) -> str:
        extent = "all" if self.whole else "the first"
        verdict = self.violation or "no violation"
        steps = "".join(f"\n    {step}" for step in self.trace)
        return f"{extent} {self.states} states: {verdict}{steps}"


class Model(Generic[W]):
    """A first state, the possible steps of a state, and the invariants.

    A model may also have a goal: a state that the protocol can still reach from every state.
    """

    def __init__(
        self,
        first: W,
        steps: Callable[[W], Iterable[tuple[str, W]]],
        check: Callable[[W], None],
        goal: Callable[[W], bool] | None = None,
    ) -> None:
        """`steps` and `check` raise Violation.

        `goal`: must be reachable from every state. `explore` proves it where it visits all states.
        """
        self._first = first
        self._steps = steps
        self._check = check
        self._goal = goal

    def explore(self, states_max: int) -> Outcome:
        """Visit every state, shortest traces first, or the first `states_max` of them."""
        parents: dict[W, tuple[W, str] | None] = {self._first: None}
        predecessors: dict[W, list[W]] = {self._first: []}
        waiting = deque([self._first])
        state = self._first
        try:
            while waiting and len(parents) < states_max:
                state = waiting.popleft()
                self._check(state)
                for name, following in self._steps(state):
                    if following not in parents:
                        parents[following] = (state, name)
                        waiting.append(following)
                    if self._goal is not None:
                        predecessors.setdefault(following, []).append(state)
            if self._goal is not None and not waiting:
                reached = reaching([each for each in parents if self._goal(each)], predecessors)
                for state in parents:
                    if state not in reached:
                        raise Violation("the goal is out of reach")
        except Violation as violation:
            trace = []
            parent = parents[state]
            while parent is not None:
                state, name = parent
                trace.append(name)
                parent = parents[state]
            return Outcome(len(parents), False, str(violation), tuple(reversed(trace)))
        return Outcome(len(parents), not waiting, None, ())

    def walk(self, walks: int, length: int, seed: int) -> Outcome:
        """Random runs, for limits that are too wide to visit every state."""
        chance = random.Random(seed)
        visited = 0
        for _ in range(walks):
            state, trace = self._first, []
            try:
                for _ in range(length):
                    choices = list(self._steps(state))
                    if not choices:
                        break
                    name, state = chance.choice(choices)
                    trace.append(name)
                    visited += 1
                    self._check(state)
            except Violation as violation:
                return Outcome(visited, False, str(violation), tuple(trace))
        return Outcome(visited, False, None, ())


def reaching(goals: Iterable[W], predecessors: Mapping[W, Sequence[W]]) -> set[W]:
    """The states from which steps lead to one of `goals`."""
    waiting = list(goals)
    reached = set(waiting)
    while waiting:
        for before in predecessors[waiting.pop()]:
            if before not in reached:
                reached.add(before)
                waiting.append(before)
    return reached


def catch_all(variants: Iterable[str], catch: Callable[[str], Outcome]) -> int:
    """Print the result of each broken variant. Returns how many are not caught."""
    missed = 0
    for variant in variants:
        outcome = catch(variant)
        missed += outcome.violation is None
        print(f"{variant}: {outcome}", flush=True)
    return missed


def explore_or_walk(arguments: list[str], narrow: Model[W], wide: Model[W]) -> int:
    """Visit all states of the narrow world, or with `--walks` make long random runs in the wide
    one. Returns the number of violations."""
    if "--walks" in arguments:
        outcome = wide.walk(walks=20_000, length=150, seed=1)
    else:
        outcome = narrow.explore(5_000_000)
    print(outcome)
    return int(outcome.violation is not None)
