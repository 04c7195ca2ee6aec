"""Logs of production code in a simulation: a traceback and a named damage are failures."""

from __future__ import annotations

import logging

from tests.simulation.world.logs import traced
from tests.simulation.world.loop import SimulatedLoop

logger = logging.getLogger("tidelog.anything")


def test_errors_and_tracebacks_are_failures_and_warnings_are_not() -> None:
    with SimulatedLoop(1) as loop, traced(loop) as failures:
        logger.warning("the store is slow")
        logger.error("a partition cannot be rolled", extra={"key": "topics/a"})
        try:
            raise KeyError("b")
        except KeyError:
            logger.warning("unexpected", exc_info=True)
    damage, traceback = failures
    assert damage == "simulation: a partition cannot be rolled key=topics/a"
    assert traceback == "simulation: unexpected KeyError('b')"
