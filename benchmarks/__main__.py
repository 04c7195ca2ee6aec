"""Measures Tidelog beside Apache Kafka and writes docs/BENCHMARKS.md: `python -m benchmarks`."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks import page, report
from benchmarks.broker import distant, recovery, restarts, scale, throughput, transactions
from benchmarks.clients import clients
from benchmarks.cluster import costs, failover, moving, sharing
from benchmarks.harness import latency
from benchmarks.harness.targets import Target, kafka, tidelog
from benchmarks.security import security
from benchmarks.tables import cold, conversion, roll, spark
from tidelog.localstack.kafka import KafkaNotAvailable
from tidelog.localstack.maven import JarsNotAvailable
from tidelog.localstack.s3_servers import MissingTool, start_minio

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache"
LINGER_MS = 5
CONVERSION_BYTES = 100_000_000
ROLL_BYTES = 500_000_000
PARTS = (
    *("throughput", "latency", "transactions", "scale"),
    *("conversion", "roll", "cold", "recovery", "restarts", "distant", "spark", "clients"),
    "security",
    *("failover", "sharing", "moving", "cluster-costs", "idle"),
)
CLUSTER_PARTITIONS = 10_000
BUSY_PARTITIONS = 1_000
MOVES = 100
IDLE_SECONDS = 120.0


def main() -> int:
    """Run the requested parts; exit code 1 if a requested peer is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--without", choices=("kafka", "minio"), action="append", default=[])
    parser.add_argument("--share", type=float, default=1.0, help="the share of each load's bytes")
    parser.add_argument(
        "--records", type=int, default=500, help="records of each latency measurement"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "BENCHMARKS.md")
    arguments = parser.parse_args()
    parts = arguments.only or PARTS
    results = report.Results(
        "make bench" if len(sys.argv) == 1 else f"python -m benchmarks {' '.join(sys.argv[1:])}"
    )
    folder = Path(tempfile.mkdtemp(prefix="tidelog-bench-"))
    try:
        for part in PARTS:
            if part in parts:
                measure(part, results, folder, arguments)
                # After each part: a later failure does not lose its results.
                write(results, arguments.output)
    except (JarsNotAvailable, KafkaNotAvailable, MissingTool, spark.NotEnoughSpace) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(report.tables(results))
    return 0


def write(results: report.Results, output: Path) -> None:
    """Update the page with the results so far."""
    before = output.read_text() if output.exists() else ""
    output.write_text(page.with_tables(before, report.tables(results), report.run_of(results)))


def measure(
    part: str, results: report.Results, folder: Path, arguments: argparse.Namespace
) -> None:
    """Measure one of PARTS."""
    share: float = arguments.share
    match part:
        case "throughput":
            measure_throughput(results, folder / "throughput", arguments)
            measure_rolling(results, folder / "rolling", share)
            measure_broker_alone(results, folder / "alone", share)
        case "latency":
            measure_latency(results, folder / "latency", arguments)
        case "transactions":
            measure_transactions(results, folder / "transactions", arguments)
        case "scale":
            results.scale = scale.measure_scale(folder / "scale")
        case "conversion":
            measure_conversions(results, share)
        case "roll":
            measure_rolls(results, folder / "roll", arguments)
        case "cold":
            results.cold = cold.measure_cold(folder / "cold", share)
        case "recovery":
            results.recovery = recovery.measure_recovery(folder / "recovery")
        case "restarts":
            results.restarts = restarts.measure_restarts(folder / "restarts")
        case "distant":
            results.distant = distant.measure_distant(folder / "distant", CACHE)
        case "clients":
            print("measuring Python clients", file=sys.stderr, flush=True)
            results.clients = clients.measure_clients(folder / "clients", share)
        case "security":
            results.security = security.measure_security(
                folder / "security", CACHE, share, arguments.without
            )
        case "failover" | "sharing" | "moving" | "cluster-costs" | "idle":
            print(f"measuring clusters: {part}", file=sys.stderr, flush=True)
            measure_cluster(part, results, folder / part, arguments)
        case "spark":
            results.spark = spark.measure_spark(folder / "spark", CACHE, share, arguments.without)


def measure_conversions(results: report.Results, share: float) -> None:
    """Measure every shape both ways, without a broker."""
    for shape in conversion.SHAPES:
        print(f"measuring {shape.label}", file=sys.stderr, flush=True)
        found = conversion.measure_conversion(shape, int(CONVERSION_BYTES * share))
        results.conversion.append((shape, found))


def measure_rolls(results: report.Results, folder: Path, arguments: argparse.Namespace) -> None:
    """Roll every shape through a broker, and measure the producers' latencies during a roll."""
    total_bytes = int(ROLL_BYTES * arguments.share)
    for number, shape in enumerate(roll.SHAPES):
        print(f"rolling {shape.label}", file=sys.stderr, flush=True)
        results.rolls.append((shape, roll.measure_roll(folder / str(number), shape, total_bytes)))
    results.felt = roll.measure_felt(folder / "felt", arguments.records, total_bytes)


