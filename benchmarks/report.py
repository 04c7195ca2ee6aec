"""The measurements as tables for `page`, with the command and the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.broker.distant import Distant
from benchmarks.broker.distant_report import distant_lines
from benchmarks.broker.recovery import Recovery
from benchmarks.broker.restarts import COMPARED, Restarts
from benchmarks.broker.scale import Scale
from benchmarks.broker.throughput import Measured, Shape
from benchmarks.broker.transactions import PRODUCERS, ROUND_SHAPES, Transactions
from benchmarks.clients.clients import Speeds, client_lines
from benchmarks.cluster.cluster_report import (
    cost_lines,
    failover_lines,
    idle_lines,
    moving_lines,
    sharing_lines,
)
from benchmarks.cluster.costs import Costs, Idle
from benchmarks.cluster.failover import Failover
from benchmarks.cluster.moving import Moving
from benchmarks.cluster.sharing import Sharing
from benchmarks.harness.latency import Latency
from benchmarks.security.security import Security
from benchmarks.security.security_report import security_lines
from benchmarks.tables.cold import Cold, ColdShape
from benchmarks.tables.conversion import Conversion, ConversionShape
from benchmarks.tables.roll import Felt, Rolled, RollShape
from benchmarks.tables.spark import SparkFigures
from benchmarks.tables.spark_report import spark_lines


@dataclass(slots=True)
class Results:
    """All measurements of one run."""

    command: str
    throughput: list[tuple[Shape, dict[str, dict[str, Measured]]]] = field(default_factory=list)
    rolling: list[tuple[Shape, dict[str, Measured]]] = field(default_factory=list)
    """With a broker that rolls the records meanwhile."""
    broker_alone: list[tuple[Shape, dict[str, Measured]]] = field(default_factory=list)
    """On a store in memory."""
    latency: dict[str, tuple[Latency, Latency, int]] = field(default_factory=dict)
    """By store: the bare PUT, the acknowledgement, the linger in ms."""
    idle_memory_mb: float = 0.0
    transactions: dict[str, Transactions] = field(default_factory=dict)
    transaction_put: Latency | None = None
    """The bare PUT of the store of the transactions."""
    scale: Scale | None = None
    conversion: list[tuple[ConversionShape, Conversion]] = field(default_factory=list)
    rolls: list[tuple[RollShape, Rolled]] = field(default_factory=list)
    felt: list[Felt] = field(default_factory=list)
    cold: list[tuple[ColdShape, Cold]] = field(default_factory=list)
    recovery: list[Recovery] = field(default_factory=list)
    restarts: list[Restarts] = field(default_factory=list)
    distant: Distant | None = None
    spark: SparkFigures | None = None
    clients: Speeds = field(default_factory=dict)
    security: Security | None = None
    failovers: list[Failover] = field(default_factory=list)
    sharing: Sharing | None = None
    moving: Moving | None = None
    costs: Costs | None = None
    idle: Idle | None = None


def run_of(results: Results) -> str:
    """The command, the machine and the commit of the measurements."""
    return f"By `{results.command}` on {_machine()}, commit {_commit()}."


def tables(results: Results) -> str:
    """A section for each table with measurements."""
    lines: list[str] = []
    if results.throughput:
        for direction in ("produce", "consume"):
            lines += _throughput(results.throughput, direction)
    if results.rolling:
        for direction in ("produce", "consume"):
            lines += _rolling(results.rolling, direction)
    if results.broker_alone:
        lines += _broker_alone(results.broker_alone)
    if results.latency:
        lines += _latency(results)
    if results.transactions:
        lines += _transactions(results.transactions, results.transaction_put)
    if results.scale is not None:
        lines += _scale(results.scale)
    if results.conversion:
        lines += _conversion(results.conversion)
    if results.rolls:
        lines += _rolls(results.rolls)
    for felt in results.felt:
        lines += _felt(felt)
    if results.cold:
        lines += _cold(results.cold)
    if results.recovery:
        lines += _recovery(results.recovery)
    if results.restarts:
        lines += _restarts(results.restarts)
    if results.distant is not None:
        lines += distant_lines(results.distant)
    if results.spark is not None:
        lines += spark_lines(results.spark)
    if results.clients:
        lines += client_lines(results.clients)
    if results.security is not None:
        lines += security_lines(results.security)
    if results.failovers:
        lines += failover_lines(results.failovers)
    if results.sharing is not None:
        lines += sharing_lines(results.sharing)
    if results.moving is not None:
        lines += moving_lines(results.moving)
    if results.costs is not None:
        lines += cost_lines(results.costs)
    if results.idle is not None:
        lines += idle_lines(results.idle)
    return "\n".join(lines)


def _throughput(
    rows: Sequence[tuple[Shape, dict[str, dict[str, Measured]]]], direction: str
) -> list[str]:
    lines = [
        f"## {direction.capitalize()}, nothing rolled meanwhile",
        "",
        "| records | Tidelog MB/s | Kafka MB/s | ratio | Tidelog CPU s/GB (kernel) |"
        " Kafka CPU s/GB (kernel) | ratio | Tidelog peak MB | Kafka peak MB | PUTs a GB |"
        " GETs a GB | bytes stored a byte |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for shape, found in rows:
        ours = found["tidelog"][direction]
        peer = found.get("kafka", {}).get(direction)
        cells = [shape.label, f"{ours.megabytes_a_second:.0f}"]
        cells += _against(ours.megabytes_a_second, peer and peer.megabytes_a_second, "{:.0f}")
        cells += [_cpu(ours), *_cpu_against(ours, peer)]
        cells.append(f"{ours.peak_memory_mb:.0f}")
        cells.append("-" if peer is None else f"{peer.peak_memory_mb:.0f}")
        cells += [f"{ours.puts_a_gb:.0f}", f"{ours.gets_a_gb:.0f}", f"{ours.bytes_put_a_byte:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _rolling(rows: Sequence[tuple[Shape, Mapping[str, Measured]]], direction: str) -> list[str]:
    lines = [
        f"## {direction.capitalize()}, rolled into segments at the same time",
        "",
        "| records | MB/s | CPU s/GB (kernel) | peak MB | PUTs a GB | GETs a GB |"
        " bytes stored a byte |",
        "|---|---|---|---|---|---|---|",
    ]
    for shape, found in rows:
        each = found[direction]
        lines.append(
            f"| {shape.label} | {each.megabytes_a_second:.0f} | {_cpu(each)} |"
            f" {each.peak_memory_mb:.0f} | {each.puts_a_gb:.0f} | {each.gets_a_gb:.0f} |"
            f" {each.bytes_put_a_byte:.3f} |"
        )
    return [*lines, ""]


def _against(ours: float, peer: float | None, form: str) -> list[str]:
    if not peer:
        return ["-", "-"]
    return [form.format(peer), f"{ours / peer:.2f}"]


def _cpu(measured: Measured) -> str:
    return f"{measured.cpu_seconds_a_gb:.2f} ({measured.kernel_seconds_a_gb:.2f})"


def _cpu_against(ours: Measured, peer: Measured | None) -> list[str]:
    if peer is None or not peer.cpu_seconds_a_gb:
        return ["-", "-"]
    return [_cpu(peer), f"{ours.cpu_seconds_a_gb / peer.cpu_seconds_a_gb:.2f}"]


def _broker_alone(rows: Sequence[tuple[Shape, Mapping[str, Measured]]]) -> list[str]:
    lines = [
        "## Tidelog on a store in memory: the broker without its disk",
        "",
        "| records | produce MB/s | CPU s/GB (kernel) | consume MB/s | CPU s/GB (kernel) |",
        "|---|---|---|---|---|",
    ]
    for shape, found in rows:
        produced, consumed = found["produce"], found["consume"]
        lines.append(
            f"| {shape.label} | {produced.megabytes_a_second:.0f} | {_cpu(produced)} |"
            f" {consumed.megabytes_a_second:.0f} | {_cpu(consumed)} |"
        )
    return [*lines, ""]


def _latency(results: Results) -> list[str]:
    lines = [
        "## Acknowledgement of one record after the other",
        "",
        "| store | PUT p50 ms | PUT p99 ms | acknowledged p50 ms | p99 ms | linger ms |"
        " p50 / (PUT p50 + linger) | p50 - PUT p50 ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for store, (put, acknowledged, linger_ms) in results.latency.items():
        bound = put.p50_ms + linger_ms
        lines.append(
            f"| {store} | {put.p50_ms:.2f} | {put.p99_ms:.2f} | {acknowledged.p50_ms:.2f} |"
            f" {acknowledged.p99_ms:.2f} | {linger_ms} | {acknowledged.p50_ms / bound:.2f} |"
            f" {acknowledged.p50_ms - put.p50_ms:.2f} |"
        )
    return [*lines, "", f"Resident memory of an idle broker: {results.idle_memory_mb:.0f} MB.", ""]


def _transactions(found: Mapping[str, Transactions], put: Latency | None) -> list[str]:
    lines = [
        "## Transactions and groups",
        "",
        f"Bare PUT of the store: p50 {put.p50_ms:.2f} ms, p99 {put.p99_ms:.2f} ms."
        if put is not None
        else "",
        "",
        "| | " + " | ".join(name.capitalize() for name in found) + " |",
        "|---|" + "---|" * len(found),
    ]

    def row(label: str, cells: Sequence[str]) -> None:
        lines.append(f"| {label} | " + " | ".join(cells) + " |")

    all_found = list(found.values())
    row("a record in it acknowledged, p50 ms", [f"{f.commit.send_p50_ms:.2f}" for f in all_found])
    row("commit, p50 ms", [f"{f.commit.commit_p50_ms:.2f}" for f in all_found])
    row("commit, p99 ms", [f"{f.commit.commit_p99_ms:.2f}" for f in all_found])
    puts = [f.commit.puts for f in all_found]
    row("PUTs a transaction", ["-" if each is None else f"{each:.2f}" for each in puts])
    for producers in PRODUCERS:
        rates = [f"{f.a_second[producers]:.0f}" for f in all_found]
        row(f"transactions a second, {producers} producers", rates)
    for shape in ROUND_SHAPES:
        costs = [f.rounds[shape] for f in all_found]
        row(
            f"{shape.records} records over {shape.partitions} partitions: plain, transactional, ms",
            [
                f"{each.plain_ms:.2f}, {each.transactional_ms:.2f}"
                f" (x {each.transactional_ms / each.plain_ms:.2f})"
                for each in costs
            ],
        )
    rests = [f.rebalance for f in all_found if f.rebalance is not None]
    row("50 consumers: group formed, s", [f"{each.formed:.2f}" for each in rests])
    row(
        "50 consumers: shared again when one left, s", [f"{each.after_leave:.2f}" for each in rests]
    )
    return [*lines, ""]


def _recovery(rows: Sequence[Recovery]) -> list[str]:
    return [
        "## A coordinator's state, from its snapshot and from its whole log",
        "",
        "| state | from the snapshot, s | from the log, s | memory MB (snapshot, log) |"
        " snapshot MB | log MB | writing the snapshot, s | longest pause of the loop then, ms |",
        "|---|---|---|---|---|---|---|---|",
        *[
            f"| {found.label} | {found.from_snapshot_seconds:.1f} | {found.from_log_seconds:.1f} |"
            f" {found.snapshot_memory_mb:.0f}, {found.log_memory_mb:.0f} |"
            f" {found.snapshot_mb:.1f} | {found.log_mb:.1f} | {found.write_seconds:.1f} |"
            f" {found.longest_pause_ms:.0f} |"
            for found in rows
        ],
        "",
    ]


def _restarts(rows: Sequence[Restarts]) -> list[str]:
    lines = [
        "## Starts after kill -9, life after life",
        "",
        "| a broker under two transactional producers | starts | WAL slots a life |"
        " first restart to ready, s | tenth, s | ratio | medians of the first ten and of the last,"
        " s | ratio | first commit by a new producer, median, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for found in rows:
        ready = [life.ready_seconds for life in found.lives[1:]]
        first, last = median(ready[:COMPARED]), median(ready[-COMPARED:])
        committed = median(life.commit_seconds for life in found.lives[1:])
        tenth = ready[COMPARED - 1]
        lines.append(
            f"| {found.label} | {len(found.lives)} | {found.slots / len(found.lives):.0f} |"
            f" {ready[0]:.2f} | {tenth:.2f} | {tenth / ready[0]:.2f} | {first:.2f}, {last:.2f} |"
            f" {last / first:.2f} | {committed:.2f} |"
        )
    return [*lines, ""]


def _scale(scale: Scale) -> list[str]:
    return [
        "## 1,000 partitions in 10 topics, 10 records in each",
        "",
        "| | without them | with them |",
        "|---|---|---|",
        f"| start to ready, s | {scale.start_empty_seconds:.2f} | {scale.start_seconds:.2f} |",
        f"| resident memory, MB | {scale.idle_memory_mb:.0f} | {scale.memory_mb:.0f} |",
        f"| produce, 1 KiB over 16 other partitions, MB/s | {scale.alone_mb_a_second:.0f} |"
        f" {scale.among_idle_mb_a_second:.0f} |",
        f"| CPU while idle, share of a core | | {scale.idle_cpu_share:.4f} |",
        "",
    ]


def _conversion(rows: Sequence[tuple[ConversionShape, Conversion]]) -> list[str]:
    lines = [
        "## Record batches to segments and back, CPU s/GB of values, without a broker",
        "",
        "| records | batches to rows | rows to segment | sum | segment to rows | rows to batches |"
        " sum | batches, bytes a byte | segment, bytes a byte |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for shape, found in rows:
        seconds = (
            *(found.decode_seconds_a_gb, found.write_seconds_a_gb, found.roll_seconds_a_gb),
            *(found.read_seconds_a_gb, found.encode_seconds_a_gb, found.fetch_seconds_a_gb),
        )
        cells = [shape.label, *(f"{value:.1f}" for value in seconds)]
        cells += [f"{found.log_bytes_a_byte:.2f}", f"{found.stored_bytes_a_byte:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _rolls(rows: Sequence[tuple[RollShape, Rolled]]) -> list[str]:
    return [
        "## From the WAL into a table, through a broker on the filesystem store",
        "",
        "| records | CPU s/GB of values | MB/s of values | segments, bytes a byte of values |"
        " extra memory, MB (first roll) |",
        "|---|---|---|---|---|",
        *[
            f"| {shape.label} | {found.cpu_seconds_a_gb:.1f} | {found.megabytes_a_second:.0f} |"
            f" {found.stored_bytes_a_byte:.2f} | {found.extra_memory_mb:.0f}"
            f" ({found.first_extra_memory_mb:.0f}) |"
            for shape, found in rows
        ],
        "",
    ]


def _felt(felt: Felt) -> list[str]:
    without, during = felt.without, felt.during
    return [
        f"Acknowledgement of one record after the other, on a store {felt.store}:",
        "",
        "| | p50 ms | p99 ms |",
        "|---|---|---|",
        f"| nothing else | {without.p50_ms:.2f} | {without.p99_ms:.2f} |",
        f"| while another topic is {felt.how} | {during.p50_ms:.2f} | {during.p99_ms:.2f} |",
        f"| ratio | {during.p50_ms / without.p50_ms:.2f} | {during.p99_ms / without.p99_ms:.2f} |",
        "",
    ]


def _cold(rows: Sequence[tuple[ColdShape, Cold]]) -> list[str]:
    lines = [
        "## Consume from segments, by a broker that has nothing of them in memory",
        "",
        "| records | MB/s | MB/s a core | CPU s/GB (kernel) | peak MB | GETs a GB |"
        " bytes read a byte |",
        "|---|---|---|---|---|---|---|",
    ]
    for shape, found in rows:
        lines.append(
            f"| {shape.label} | {found.megabytes_a_second:.0f} |"
            f" {found.megabytes_a_core_second:.0f} | {found.cpu_seconds_a_gb:.2f}"
            f" ({found.kernel_seconds_a_gb:.2f}) | {found.peak_memory_mb:.0f} |"
            f" {found.gets_a_gb:.0f} | {found.bytes_got_a_byte:.2f} |"
        )
    return [*lines, ""]


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), {memory:.0f} GiB,"
        f" Python {platform.python_version()}"
    )


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
