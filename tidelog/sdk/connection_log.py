"""Repeated lines of librdkafka about connections are left out of the log.

librdkafka leaves them out itself, for 30 s each. But with `metadata.recovery.strategy=rebootstrap`
it forgets the broker with all that it knows, when none answers, and begins anew some 40 times a
second.
"""

from __future__ import annotations

import logging
import re
import threading
from typing import Final

from tidelog.clock import Clock

QUIET_SECONDS: Final = 30.0
LINES_MAX: Final = 100
"""The lines that are remembered."""
_FAILED: Final = re.compile(r"^(FAIL|ERROR) ")
_AFTER: Final = re.compile(r" \(after \d+ms in state .*")


class ConnectionFailures(logging.Filter):
    """Passes the same failure of a client's connection once in 30 s, and all other records."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._shown: dict[str, float] = {}
        """When each line was shown, the oldest first."""
        self._lock = threading.Lock()
        """Clients of several threads have one log."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if _FAILED.match(text) is None:
            return True
        line, now = _AFTER.sub("", text), self._clock.monotonic()
        with self._lock:
            if now - self._shown.get(line, float("-inf")) < QUIET_SECONDS:
                return False
            self._shown.pop(line, None)
            self._shown[line] = now
            if len(self._shown) > LINES_MAX:
                del self._shown[next(iter(self._shown))]
        return True
