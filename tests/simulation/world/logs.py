"""Production's log lines as events of the trace: the process, the line, and the virtual time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.owners import OWNER

_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_ROOT = "tidelog"


class _TraceHandler(logging.Handler):
    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self._loop = loop
        self.failures: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        owner = OWNER.get()
        if owner is not None and not owner.alive:
            return
        name = owner.name if owner is not None else "simulation"
        fields = [f"{key}={value}" for key, value in vars(record).items() if key not in _USUAL]
        has_traceback = record.exc_info is not None and record.exc_info[1] is not None
        if has_traceback:
            fields.append(repr(record.exc_info[1]))
        text = f"{record.getMessage()} {' '.join(fields)}"
        if has_traceback or record.levelno >= logging.ERROR:
            self.failures.append(f"{name}: {text}")
        line = f"{name} {record.levelname} {record.name}: {text}"
        self._loop.trace.record(self._loop.time(), line)


@contextmanager
def traced(loop: SimulatedLoop, level: int = logging.INFO) -> Iterator[list[str]]:
    """Send Tidelog's log lines to the trace, and nowhere else, while the context lasts.

    The returned list gets lines with a traceback, since no fault of the world excuses an exception
    in the broker. It also gets errors: the simulated store damages no object, so no broker may
    report damage.
    """
    logger = logging.getLogger(_ROOT)
    before = logger.level, logger.propagate
    handler = _TraceHandler(loop)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    try:
        yield handler.failures
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
