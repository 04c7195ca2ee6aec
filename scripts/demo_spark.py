"""Spark on the demo's bucket, and the pipeline that Tidelog is for.

Without a broker, Spark answers questions on the flights that `make demo` left in its bucket. Each
answer must equal that of pandas on the source table. Then a database's change stream goes from one
topic through Spark into two others, exactly once, while the driver is killed with SIGKILL and
replaced. Exits non-zero if a number is wrong.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from scripts.demo import COMPLETE, TOPICS, source_path, source_rows
from scripts.spark_demo.changes import FLIGHTS, changes_of
from scripts.spark_demo.checks import Pipelined, read_board
from scripts.spark_demo.checks import report as report_pipelined
from scripts.spark_demo.pipeline import Pipeline
from scripts.spark_demo.session import open_session
from scripts.spark_demo.tables import ask_all, source_table
from scripts.spark_demo.tables import report as report_answers
from scripts.tools import MissingTool, require
from tidelog.localstack.broker_process import BrokerProcess


def demo_rows(data: Path, rows: int | None) -> int:
    """The number of flights in the demo's folder; runs the demo first if it has not finished."""
    complete = data / COMPLETE
    if not complete.exists():
        print(f"There is no finished demo in {data}: make demo comes first", flush=True)
        command = [sys.executable, "-m", "scripts.demo", "--data", str(data)]
        command += [] if rows is None else ["--rows", str(rows)]
        subprocess.run(command, check=True)
    return int(complete.read_text())


def run_pipeline(spark: SparkSession, folder: Path) -> tuple[Pipelined, str]:
    """Run the pipeline in a new bucket; return the findings, and fsck's verdict on the bucket."""
    root = folder / "bucket"
    root.mkdir(parents=True)
    store = f"file://{root.resolve()}"
    found = Pipelined(changes_of(source_rows(FLIGHTS)))
    print(f"\nA database's log of {len(found.changes):,} changes", flush=True)
    with BrokerProcess.start(store, folder / "broker.log") as broker:
        pipeline = Pipeline(spark, store, broker.kafka, folder, found)
        try:
            pipeline.run()
        finally:
            pipeline.end()
        if code := broker.stop():
            sys.exit(f"the broker ended with exit code {code} instead of 0")
    read_board(spark, store, found)
    command = [sys.executable, "-m", "tidelog.cli", "fsck", "--store", store]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return found, done.stdout.strip().splitlines()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("demo-data"), help="the demo's folder")
    parser.add_argument("--rows", type=int, default=None, help="rows, if the demo has to run")
    arguments = parser.parse_args()
    try:
        if require("java") is None:
            print("Nothing done: Spark needs java, without which ALLOW_MISSING says to go")
            return 0
    except MissingTool as error:
        sys.exit(str(error))
    rows = demo_rows(arguments.data, arguments.rows)
    started = time.monotonic()
    # The demo ends its processes also when it is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = arguments.data / "spark"
    shutil.rmtree(folder, ignore_errors=True)
    store = f"file://{(arguments.data / 'bucket').resolve()}"
    print(f"Spark reads {rows:,} flights from {store}, where no broker runs", flush=True)
    spark = open_session(folder / "session", "demo")
    answers = ask_all(spark, store, list(TOPICS.values()), source_table(source_path(), rows))
    report_answers(answers)
    found, verdict = run_pipeline(spark, folder)
    spark.stop()
    report_pipelined(found)
    print(f"  fsck: {verdict}")
    is_right = answers.right and found.right
    print(f"\nTook {time.monotonic() - started:.1f} s")
    print("everything is right" if is_right else "SOMETHING IS WRONG")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
