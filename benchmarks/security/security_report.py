"""The tables of the measurements of protection."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from benchmarks.broker.throughput import Measured
from benchmarks.security.rules import RULES
from benchmarks.security.security import PLAIN, TLS, Security

_NAMES = {"tidelog": "Tidelog", "kafka": "Kafka"}


def security_lines(found: Security) -> list[str]:
    """All tables."""
    return [*_throughput(found), *_handshakes(found), *_rules(found), *_quotas(found)]


def _throughput(found: Security) -> list[str]:
    lines = [
        "## TLS: produce and consume beside plain text",
        "",
        "| records | server | direction | plain text MB/s | TLS MB/s | ratio |"
        " plain text CPU s/GB | TLS CPU s/GB | ratio | MB/s over Kafka's, both with TLS |"
        " CPU over Kafka's, both with TLS |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for shape, servers in found.throughput:
        for name, listeners in servers.items():
            peer = servers.get("kafka") if name != "kafka" else None
            for direction in ("produce", "consume"):
                plain, tls = (listeners[each][direction] for each in (PLAIN, TLS))
                cells = [shape.label, _NAMES[name], direction]
                cells += [f"{each.megabytes_a_second:.0f}" for each in (plain, tls)]
                cells.append(f"{tls.megabytes_a_second / plain.megabytes_a_second:.2f}")
                cells += [f"{each.cpu_seconds_a_gb:.2f}" for each in (plain, tls)]
                cells.append(f"{tls.cpu_seconds_a_gb / plain.cpu_seconds_a_gb:.2f}")
                cells += _beside(tls, peer, direction)
                lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _beside(
    ours: Measured, peer: Mapping[str, Mapping[str, Measured]] | None, direction: str
) -> list[str]:
    if peer is None:
        return ["-", "-"]
    theirs = peer[TLS][direction]
    return [
        f"{ours.megabytes_a_second / theirs.megabytes_a_second:.2f}",
        f"{ours.cpu_seconds_a_gb / theirs.cpu_seconds_a_gb:.2f}",
    ]


def _handshakes(found: Security) -> list[str]:
    return [
        "## TLS: handshakes",
        "",
        "| server | new connections a second | server's CPU ms for one |",
        "|---|---|---|",
        *(
            f"| {_NAMES[name]} | {each.a_second:.0f} | {each.cpu_ms:.2f} |"
            for name, each in found.handshakes.items()
        ),
        "",
    ]


def _rules(found: Security) -> list[str]:
    return [
        f"## {RULES:,} access control rules",
        "",
        "| server | direction | without an authorizer, CPU s/GB | with it | its share |"
        " standard error |",
        "|---|---|---|---|---|---|",
        *(
            f"| {_NAMES[name]} | {direction} | {fmean(cost.without):.2f} |"
            f" {fmean(cost.with_rules):.2f} | {cost.share:+.1%} | {cost.standard_error:.1%} |"
            for name, directions in found.rules.items()
            for direction, cost in directions.items()
        ),
        "",
    ]


def _quotas(found: Security) -> list[str]:
    return [
        "## Quotas: the bytes that a client reaches over those that it may have",
        "",
        "| server | producer_byte_rate | consumer_byte_rate |",
        "|---|---|---|",
        *(
            f"| {_NAMES[name]} | {each.produce:.3f} | {each.consume:.3f} |"
            for name, each in found.quotas.items()
        ),
        "",
    ]
