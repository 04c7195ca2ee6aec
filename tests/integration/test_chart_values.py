"""Values of the Helm chart that fit it into a cluster: what it renders of them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.test_deployment import CHART, SCRIPTS
from tests.unit.deploy.commands import ROOT
from tidelog.broker.settings.loading import load_settings

pytestmark = pytest.mark.slow


class Chart:
    """Renders the chart with values of a file."""

    def __init__(self, helm: Path, folder: Path) -> None:
        self._helm = helm
        self.manifests = folder / "manifests.yaml"
        self._values = folder / "values.yaml"

    def rendered(self, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The manifests. CalledProcessError with Helm's message if the chart refuses the values."""
        self._values.write_text(yaml.safe_dump({"store": {"url": "s3://b/p"}, **values}))
        done = subprocess.run(
            [self._helm, "template", "cluster", CHART, "-f", self._values],
            capture_output=True,
            text=True,
            check=True,
        )
        self.manifests.write_text(done.stdout)
        return [each for each in yaml.safe_load_all(done.stdout) if each is not None]

    def pod(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The specification of a broker's pod."""
        (found,) = (each for each in self.rendered(values) if each["kind"] == "StatefulSet")
        return dict(found["spec"]["template"]["spec"])


@pytest.fixture
def chart(helm: Path, tmp_path: Path) -> Chart:
    return Chart(helm, tmp_path)


def test_pods_get_what_a_cluster_asks_of_them_as_it_is_written(chart: Chart) -> None:
    """Pull secrets, places, a priority and variables; Kubernetes knows their form."""
    terms = [{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]
    places = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    given = {
        "imagePullSecrets": [{"name": "registry"}],
        "affinity": {"nodeAffinity": places},
        "priorityClassName": "brokers",
    }
    variables = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"}]
    pod = chart.pod({**given, "extraVariables": variables})
    subprocess.run([SCRIPTS / "kubernetes-validate", "--strict", chart.manifests], check=True)
    assert {name: pod[name] for name in given} == given
    [container] = pod["containers"]
    assert container["env"][-2:] == variables
    assert not given.keys() & chart.pod({}).keys()


def test_the_pages_variable_gives_a_broker_the_zone_of_its_pod(chart: Chart) -> None:
    page = (ROOT / "docs" / "DEPLOYMENT.md").read_text()
    [text] = re.findall(r"^```yaml\n(extraVariables:.*?)^```$", page, re.M | re.S)
    [container] = chart.pod(yaml.safe_load(text))["containers"]
    subprocess.run([SCRIPTS / "kubernetes-validate", "--strict", chart.manifests], check=True)
    variable = container["env"][-1]
    path = variable["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.labels['topology.kubernetes.io/zone']"
    # Kubernetes gives an empty text for a label that a pod does not have.
    for label, rack in (("eu-west-1a", "eu-west-1a"), ("", None)):
        settings = load_settings(environment={variable["name"]: label})
        assert settings.optional_text("broker.rack") == rack


def test_brokers_take_an_account_that_exists_and_the_chart_then_makes_none(chart: Chart) -> None:
    def accounts(values: Mapping[str, Any]) -> list[str]:
        kinds = chart.rendered({"serviceAccount": values})
        return [each["metadata"]["name"] for each in kinds if each["kind"] == "ServiceAccount"]

    assert accounts({}) == ["cluster"]
    assert accounts({"name": "own"}) == ["own"]
    assert chart.pod({"serviceAccount": {"name": "own"}})["serviceAccountName"] == "own"
    existing = {"create": False, "name": "brokers"}
    assert accounts(existing) == []
    assert chart.pod({"serviceAccount": existing})["serviceAccountName"] == "brokers"
    with pytest.raises(subprocess.CalledProcessError) as refused:
        accounts({"create": False})
    assert "serviceAccount.name: name the account that exists" in refused.value.stderr


def test_each_brokers_service_has_its_own_number_in_the_annotations(chart: Chart) -> None:
    """Two services with one name for external-dns would share the addresses of both brokers."""
    name = "external-dns.alpha.kubernetes.io/hostname"
    annotations = {name: "broker-%d.example.com", "of": "all"}
    external = {"enabled": True, "host": "broker-%d.example.com", "annotations": annotations}
    found = {
        each["metadata"]["name"]: each["metadata"].get("annotations")
        for each in chart.rendered({"external": external})
        if each["kind"] == "Service"
    }
    for number in range(3):
        given = {name: f"broker-{number}.example.com", "of": "all"}
        assert found.pop(f"cluster-{number}") == given
    assert set(found.values()) == {None}


def test_a_probes_scheme_is_a_value_for_a_keystore_that_the_chart_does_not_see(
    chart: Chart,
) -> None:
    """A variable of a secret may name the keystore."""

    def scheme(values: Mapping[str, Any]) -> object:
        [container] = chart.pod({"variablesSecret": "tls", **values})["containers"]
        return container["readinessProbe"]["httpGet"]["scheme"]

    in_settings = {"settings": {"http.ssl.keystore.location": "/etc/tidelog/secrets/http.pem"}}
    assert scheme({}) == "HTTP"
    assert scheme(in_settings) == "HTTPS"
    assert scheme({"probeScheme": "HTTPS"}) == "HTTPS"
    assert scheme({"probeScheme": "HTTP", **in_settings}) == "HTTP"


def test_pods_have_the_grace_that_their_settings_need(chart: Chart) -> None:
    """The drain; then snapshots, giving partitions away and requests, each with the timeout."""

    def grace(timeout: object, **values: object) -> object:
        pod = chart.pod({"settings": {"shutdown.timeout.ms": timeout}, **values})
        return pod["terminationGracePeriodSeconds"]

    assert grace(None) == chart.pod({})["terminationGracePeriodSeconds"] == 120 + 60 + 3 * 10
    assert grace(100_000) == grace("100000") == 120 + 60 + 3 * 100
    assert grace(1_500, drainSeconds=0) == 60 + 5
