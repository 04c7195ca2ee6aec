"""All measurements of protection, on Tidelog and on Apache Kafka in one run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.broker.throughput import KIB, MIB, Measured, Shape, measure
from benchmarks.security.handshakes import Handshakes, measure_handshakes
from benchmarks.security.quotas import QuotaReached, measure_quotas
from benchmarks.security.rules import RulesCost, measure_rules
from benchmarks.security.servers import (
    KAFKA_RULES,
    TIDELOG_RULES,
    Certificates,
    Listeners,
    kafka,
    tidelog,
)

SHAPES = (Shape(KIB, 16, MIB, 500_000_000), Shape(KIB, 16, 16 * KIB, 200_000_000))
HANDSHAKE_SECONDS = 10.0
PLAIN, TLS = "plain text", "TLS"


@dataclass(slots=True)
class Security:
    """The measurements, by server."""

    throughput: list[tuple[Shape, dict[str, dict[str, dict[str, Measured]]]]] = field(
        default_factory=list
    )
    """By server, listener (PLAIN, TLS) and direction."""
    handshakes: dict[str, Handshakes] = field(default_factory=dict)
    quotas: dict[str, QuotaReached] = field(default_factory=dict)
    rules: dict[str, dict[str, RulesCost]] = field(default_factory=dict)
    """By server and direction."""


def measure_security(folder: Path, cache: Path, share: float, without: Sequence[str]) -> Security:
    """Measure all of it; `without` names peers to leave out."""
    certificates = Certificates.create(folder / "certificates")
    found = Security()
    with contextlib.ExitStack() as stack:
        servers = {
            "tidelog": stack.enter_context(tidelog("tidelog", folder / "tidelog", certificates, {}))
        }
        if "kafka" not in without:
            servers["kafka"] = stack.enter_context(
                kafka("kafka", folder / "kafka", cache, certificates, {})
            )
        _measure_open(found, servers, certificates, share)
    print("measuring access control rules", file=sys.stderr, flush=True)
    # Two new servers: one that has served other loads costs more than a new one.
    open_, ruled = folder / "open", folder / "rules"
    with (
        tidelog("open", open_, certificates, {}) as without_rules,
        tidelog("rules", ruled, certificates, TIDELOG_RULES) as with_rules,
    ):
        found.rules["tidelog"] = measure_rules(without_rules, with_rules, share)
    if "kafka" not in without:
        open_, ruled = folder / "kafka-open", folder / "kafka-rules"
        with (
            kafka("kafka-open", open_, cache, certificates, {}) as without_rules,
            kafka("kafka-rules", ruled, cache, certificates, KAFKA_RULES) as with_rules,
        ):
            found.rules["kafka"] = measure_rules(without_rules, with_rules, share)
    return found


def _measure_open(
    found: Security, servers: Mapping[str, Listeners], certificates: Certificates, share: float
) -> None:
    """Measure throughput, handshakes and quotas, which need no authorizer."""
    for run, shape in enumerate((SHAPES[0].share(0.4), *SHAPES)):
        rows: dict[str, dict[str, dict[str, Measured]]] = {}
        for name, server in servers.items():
            print(f"measuring {shape.label}, {name}", file=sys.stderr, flush=True)
            rows[name] = {
                listener: measure([target], shape.share(share), run=10 * run + number)[name]
                for number, (listener, target) in enumerate(
                    ((PLAIN, server.plain), (TLS, server.tls))
                )
            }
        if run > 0:
            # The first one warms up.
            found.throughput.append((shape, rows))
    for name, server in servers.items():
        print(f"measuring handshakes and quotas, {name}", file=sys.stderr, flush=True)
        seconds = HANDSHAKE_SECONDS * share
        # The first ones warm up.
        measure_handshakes(server.tls, certificates.authority, seconds / 2)
        found.handshakes[name] = measure_handshakes(server.tls, certificates.authority, seconds)
        found.quotas[name] = measure_quotas(server.plain, share)
