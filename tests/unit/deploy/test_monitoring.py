"""Every expression of the dashboard and of the alert rules finds series in a broker's output."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.deploy.commands import DEPLOY
from tidelog.doctor.prices import REQUEST_DOLLARS, dollars_a_month
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.sdk.admin import Admin
from tidelog.sdk.consumer import Consumer
from tidelog.sdk.producer import Producer

ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
LATER = {"tidelog_store_errors_total", "tidelog_collection_last_success_timestamp_seconds"}
"""Series that a broker has only after a fault or a first success, but always declares."""
LAG = "Lag of consumer groups, offsets A"
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
        Admin(broker.kafka).set_group_offsets("group", {("topic", 0): 1})
        yield urlopen(f"http://{broker.http}/metrics", timeout=10).read().decode()


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_an_expression_finds_series(exposition: str, expression: str) -> None:
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    names = set(re.findall(r"tidelog_\w+", expression))
    assert names or 'up{job="tidelog"}' in expression
    for name in names - LATER:
        assert name in labels
    for name in names & LATER:
        assert f"# TYPE {name} " in exposition
    grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression))))
    known = set().union(*(labels.get(name, set()) for name in names))
    assert grouped <= known | OF_PROMETHEUS


def test_the_dashboard_subtracts_offsets_and_ends_that_different_brokers_report(
    tmp_path: Path,
) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("without promtool")
    series = {
        'tidelog_partition_end_offset{instance="a",topic="t",partition="0"}': 10,
        'tidelog_partition_end_offset{instance="b",topic="t",partition="1"}': 20,
        'tidelog_partition_end_offset{instance="b",topic="unread",partition="0"}': 7,
        'tidelog_group_committed_offset{instance="a",group="g",topic="t",partition="0"}': 4,
        'tidelog_group_committed_offset{instance="a",group="g",topic="t",partition="1"}': 19,
        # After a move of the coordinator, two brokers may report the group for a moment.
        'tidelog_group_committed_offset{instance="b",group="h",topic="t",partition="0"}': 9,
        'tidelog_group_committed_offset{instance="a",group="h",topic="t",partition="0"}': 11,
    }
    lags = [
        {"labels": '{group="g", topic="t"}', "value": 7},
        {"labels": '{group="h", topic="t"}', "value": 0},
    ]
    expected = {"expr": EXPRESSIONS[LAG], "eval_time": "0m", "exp_samples": lags}
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": str(n)} for name, n in series.items()],
        "promql_expr_test": [expected],
    }
    path = tmp_path / "lag.yaml"
    path.write_text(yaml.safe_dump({"tests": [test]}))
    done = subprocess.run(
        [promtool, "test", "rules", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_counts_money_as_the_doctor_does() -> None:
    (expression,) = [each for title, each in EXPRESSIONS.items() if title.startswith("Cost of")]
    priced = re.findall(r'operation=~"([a-z|]+)"\}\[[^]]*\]\)\) \* ([\d.]+)', expression)
    shown = {name: float(price) for names, price in priced for name in names.split("|")}
    assert shown == pytest.approx(
        {name: dollars_a_month(1, name) for name, price in REQUEST_DOLLARS.items() if price}
    )


def test_an_alert_fires_if_prometheus_has_no_broker_among_its_targets(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("without promtool")
    expected = {"alertname": "TidelogNotScraped", "eval_time": "10m", "exp_alerts": []}
    summary = "Prometheus scrapes no broker as the job tidelog. TidelogBrokerDown cannot fire."
    fires = {"exp_labels": {"job": "tidelog"}, "exp_annotations": {"summary": summary}}
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": f'up{{instance="a",job="{job}"}}', "values": "1x20"}],
            "alert_rule_test": [expected | {"exp_alerts": alerts}],
        }
        for job, alerts in (("tidelog", []), ("kubernetes-pods", [fires]))
    ]
    path = tmp_path / "absent.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "tests": tests}))
    done = subprocess.run(
        [promtool, "test", "rules", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pages_configuration_finds_the_pods_of_the_chart_as_the_job_of_the_rules(
    tmp_path: Path,
) -> None:
    page = (DEPLOY.parent / "docs" / "DEPLOYMENT.md").read_text()
    [text] = re.findall(r"^```yaml\n(scrape_configs:.*?)^```$", page, re.M | re.S)
    [job] = yaml.safe_load(text)["scrape_configs"]
    assert f'job="{job["job_name"]}"' in EXPRESSIONS["TidelogNotScraped"]
    name, port = job["relabel_configs"][0]["regex"].split(";")
    chart = DEPLOY / "helm" / "tidelog" / "templates"
    assert f"app.kubernetes.io/name: {name}\n" in (chart / "_helpers.tpl").read_text()
    assert f"{{name: {port}, containerPort: " in (chart / "statefulset.yaml").read_text()
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("without promtool")
    # Debian's promtool does not know Kubernetes.
    del job["kubernetes_sd_configs"]
    path = tmp_path / "prometheus.yaml"
    path.write_text(yaml.safe_dump({"scrape_configs": [job]}))
    done = subprocess.run(
        [promtool, "check", "config", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_summary_sentence() -> None:
    rules = yaml.safe_load(ALERTS.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["summary"].endswith(".")


def test_the_operators_page_has_a_remedy_for_each_alert_and_no_other() -> None:
    page = (DEPLOY.parent / "docs" / "OPERATIONS.md").read_text()
    (section,) = re.findall(r"^### Alerts\n(.*?)^## ", page, re.M | re.S)
    table = section.partition("| Alert |")[2]
    assert set(re.findall(r"`(Tidelog\w+)`", table)) == set(alert_expressions())
