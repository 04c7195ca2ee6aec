"""The judge of the moves finds what a client may get wrong."""

from __future__ import annotations

import pytest

from tests.moves.judge import Seen

SENT = ["ready", "sent 0 0", "sent 1 1", "sent 0 2"]
GOT = ["got t 0 5 0", "got t 1 0 1", "got t 0 6 2"]


def faults(*lines: str) -> list[str]:
    seen = Seen()
    seen.add([*SENT, *lines])
    return seen.faults(["t"])


def test_each_record_once_and_in_order_is_right() -> None:
    assert faults(*GOT) == []
    assert faults(*GOT, "note a connection was lost") == []


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (GOT[:2], "t-0: 1 records are missing, the first is 2"),
        ([*GOT, "got t 0 7 2"], "t-0: 1 records came again, the first is 2"),
        ([*GOT, "got t 1 1 3"], "t-1: 1 records were not sent, the first is 3"),
        (["got t 0 5 2", GOT[1], "got t 0 6 0"], "t-0: the records are not in order"),
        (["got t 0 6 0", GOT[1], "got t 0 5 2"], "t-0: the records are not in order"),
        ([*GOT, "error NOT_COORDINATOR"], "error NOT_COORDINATOR"),
        ([*GOT, "Traceback"], "error: not a line of the programs: Traceback"),
    ],
)
def test_a_fault_is_named(lines: list[str], fault: str) -> None:
    assert faults(*lines) == [fault]
