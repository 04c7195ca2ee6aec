"""`explain`: Spark's plan of a frame, and the offsets and files that it reads from the bucket.

Spark 4.2 lets a Python source add nothing to the text of a plan. But the plan holds the input
partitions, and the first of each scan says what the scan reads (`batch.TaskPieces`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pyspark.serializers import CPickleSerializer
from pyspark.sql import DataFrame

from tidelog.errors import InvalidConfiguration
from tidelog.spark_source.batch import TaskPieces
from tidelog.spark_source.source import TidelogSource

_SCAN: Final = f"BatchScan {TidelogSource.name()}"
_ADAPTIVE: Final = "AdaptiveSparkPlan"


def explain(frame: DataFrame) -> None:
    """Print Spark's plan of a batch, and what each `format("tidelog")` in it reads, by partition.

    Each line has a partition's offsets, segments, bytes and tail, and what there is of them in all.
    The frame is planned for it, and no task is run.

    Raises InvalidConfiguration for a stream and under Spark Connect, and as the frame's planning.
    """
    if frame.isStreaming:
        raise InvalidConfiguration(
            "explain: a stream chooses its offsets batch by batch; its progress has them:"
            " query.lastProgress"
        )
    java = getattr(frame, "_jdf", None)
    if java is None:
        raise InvalidConfiguration(
            "explain: Spark Connect does not hand out a plan; the log of the process that plans has"
            " what it reads, logger tidelog.spark_source, level INFO"
        )
    found = [line for scan in _scans(java.queryExecution().executedPlan()) for line in _reads(scan)]
    frame.explain()
    print(f'== Reads by format("{TidelogSource.name()}") ==')
    print("\n".join(dict.fromkeys(found)) or "none")


def _scans(node: Any) -> Iterator[Any]:
    """The source's scans in a plan, also those of subqueries and caches."""
    name = node.nodeName()
    if name == _SCAN:
        yield node
    elif name == _ADAPTIVE:
        # Its children are known once it has run.
        yield from _scans(node.initialPlan())
    else:
        for below in (node.children(), node.innerChildren()):
            for position in range(below.size()):
                yield from _scans(below.apply(position))


def _reads(scan: Any) -> tuple[str, ...]:
    unpickle: Any = CPickleSerializer()
    first = unpickle.loads(scan.inputPartitions().apply(0).pickedPartition())
    return first.reads if isinstance(first, TaskPieces) else ()
