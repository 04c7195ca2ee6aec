"""Moments of Spark's Python processes that a test watches. Each process notes its moments. At a
moment that the test has ordered, it stops itself until the test kills it or wakes it up.

Spark's processes are forked, reused and killed, and are no children of the test. So the messages to
the test lie in a folder that the environment names:

    notes        a line for each moment that came: moment, batch, process, driver
    orders/      the moments at which the next process is to stop, each with a first batch
    held/        an order that a process has taken: the process has stopped, or is about to stop
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

from tidelog.crash_points import CrashPoint

MOMENTS_VARIABLE = "TIDELOG_TEST_MOMENTS"
CALLED = "commit called"
"""The moment at which a commit call begins. It has sent no request yet."""


class Note(NamedTuple):
    """A moment that a process has noted."""

    moment: str
    batch: int
    pid: int
    driver: int
    """The process id of the driver of the process's session."""


class Moments:
    """Crash points of one batch, in a process that may be stopped at them."""

    def __init__(self, folder: Path, batch: int) -> None:
        self._folder = folder
        self._batch = batch

    @classmethod
    def of_environment(cls, batch: int) -> Moments:
        """The moments' folder, as the test that has started the driver sets it."""
        return cls(Path(os.environ[MOMENTS_VARIABLE]), batch)

    def hit(self, point: CrashPoint) -> None:
        """A crash point is such a moment."""
        self.pass_by(point.value)

    def pass_by(self, moment: str) -> None:
        """Note the moment, and stop if the test has ordered it. If several processes come, one
        takes the order."""
        self.note(moment)
        order = self._folder / "orders" / moment
        held = self._folder / "held" / ".".join(map(str, self._seen(moment)))
        try:
            if self._batch < int(order.read_text()):
                return
            order.rename(held)
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGSTOP)

    def note(self, moment: str) -> None:
        """Note the moment, and do not stop."""
        line = "\t".join(map(str, self._seen(moment))).encode() + b"\n"
        notes = os.open(self._folder / "notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            # One write, so that the lines of several processes do not mix.
            os.write(notes, line)
        finally:
            os.close(notes)

    def _seen(self, moment: str) -> Note:
        return Note(moment, self._batch, os.getpid(), os.getsid(0))


class Orders:
    """The test's side of the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for each in ("orders", "held"):
            (folder / each).mkdir(parents=True)

    def hold(self, moment: str, batch: int = 0) -> None:
        """Order the next process that reaches this moment, in this batch or a later one, to
        stop."""
        unseen = self.folder / "being-written"
        unseen.write_text(str(batch))
        unseen.rename(self.folder / "orders" / moment)

    def held(self, moment: str) -> Note | None:
        """The process that has stopped at the moment. Each process is returned once."""
        for each in (self.folder / "held").iterdir():
            note = _parsed(each.name.split("."))
            if note.moment == moment:
                each.unlink()
                return note
        return None

    def notes(self) -> list[Note]:
        """All noted moments, in their order."""
        path = self.folder / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        return [_parsed(line.split("\t")) for line in lines]

    def count(self, moment: str, batch: int | None = None) -> int:
        """How often a moment was noted, in a batch or in all."""
        return sum(note.moment == moment and batch in (None, note.batch) for note in self.notes())


def _parsed(fields: list[str]) -> Note:
    moment, *numbers = fields
    return Note(moment, *map(int, numbers))
