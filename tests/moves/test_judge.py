"""The judge of the moves finds the faults that a client can make."""

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
        (GOT[:2], "unseen: 't/2'"),
        ([*GOT, "got t 0 7 2"], "duplicate: 't/2' lies in t-0 at [6, 7]"),
        ([*GOT, "got t 1 1 3"], "phantom: "),
        (["got t 0 5 2", GOT[1], "got t 0 6 0"], "nonmonotonic-send: t-0: 't/0' at 6"),
        (["got t 0 6 2", GOT[1], "got t 0 5 0"], "nonmonotonic-poll: "),
        ([*GOT, "got t 0 6 2"], "nonmonotonic-poll: "),
        (["got t 1 5 0", *GOT[1:]], "misplaced: 't/0'"),
        ([*GOT, "error NOT_COORDINATOR"], "error NOT_COORDINATOR"),
        ([*GOT, "Traceback"], "error: not a line of the programs: Traceback"),
    ],
)
def test_a_fault_is_named(lines: list[str], fault: str) -> None:
    assert any(each.startswith(fault) for each in faults(*lines))
