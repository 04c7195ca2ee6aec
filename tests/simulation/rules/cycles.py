"""Cycles among operations, by their reads and by real time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.simulation.rules.history import Operation, Outcome


def cycles(
    operations: list[Operation], reads: Iterable[tuple[Operation, Operation]]
) -> list[list[Operation]]:
    """Strongly connected components of more than one operation.

    Edges: `reads` (writer, reader), and real time (an operation that completed before another was
    invoked).
    """
    after: dict[int, set[int]] = {operation.number: set() for operation in operations}
    for earlier, later in _real_time(operations):
        after[earlier].add(later)
    for writer, reader in reads:
        after[writer.number].add(reader.number)
    by_number = {operation.number: operation for operation in operations}
    return [
        [by_number[number] for number in sorted(component)]
        for component in _components({node: sorted(edges) for node, edges in after.items()})
        if len(component) > 1
    ]


def _real_time(operations: list[Operation]) -> Iterator[tuple[int, int]]:
    """Enough edges to imply all others. An operation of the frontier leaves it when another
    operation completes that was invoked after it had completed."""
    events = sorted(
        [(one.invoked, "invoked", one) for one in operations]
        + [
            (one.completed, "completed", one)
            for one in operations
            if one.outcome is Outcome.OK and one.completed is not None
        ],
        key=lambda event: event[0],
    )
    frontier: dict[int, None] = {}
    before: dict[int, list[int]] = {}
    for _, event, operation in events:
        if event == "invoked":
            before[operation.number] = list(frontier)
            for earlier in frontier:
                yield earlier, operation.number
        else:
            for earlier in before[operation.number]:
                frontier.pop(earlier, None)
            frontier[operation.number] = None


def _components(edges: dict[int, list[int]]) -> Iterator[list[int]]:
    """Tarjan's algorithm without recursion."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in edges:
        if root in index:
            continue
        work = [(root, iter(edges[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, successors = work[-1]
            for successor in successors:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    on_stack.add(successor)
                    work.append((successor, iter(edges[successor])))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == index[node]:
                    component = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.append(member)
                        if member == node:
                            break
                    yield component
