"""Errors reach Spark's user as their message, without the traceback of Spark's Python worker.

Spark's workers put the traceback into the message, unless their environment says otherwise
(`spark.sql.execution.pyspark.udf.hideTraceback.enabled`). A worker ends with the error that it has
reported, so the variable is set for the one error. Other exceptions are mistakes of the code, and
keep their traceback.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tidelog.errors import TidelogError

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
_RUNTIME: Final = "SPARK_PYTHON_RUNTIME"
_WORKER: Final = "PYTHON_WORKER"


@contextmanager
def plain_errors() -> Iterator[None]:
    """Wrap the functions that Spark calls. A decorator too, but not of generators."""
    try:
        yield
    except TidelogError:
        if os.environ.get(_RUNTIME) == _WORKER:
            os.environ[_HIDE] = "1"
        raise
