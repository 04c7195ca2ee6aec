"""Every expression of the dashboard and of the alert rules finds series in a broker's output."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.deploy.commands import DEPLOY
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.sdk.consumer import Consumer
from tidelog.sdk.producer import Producer

ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
LATER = {"tidelog_store_errors_total", "tidelog_collection_last_success_timestamp_seconds"}
"""Series that a broker has after a fault or a first success. The broker declares them always."""
OF_PROMETHEUS = {"instance", "job", "le"}
"""Labels that Prometheus adds or that belong to histograms."""


def alert_expressions() -> dict[str, str]:
    rules = yaml.safe_load(ALERTS.read_text())
    return {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}


def panel_expressions() -> dict[str, str]:
    board = json.loads((DEPLOY / "grafana" / "tidelog.json").read_text())
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in board["panels"]
        for target in panel["targets"]
    }


EXPRESSIONS = alert_expressions() | panel_expressions()


@pytest.fixture(scope="module")
def exposition(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker's metrics after a little work."""
    log: Path = tmp_path_factory.mktemp("monitoring") / "log"
    with BrokerProcess.start("memory://monitoring", log, http="127.0.0.1:0") as broker:
        with Producer(broker.kafka) as producer:
            producer.send("topic", "a")
        with Consumer(broker.kafka, "topic", auto_offset_reset="earliest") as consumer:
            assert len(list(consumer.to_end())) == 1
        yield urlopen(f"http://{broker.http}/metrics", timeout=10).read().decode()


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_an_expression_finds_series(exposition: str, expression: str) -> None:
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    names = set(re.findall(r"tidelog_\w+", expression))
    assert names or expression.startswith("up{")
    for name in names - LATER:
        assert name in labels
    for name in names & LATER:
        assert f"# TYPE {name} " in exposition
    grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression))))
    known = set().union(*(labels.get(name, set()) for name in names))
    assert grouped <= known | OF_PROMETHEUS


def test_every_alert_says_what_is_the_matter() -> None:
    rules = yaml.safe_load(ALERTS.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["summary"].endswith(".")


def test_the_operators_page_says_of_every_alert_what_to_do_and_of_no_other() -> None:
    page = (DEPLOY.parent / "docs" / "OPERATIONS.md").read_text()
    (section,) = re.findall(r"^### Alerts\n(.*?)^## ", page, re.M | re.S)
    table = section.partition("| Alert |")[2]
    assert set(re.findall(r"`(Tidelog\w+)`", table)) == set(alert_expressions())
