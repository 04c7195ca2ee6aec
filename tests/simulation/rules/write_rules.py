"""Rules on the order of writes.

Kafka does not isolate writes: the records of transactions that run at the same time may lie in
another order in each partition. So a cycle of write dependencies (G0) is an anomaly only in real
time: an acknowledged write lies before every write that another process begins later.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.rules.anomaly import Anomaly
from tests.simulation.rules.history import Key, Operation, Outcome, Send


def write_cycles(operations: list[Operation]) -> Iterator[Anomaly]:
    """G0 in real time: a write began behind an acknowledged one, but lies before it."""
    done = [
        one
        for one in operations
        if one.outcome is Outcome.OK and one.completed is not None and one.sends
    ]
    events = [(one.invoked, False, one) for one in done]
    events += [(one.completed or 0, True, one) for one in done]
    last: dict[Key, tuple[Send, Operation]] = {}
    for _, is_over, operation in sorted(events, key=lambda event: event[0]):
        for send in operation.sends:
            if send.offset is None:
                continue
            before = last.get(send.key)
            if is_over:
                if before is None or send.offset > (before[0].offset or 0):
                    last[send.key] = send, operation
            elif (
                before is not None
                and before[1].process != operation.process
                and send.offset < (before[0].offset or 0)
            ):
                text = (
                    f"{send.key}: {before[0].value!r} of {before[1]} at {before[0].offset}, and"
                    f" later {send.value!r} of {operation} at {send.offset}"
                )
                yield Anomaly("G0", text)
