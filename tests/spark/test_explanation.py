"""`explain` tells what a frame reads from the bucket, which Spark's own plan has no place for."""

from __future__ import annotations

import json
import re

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.history import PARTITIONS, TOPIC, History, consume
from tidelog.errors import InvalidConfiguration
from tidelog.spark_source import explain, read

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

TITLE = '== Reads by format("tidelog") =='
LINE = re.compile(
    r"(.+): offsets 0 to (\d+) of 0 to \2; (\d+) of \3 segments, (\d+) bytes;"
    r" (\d+) offsets of the tail"
)


def source(spark: SparkSession, history: History, **options: str) -> DataFrame:
    chosen = {"subscribe": TOPIC} if not options else {"assign": json.dumps({TOPIC: [0]})}
    reader = spark.read.format("tidelog").options(store=history.store)
    return reader.options(**chosen, **options).load()


def bound(offset: int) -> str:
    return json.dumps({TOPIC: {"0": offset}})


def reads(frame: DataFrame, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines behind Spark's plan."""
    explain(frame)
    plan, _, lines = capsys.readouterr().out.partition(TITLE)
    assert plan.startswith("== Physical Plan ==")
    assert "BatchScan tidelog" in plan
    return lines.split("\n")[1:-1]


def test_a_frame_names_its_topics_offsets_segments_and_tails(
    spark: SparkSession, history: History, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = consume(history.kafka)
    every = [LINE.fullmatch(line) for line in reads(source(spark, history), capsys)]
    for number, line in enumerate(every):
        assert line is not None
        name, end, segments, size, tail = line.groups()
        assert name == f"{TOPIC}-{number}"
        assert int(end) > max(row[1] for row in expected if row[0] == number)
        assert int(segments) > 0
        assert int(size) > 0
        assert 0 < int(tail) < int(end)
    assert len(every) == PARTITIONS
    (one,) = reads(source(spark, history, startingOffsets=bound(5)), capsys)
    assert one.startswith(f"{TOPIC}-0: offsets 5 to ")


def test_reads_are_found_wherever_they_stand_in_a_plan(
    spark: SparkSession, history: History, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = source(spark, history)
    expected = reads(frame, capsys)
    late = source(spark, history, startingOffsets=bound(7))
    counted = frame.groupBy("partition").count().orderBy("count")
    assert reads(counted, capsys) == expected
    joined = frame.join(late, "offset").select("offset")
    (of_late,) = reads(late, capsys)
    assert reads(joined, capsys) == [*expected, of_late]
    frame.createOrReplaceTempView("explained")
    newest = "SELECT * FROM explained WHERE offset = (SELECT max(offset) FROM explained)"
    assert reads(spark.sql(newest), capsys) == expected
    spark.catalog.dropTempView("explained")
    late.cache()
    assert reads(late.filter("offset > 8"), capsys) == [of_late]
    late.unpersist()


def test_read_shows_files_in_sparks_plan_and_its_tail_behind_it(
    spark: SparkSession, history: History, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = read(spark, store=history.store, topic=TOPIC)
    assert "FileScan parquet" in frame._jdf.queryExecution().executedPlan().toString()
    for line in reads(frame, capsys):
        assert "; 0 of " in line
        assert not line.endswith(" 0 offsets of the tail")


def test_frames_without_reads_say_so(
    spark: SparkSession, history: History, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reads(source(spark, history, endingOffsets=bound(0)), capsys) == ["none"]
    explain(spark.range(3))
    assert capsys.readouterr().out.endswith(f"{TITLE}\nnone\n")


def test_a_stream_is_told_to_look_at_its_progress(spark: SparkSession, history: History) -> None:
    stream = spark.readStream.format("tidelog").options(store=history.store, subscribe=TOPIC)
    with pytest.raises(InvalidConfiguration, match=r"its progress has them: query\.lastProgress"):
        explain(stream.load())


def test_spark_connect_is_told_to_look_into_the_log() -> None:
    class Connected:
        isStreaming = False

    with pytest.raises(InvalidConfiguration, match=r"logger tidelog\.spark_source"):
        explain(Connected())  # type: ignore[arg-type]