def measure_throughput(
    results: report.Results, folder: Path, arguments: argparse.Namespace
) -> None:
    """Measure every shape against Kafka and a broker on the filesystem store that does not roll."""
    with contextlib.ExitStack() as stack:
        bucket = folder / "bucket"
        bucket.mkdir(parents=True)
        broker = tidelog("tidelog", f"file://{bucket}", folder / "tidelog", **throughput.WAL_ALONE)
        targets: list[Target] = [stack.enter_context(broker)]
        if "kafka" not in arguments.without:
            targets.append(stack.enter_context(kafka(folder / "kafka", CACHE)))
        warm_up = throughput.Shape(1024, 16, throughput.MIB, 200_000_000)
        throughput.measure(targets, warm_up, run=0)
        for number, shape in enumerate(throughput.SHAPES, start=1):
            scaled = shape.share(arguments.share)
            print(f"measuring {shape.label}", file=sys.stderr, flush=True)
            results.throughput.append((shape, throughput.measure(targets, scaled, run=number)))


def measure_rolling(results: report.Results, folder: Path, share: float) -> None:
    """Measure some shapes against a broker on the filesystem store that rolls them meanwhile."""
    bucket = folder / "bucket"
    bucket.mkdir(parents=True)
    with tidelog("rolling", f"file://{bucket}", folder, **throughput.ROLLING_SOON) as target:
        warm_up = throughput.Shape(1024, 16, throughput.MIB, 200_000_000)
        throughput.measure([target], warm_up, run=0)
        for number, shape in enumerate(throughput.ROLLING, start=1):
            print(f"measuring {shape.label}, with rolls", file=sys.stderr, flush=True)
            found = throughput.measure([target], shape.share(share), run=number)
            results.rolling.append((shape, found["rolling"]))


def measure_broker_alone(results: report.Results, folder: Path, share: float) -> None:
    """Measure some shapes on a store in memory, each with a new broker, since it frees nothing."""
    for shape in throughput.BROKER_ALONE:
        print(f"measuring {shape.label}, in memory", file=sys.stderr, flush=True)
        with tidelog("alone", "memory://bench", folder, **throughput.WAL_ALONE) as target:
            warm_up = shape._replace(total_bytes=20_000_000)
            throughput.measure([target], warm_up, run=0)
            found = throughput.measure([target], shape.share(share), run=1)
        results.broker_alone.append((shape, found["alone"]))


def measure_latency(results: report.Results, folder: Path, arguments: argparse.Namespace) -> None:
    """Measure acknowledgements on the filesystem store and on MinIO, each beside its bare PUTs."""
    bucket = folder / "bucket"
    bucket.mkdir(parents=True)
    with tidelog("file", f"file://{bucket}", folder) as target:
        results.idle_memory_mb = target.resident_memory_mb()
        put = latency.of_puts(f"file://{bucket}", arguments.records)
        acknowledged = latency.of_acknowledgements(target, "latency", arguments.records)
        results.latency["filesystem"] = (put, acknowledged, LINGER_MS)
    if "minio" in arguments.without:
        return
    with start_minio(folder / "minio", CACHE) as server:
        url = server.url_of(server.bucket, "broker")
        put = latency.of_puts(server.url_of(server.bucket, "puts"), arguments.records)
        with tidelog("minio", url, folder / "broker") as target:
            acknowledged = latency.of_acknowledgements(target, "latency", arguments.records)
        results.latency["MinIO"] = (put, acknowledged, LINGER_MS)


def measure_transactions(
    results: report.Results, folder: Path, arguments: argparse.Namespace
) -> None:
    """Measure transactions and groups, on Kafka and on a broker with the filesystem store."""
    print("measuring transactions and groups", file=sys.stderr, flush=True)
    with contextlib.ExitStack() as stack:
        bucket = folder / "bucket"
        bucket.mkdir(parents=True)
        store = f"file://{bucket}"
        targets: list[Target] = [stack.enter_context(tidelog("tidelog", store, folder / "tidelog"))]
        results.transaction_put = latency.of_puts(store, arguments.records)
        if "kafka" not in arguments.without:
            targets.append(stack.enter_context(kafka(folder / "kafka", CACHE)))
        results.transactions = transactions.measure(targets, arguments.share)


def measure_cluster(
    part: str, results: report.Results, folder: Path, arguments: argparse.Namespace
) -> None:
    """Measure one of the parts about several brokers; `share` scales what it is made of."""
    share: float = arguments.share
    with_kafka = "kafka" not in arguments.without
    match part:
        case "failover":
            busy = max(3, int(BUSY_PARTITIONS * share))
            results.failovers = failover.measure_failovers(
                folder, CACHE, busy, with_kafka=with_kafka
            )
        case "sharing":
            partitions = max(300, int(CLUSTER_PARTITIONS * share))
            results.sharing = sharing.measure_sharing(folder, partitions)
        case "moving":
            results.moving = moving.measure_moving(folder, max(3, int(MOVES * share)))
        case "cluster-costs":
            results.costs = costs.measure_costs(folder, CACHE, share, with_kafka=with_kafka)
        case "idle":
            results.idle = costs.measure_idle(folder, IDLE_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
