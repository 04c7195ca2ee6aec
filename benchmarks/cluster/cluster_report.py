"""The tables of the measurements of clusters."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.broker.throughput import Measured
from benchmarks.cluster.brokers import NODES
from benchmarks.cluster.costs import SHAPE, Costs, Idle
from benchmarks.cluster.failover import Failover
from benchmarks.cluster.moving import GET_MS, PUT_MS, Moving
from benchmarks.cluster.sharing import SHARE, Sharing


def failover_lines(rows: Sequence[Failover]) -> list[str]:
    """From the death of one of three brokers to the first acknowledged records."""
    return [
        "## One of three brokers dies: seconds to the first acknowledged produce",
        "",
        "One figure for each partition of the dead broker that had traffic. A client waits 1 s for"
        " a stopped broker; its other settings are librdkafka's.",
        "",
        "| cluster | death | partitions with traffic, of all | measured | p50 s | p99 s | most s |",
        "|---|---|---|---|---|---|---|",
        *[
            f"| {each.cluster.capitalize()} | {each.death} | {each.busy}, {each.partitions} |"
            f" {each.measured} | {each.p50:.2f} | {each.p99:.2f} | {each.largest:.2f} |"
            for each in rows
        ],
        "",
    ]


def sharing_lines(found: Sharing) -> list[str]:
    """Openings and the share of a newcomer."""
    opening = found.start - found.start_empty
    return [
        "## A broker comes: seconds until it serves its partitions",
        "",
        "| | partitions | s |",
        "|---|---|---|",
        f"| start to ready on an empty folder | 0 | {found.start_empty:.2f} |",
        f"| start to all served, on the folder of three killed brokers | {found.partitions} |"
        f" {found.start:.2f} |",
        f"| the difference: opening them | {found.partitions} | {opening:.2f} |",
        f"| start of a third broker to {SHARE:.0%} of its fair share | {found.join_partitions} |"
        f" {found.join:.2f} |",
        "",
    ]


def moving_lines(found: Moving) -> list[str]:
    """Hand-overs and commits in PUTs."""

    def row(label: str, milliseconds: float) -> str:
        return f"| {label} | {milliseconds:.0f} | {milliseconds / PUT_MS:.2f} |"

    together, apart = found.together["commit_p50_ms"], found.apart["commit_p50_ms"]
    return [
        f"## Between three brokers, where a PUT takes {PUT_MS} ms and a GET {GET_MS} ms",
        "",
        f"A hand-over's unavailability is the longest time between two acknowledgements, of each of"
        f" {found.moves} moves of a partition under a producer that repeats at once."
        " The client has connected to each broker before.",
        "",
        "| | ms | PUTs |",
        "|---|---|---|",
        row("between acknowledgements, nothing moves, p99", found.steady_p99),
        row("a hand-over, p50", found.gap_p50),
        row("a hand-over, p99", found.gap_p99),
        row("commit, the coordinator leads the partition, p50", together),
        row("commit, another broker leads it, p50", apart),
        "",
        f"Commit apart to commit together: {apart / together:.2f}.",
        "",
    ]


def cost_lines(found: Costs) -> list[str]:
    """Throughput and CPU by the number of brokers."""
    lines = [
        f"## One, two and three brokers on the same cores: {SHAPE.label}",
        "",
        "Medians. The ratio is of CPU to one broker's.",
        "",
        "| cluster | produce MB/s | CPU s/GB | ratio | consume MB/s | CPU s/GB | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    one = found.ours[1]
    rows = [(f"Tidelog, {count}", runs) for count, runs in found.ours.items()]
    if found.peer:
        rows.append((f"Kafka, {NODES}, three replicas", found.peer))
    for label, runs in rows:
        cells = [label]
        for direction in ("produce", "consume"):
            rate = median(run[direction].megabytes_a_second for run in runs)
            cpu = _cpu(runs, direction)
            ratio = cpu / _cpu(one, direction) if _cpu(one, direction) else float("nan")
            cells += [f"{rate:.0f}", f"{cpu:.2f}", f"{ratio:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def idle_lines(idle: Idle) -> list[str]:
    """The requests, money and memory of an idle broker."""
    hourly = ", ".join(
        f"{requests:.0f} {operation}" for operation, requests in idle.requests_an_hour.items()
    )
    return [
        "## An idle broker of three",
        "",
        "| requests an hour | of which | dollars a month | resident memory MB | share of a core |",
        "|---|---|---|---|---|",
        f"| {sum(idle.requests_an_hour.values()):.0f} | {hourly} | {idle.dollars_a_month:.2f} |"
        f" {idle.memory_mb:.0f} | {idle.cpu_share:.4f} |",
        "",
    ]


def _cpu(runs: Sequence[dict[str, Measured]], direction: str) -> float:
    return median(run[direction].cpu_seconds_a_gb for run in runs)
