"""The report on measurements of protection, and the rules of the load."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.broker.throughput import KIB, MIB, Measured, Shape
from benchmarks.report import Results, tables
from benchmarks.security.handshakes import Handshakes
from benchmarks.security.quotas import QuotaReached
from benchmarks.security.rules import RULES, RulesCost, rules
from benchmarks.security.security import PLAIN, TLS, Security
from tests.unit.benchmarks.test_report import row_of

SHAPE = Shape(KIB, 16, MIB, 500_000_000)
OURS = Measured(200.0, 1.0, 0.5, 300.0, 250.0, 10.0, 1.01)
ENCRYPTED = replace(OURS, megabytes_a_second=150.0, cpu_seconds_a_gb=1.5)
PEERS = replace(OURS, megabytes_a_second=100.0, cpu_seconds_a_gb=3.0)


def both(measured: Measured) -> dict[str, Measured]:
    return {"produce": measured, "consume": measured}


def document(found: Security) -> str:
    return tables(Results("make bench", security=found))


def test_tls_is_set_against_plain_text_and_against_the_peer() -> None:
    ours = {PLAIN: both(OURS), TLS: both(ENCRYPTED)}
    peers = {PLAIN: both(PEERS), TLS: both(PEERS)}
    text = document(Security(throughput=[(SHAPE, {"tidelog": ours, "kafka": peers})]))

    cells = row_of(text, SHAPE.label)

    assert cells[1:6] == ["Tidelog", "produce", "200", "150", "0.75"]
    assert cells[6:9] == ["1.00", "1.50", "1.50"]
    assert cells[9:] == ["1.50", "0.50"]


def test_a_report_without_the_peer_has_no_ratio() -> None:
    ours = {PLAIN: both(OURS), TLS: both(ENCRYPTED)}
    text = document(Security(throughput=[(SHAPE, {"tidelog": ours})]))
    assert row_of(text, SHAPE.label)[9:] == ["-", "-"]


def test_handshakes_rules_and_quotas_have_a_row_for_each_server() -> None:
    text = document(
        Security(
            handshakes={"kafka": Handshakes(812.3, 0.456)},
            rules={"tidelog": {"produce": RulesCost((2.0, 2.0), (2.02, 2.08))}},
            quotas={"tidelog": QuotaReached(0.9912, 1.0349)},
        )
    )
    assert "| Kafka | 812 | 0.46 |" in text
    assert "| Tidelog | produce | 2.00 | 2.05 | +2.5% | 1.5% |" in text
    assert "| Tidelog | 0.991 | 1.035 |" in text


def test_the_rules_are_as_many_as_they_are_called_and_differ() -> None:
    every = list(rules())
    assert len(every) == RULES
    assert len({repr(vars_of(each)) for each in every}) == RULES


def vars_of(rule: object) -> list[object]:
    names = ("restype", "name", "resource_pattern_type", "principal", "host", "operation")
    return [getattr(rule, name) for name in names]


@pytest.mark.parametrize(("without", "share"), [(2.0, 0.5), (3.0, 0.0), (4.0, -0.25)])
def test_the_authorizers_share_is_of_the_cpu_without_an_authorizer(
    without: float, share: float
) -> None:
    assert RulesCost((without,), (3.0,)).share == pytest.approx(share)
