"""The tables of the measurements on stores with slow requests."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.broker.distant import (
    NO_LIMIT,
    PACED_BYTES_A_SECOND,
    PEER_BYTES,
    PEER_SECONDS,
    Distant,
    Felt,
    Price,
)
from tidelog.doctor.prices import dollars_a_month


def distant_lines(found: Distant) -> list[str]:
    """All tables."""
    lines: list[str] = []
    for felt in found.felt:
        lines += _felt(felt)
    if found.prices:
        lines += _prices(found.prices)
    return lines


def _felt(felt: Felt) -> list[str]:
    put_ms, get_ms = felt.distance
    transaction = felt.transaction
    lines = [
        f"## A store that takes {put_ms} ms for a PUT and {get_ms} ms for a GET",
        "",
        "| clients with default settings | MB/s |",
        "|---|---|",
        *(f"| {label}, as fast as it can | {rate:.1f} |" for label, rate in felt.full),
        "| consumer from the beginning, 16 partitions, nothing in memory |"
        f" {felt.cold_megabytes_a_second:.1f} |",
        "",
        f"| a paced producer, {PACED_BYTES_A_SECOND / 1e6:.1f} MB/s: acknowledged | MB/s | p50 ms |"
        " p99 ms | p50, PUTs | p99, PUTs |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {feel.label} | {feel.megabytes_a_second:.2f} | {feel.p50_ms:.0f} |"
        f" {feel.p99_ms:.0f} | {feel.p50_ms / put_ms:.2f} | {feel.p99_ms / put_ms:.2f} |"
        for feel in felt.paced
    ]
    lines += [
        "",
        "| a transaction of one record, librdkafka | ms | PUTs that follow one another |",
        "|---|---|---|",
    ]
    for label, name in (
        ("enlisted and acknowledged, p50", "send_p50_ms"),
        ("committed, p50", "commit_p50_ms"),
        ("committed, p99", "commit_p99_ms"),
    ):
        lines.append(f"| {label} | {transaction[name]:.0f} | {transaction[name] / put_ms:.2f} |")
    return [*lines, "", f"PUTs of a transaction in all: {transaction['puts']:.1f}.", ""]


def _prices(prices: Sequence[Price]) -> list[str]:
    lines = [
        "## What PUTs cost, on a store that takes 100 ms for one",
        "",
        "A producer of Kafka's over 16 partitions. PUTs are all of the broker's, dollars are for"
        " 30 days at 0.005 dollars per 1,000.",
        "",
        "| MB/s | `wal.puts.per.second.max` | MB/s reached | p50 ms | p99 ms | PUTs a second |"
        " dollars a month |",
        "|---|---|---|---|---|---|---|",
    ]
    for wanted in sorted({price.wanted_megabytes_a_second for price in prices}):
        for price in prices:
            if price.wanted_megabytes_a_second == wanted:
                limit = "none" if price.limit == NO_LIMIT else price.limit
                lines.append(
                    f"| {wanted:g} | {limit} | {price.megabytes_a_second:.2f} |"
                    f" {price.p50_ms:.0f} | {price.p99_ms:.0f} | {price.puts_a_second:.1f} |"
                    f" {price.dollars_a_month:.0f} |"
                )
        puts = max(1 / PEER_SECONDS, wanted * 1e6 / PEER_BYTES)
        lines.append(
            f"| {wanted:g} | AutoMQ's default, by calculation | | | | {puts:.1f} |"
            f" {dollars_a_month(puts):.0f} |"
        )
    return [*lines, ""]
