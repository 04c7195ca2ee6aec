"""Log lines for people and for programs."""

from __future__ import annotations

import io
import json
import logging

from tidelog.cli.log_format import logging_to

logger = logging.getLogger("tidelog.test_log_format")


def fail() -> None:
    raise ValueError("broken")


def test_a_line_of_json_has_facts_fields_and_a_traceback() -> None:
    stream = io.StringIO()
    with logging_to(stream, form="json"):
        logger.info("ready", extra={"partitions": 3, "address": ("h", 1), "level": "hidden"})
        try:
            fail()
        except ValueError:
            logger.exception("failed")
    ready, failed = map(json.loads, stream.getvalue().splitlines())
    assert (ready["message"], ready["level"], ready["partitions"]) == ("ready", "INFO", 3)
    assert ready["logger"] == logger.name
    assert ready["time"].endswith("Z")
    assert "ValueError: broken" in failed["traceback"]


def test_the_level_is_that_of_tidelog_and_libraries_log_warnings() -> None:
    stream = io.StringIO()
    with logging_to(stream, "debug"):
        logger.debug("seen", extra={"why": "two words"})
        logging.getLogger("library").info("not seen")
    with logging_to(stream, "error"):
        logger.warning("not seen")
    logger.error("not seen")
    (line,) = stream.getvalue().splitlines()
    assert line.endswith('DEBUG tidelog.test_log_format seen why="two words"')
