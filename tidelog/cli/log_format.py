"""Structured logs: one line for each message, followed by its fields as name=value."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import gmtime
from typing import Final, TextIO

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class FieldFormatter(logging.Formatter):
    """`time level logger message name=value ...`; values with spaces are quoted as JSON."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        """One line, followed by the traceback if there is one."""
        fields = " ".join(
            f"{name}={_shown(value)}"
            for name, value in record.__dict__.items()
            if name not in _STANDARD
        )
        line = (
            f"{self.formatTime(record)} {record.levelname} {record.name} {record.getMessage()}"
            f"{' ' if fields else ''}{fields}"
        )
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the fields."""

    default_time_format = FieldFormatter.default_time_format
    default_msec_format = FieldFormatter.default_msec_format

    def format(self, record: logging.LogRecord) -> str:
        """One line; a traceback is in it as `traceback`."""
        facts: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = {k: v for k, v in record.__dict__.items() if k not in _STANDARD}
        # A field never hides a fact.
        facts = fields | facts
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return json.dumps(facts, default=str, ensure_ascii=False)


FORMATTERS: Final[dict[str, type[logging.Formatter]]] = {
    "text": FieldFormatter,
    "json": JsonFormatter,
}
LEVELS: Final = ("debug", "info", "warning", "error")


@contextmanager
def logging_to(stream: TextIO, level: str = "info", form: str = "text") -> Iterator[None]:
    """Log to a stream in UTC, one of `LEVELS` in one of `FORMATTERS`, for the time of a block.

    Libraries log from WARNING on.
    """
    handler = logging.StreamHandler(stream)
    formatter = FORMATTERS[form]()
    formatter.converter = gmtime
    handler.setFormatter(formatter)
    root, own = logging.getLogger(), logging.getLogger("tidelog")
    before = own.level
    root.addHandler(handler)
    own.setLevel(level.upper())
    try:
        yield
    finally:
        own.setLevel(before)
        root.removeHandler(handler)


def _shown(value: object) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(c.isspace() or c in '"=' for c in text) else text
