"""The deployment's files by hadolint, helm and Kubernetes' schemas; the image's steps.

No container runs here, and no Kubernetes: docs/DEPLOYMENT.md says so.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from tests.integration.page_reader import Command, reader
from tests.integration.test_deployment_page import CLIENTS, HELM_INSTALL, words, written
from tests.unit.deploy.commands import DEPLOY, ROOT, composed_cluster, environment_of, served
from tests.wheels import copy_clone
from tidelog.broker.settings.listeners import configured_listeners
from tidelog.broker.settings.loading import load_settings
from tidelog.errors import InvalidConfiguration
from tidelog.localstack.ports import free_ports
from tidelog.sdk.admin import Admin
from tidelog.sdk.consumer import Consumer
from tidelog.sdk.producer import Producer
from tidelog.security.security_protocol import SecurityProtocol

pytestmark = pytest.mark.slow

CHART = DEPLOY / "helm" / "tidelog"
SCRIPTS = Path(sysconfig.get_path("scripts"))
VALUES = {
    "plain": ["store.url=s3://b/p"],
    "everything": [
        "store.url=s3://b/p",
        "store.accessKeyId=a",
        "store.secretAccessKey=b",
        "external.enabled=true",
        "external.host=broker-%d.example.com",
        "settings.num\\.partitions=3",
        "variablesSecret=tokens",
        "filesSecret=certificates",
        "replicas=2",
    ],
}


FLIGHTS = (3, 40, 16, 15)
"""The delays of the flights in minutes."""


def rendered(helm: Path, values: list[str], *files: str) -> str:
    arguments = [*files, *(word for each in values for word in ("--set", each))]
    return subprocess.run(
        [helm, "template", "cluster", CHART, *arguments], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_chart_is_sound_and_kubernetes_knows_every_field(
    helm: Path, values: list[str], tmp_path: Path
) -> None:
    subprocess.run(
        [helm, "lint", "--strict", CHART, "--set", values[0]], check=True, capture_output=True
    )
    manifests = tmp_path / "manifests.yaml"
    manifests.write_text(rendered(helm, values))
    subprocess.run([SCRIPTS / "kubernetes-validate", "--strict", manifests], check=True)
    kinds = [each["kind"] for each in yaml.safe_load_all(manifests.read_text())]
    assert {"StatefulSet", "PodDisruptionBudget", "ServiceAccount"} <= set(kinds)
    replicas = 2 if values is VALUES["everything"] else 3
    assert kinds.count("Service") == 2 + replicas


def pod_of(helm: Path, values: list[str]) -> dict[str, Any]:
    """The template of a pod."""
    for manifest in yaml.safe_load_all(rendered(helm, values)):
        if manifest["kind"] == "StatefulSet":
            return dict(manifest["spec"]["template"])
    raise AssertionError("no StatefulSet")


def stateful_set(helm: Path, values: list[str]) -> dict[str, Any]:
    """The container of a pod."""
    return dict(pod_of(helm, values)["spec"]["containers"][0])


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_a_pods_commands_start_and_drain_a_broker(helm: Path, values: list[str]) -> None:
    container = stateful_set(helm, values)
    assert "volumeClaimTemplates" not in container
    kafka, http = map(str, free_ports(2))

    def moved(words: list[str]) -> list[str]:
        return [word.replace("9092", kafka).replace("9093", http) for word in words]

    pod = {
        "POD_NAME": "cluster-1",
        "POD_NAMESPACE": "here",
        "TIDELOG_STORE": "memory://pod",
        # The image sets this variable.
        "TIDELOG_HEALTH": "http://127.0.0.1:9093/readyz",
    }
    with served(moved([*container["command"], *container["args"]]), pod) as facts:
        assert facts["broker"] == "1"
        name = "cluster-1.cluster.here.svc" if values is VALUES["plain"] else "broker-1.example.com"
        assert facts["kafka"] == f"{name}:{kafka}"
        path = container["readinessProbe"]["httpGet"]["path"]
        assert urlopen(f"http://127.0.0.1:{http}{path}", timeout=10).status == 200
        # The only broker cannot be drained. That does not delay its end.
        stop = container["lifecycle"]["preStop"]["exec"]["command"]
        subprocess.run(moved(stop), env=environment_of(pod), check=True)


def test_a_release_named_tidelog_gives_its_pods_no_variables_that_look_like_settings(
    helm: Path,
) -> None:
    """Kubernetes would set TIDELOG_BOOTSTRAP_SERVICE_HOST for the service tidelog-bootstrap."""
    with pytest.raises(InvalidConfiguration, match="TIDELOG_BOOTSTRAP_SERVICE_HOST"):
        load_settings(environment={"TIDELOG_BOOTSTRAP_SERVICE_HOST": "10.0.0.1"})
    assert pod_of(helm, ["store.url=s3://b/p"])["spec"]["enableServiceLinks"] is False


def test_clients_outside_reach_each_broker_at_a_node_port_of_its_own(helm: Path) -> None:
    values = [
        "store.url=s3://b/p",
        "external.enabled=true",
        "external.type=NodePort",
        "external.host=nodes.example.com",
        "external.firstNodePort=30092",
    ]
    manifests = list(yaml.safe_load_all(rendered(helm, values)))
    ports = {
        each["metadata"]["name"]: each["spec"]["ports"][0].get("nodePort")
        for each in manifests
        if each["kind"] == "Service"
    }
    assert [ports[f"cluster-{broker}"] for broker in range(3)] == [30092, 30093, 30094]
    container = stateful_set(helm, values)
    pod = {"POD_NAME": "cluster-2", "POD_NAMESPACE": "here", "TIDELOG_STORE": "memory://pod"}
    words = [each.replace(":9092", ":0").replace(":9093", ":0") for each in container["args"]]
    with served([*container["command"], *words], pod) as facts:
        assert facts["kafka"] == "nodes.example.com:30094"


def test_clients_reach_a_broker_that_is_not_ready_or_ends_but_do_not_begin_there(
    helm: Path,
) -> None:
    """One damaged partition makes a broker unready; all others are served there alone."""
    for values in (VALUES["plain"], VALUES["everything"]):
        published = {
            each["metadata"]["name"]: each["spec"].get("publishNotReadyAddresses", False)
            for each in yaml.safe_load_all(rendered(helm, values))
            if each["kind"] == "Service"
        }
        assert published.pop("cluster-bootstrap") is False
        assert {"cluster", "cluster-0", "cluster-1"} <= set(published)
        assert all(published.values())


def test_an_upgrade_with_another_key_of_the_store_restarts_the_pods(helm: Path) -> None:
    values = ["store.url=s3://b/p", "store.accessKeyId=a"]
    first, again, other = (
        pod_of(helm, [*values, f"store.secretAccessKey={key}"]) for key in ("b", "b", "c")
    )
    assert first == again
    assert first != other
    annotations = first["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == "9093"


def test_brokers_spread_over_zones_and_over_nodes(helm: Path) -> None:
    pod = pod_of(helm, ["store.url=s3://b/p"])
    spread = pod["spec"]["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in spread] == [
        "topology.kubernetes.io/zone",
        "kubernetes.io/hostname",
    ]
    for each in spread:
        assert each["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_the_pages_values_for_tls_make_the_only_listener_speak_it(
    helm: Path, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "DEPLOYMENT.md").read_text()
    [text] = re.findall(r"^```yaml\n(filesSecret:.*?)^```$", page, re.M | re.S)
    file = tmp_path / "values.yaml"
    file.write_text(text)
    command = rendered(helm, ["store.url=s3://b/p"], "-f", str(file))
    (manifest,) = (each for each in yaml.safe_load_all(command) if each["kind"] == "StatefulSet")
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    words = shlex.split(container["args"][0])
    flags = [after for before, after in pairwise(words) if before == "--set"]
    settings = load_settings(environment={}, flags=flags)
    address = ("127.0.0.1", 9092)
    (listener,) = configured_listeners(settings, address, address, "").all
    assert listener.protocol is SecurityProtocol.SSL
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "secrets")
    for name in ("ssl.keystore.location", "ssl.truststore.location"):
        assert Path(settings.text(name)).parent == Path(mount["mountPath"])


def of_kubernetes(text: str) -> str:
    """An argument of a container as its process gets it, by the documented syntax."""
    known = {"POD_NAME": "cluster-0"}
    return re.sub(
        r"\$(\$|\((\w+)\))",
        lambda found: "$" if found[1] == "$" else known.get(found[2], found[0]),
        text,
    )


def test_settings_of_a_file_reach_the_broker_as_they_are_written(
    helm: Path, tmp_path: Path
) -> None:
    """Whole numbers, which Helm reads as floats; quotes; and a value that is taken back."""
    settings = {
        "log.retention.bytes": 1_073_741_824,
        "queued.max.requests": 500,
        "metric.ratio": 0.5,
        "auto.create.topics.enable": True,
        "super.users": "User:o'hara;User:$HOME;User:$$;User:$(POD_NAME)",
        "log.retention.ms": None,
    }
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"store": {"url": "s3://b/p"}, "settings": settings}))
    done = subprocess.run(
        [helm, "template", "cluster", CHART, "-f", file], capture_output=True, text=True, check=True
    )
    (manifest,) = (
        each for each in yaml.safe_load_all(done.stdout) if each["kind"] == "StatefulSet"
    )
    command = of_kubernetes(manifest["spec"]["template"]["spec"]["containers"][0]["args"][0])
    assert [after for before, after in pairwise(shlex.split(command)) if before == "--set"] == [
        "auto.create.topics.enable=true",
        "log.retention.bytes=1073741824",
        "metric.ratio=0.5",
        "queued.max.requests=500",
        "super.users=User:o'hara;User:$HOME;User:$$;User:$(POD_NAME)",
    ]


def test_a_probe_speaks_https_to_a_broker_that_does(helm: Path) -> None:
    keystore = "settings.http\\.ssl\\.keystore\\.location"
    given = f"{keystore}=/etc/tidelog/secrets/http.pem"
    for values, scheme in (([], "HTTP"), ([given], "HTTPS"), ([f"{keystore}=null"], "HTTP")):
        container = stateful_set(helm, ["store.url=s3://b/p", *values])
        assert container["readinessProbe"]["httpGet"]["scheme"] == scheme


def test_a_chart_without_a_store_names_the_missing_value(helm: Path) -> None:
    done = subprocess.run(
        [helm, "template", "cluster", CHART], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "store.url: name the bucket" in done.stderr


def test_a_chart_refuses_one_name_for_all_load_balancers(helm: Path) -> None:
    """Clients would reach any broker by the address of another one."""
    values = ["store.url=s3://b/p", "external.enabled=true", "external.host=broker.example.com"]
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rendered(helm, values)
    assert "external.host: give each broker a name of its own" in refused.value.stderr
    container = stateful_set(helm, [*values, "replicas=1"])
    assert '--advertise "broker.example.com:9092"' in container["args"][0]


def test_the_pages_installation_renders(helm: Path) -> None:
    name, chart, *settings = words(HELM_INSTALL)
    done = subprocess.run(
        [helm, "template", name, ROOT / chart, *settings], stdout=subprocess.PIPE, check=True
    )
    manifests = list(yaml.safe_load_all(done.stdout))
    names = {each["metadata"]["name"] for each in manifests if each["kind"] == "Service"}
    assert "events-bootstrap" in names
    [pod] = [each["spec"]["template"] for each in manifests if each["kind"] == "StatefulSet"]
    container = pod["spec"]["containers"][0]
    assert container["image"].startswith("registry.example.com/tidelog:")
    assert "s3://my-bucket/events" in str(container["env"])
    assert "events-store" in str(container)


def test_hadolint_finds_nothing() -> None:
    for folder in (DEPLOY, DEPLOY / "spark"):
        subprocess.run([SCRIPTS / "hadolint", folder / "Dockerfile"], check=True)


@pytest.mark.timeout(900)
def test_spark_of_compose_copies_late_flights(
    require_tool: Callable[[str], str], tmp_path: Path
) -> None:
    require_tool("java")
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    spark = services["spark"]
    dockerfile = (DEPLOY / "spark" / "Dockerfile").read_text()
    [copied] = re.findall(r"^COPY --chmod=755 (examples/\S+) /app/$", dockerfile, re.M)
    assert json.loads(re.findall(r"^CMD (.*)$", dockerfile, re.M)[0]) == spark["command"]
    python, program, checkpoint = spark["command"]
    assert (python, program) == ("python3", f"/app/{Path(copied).name}")
    [volume] = spark["volumes"]
    assert checkpoint.startswith(f"{volume.partition(':')[2]}/")
    command = [sys.executable, str(ROOT / copied), str(tmp_path / "checkpoint")]
    with composed_cluster(services, tmp_path) as cluster:
        given = cluster.moved(spark["environment"]["TIDELOG_BOOTSTRAP"])
        assert given == cluster.bootstrap
        variables = {**cluster.environment, "TIDELOG_BOOTSTRAP": given, "PYTHONPATH": str(ROOT)}
        log = (tmp_path / "spark.log").open("w")
        with (
            log,
            subprocess.Popen(
                command, cwd=tmp_path, env=environment_of(variables), stdout=log, stderr=log
            ) as running,
        ):
            try:
                admin = Admin(given)
                while "late-flights" not in admin.topics():
                    with suppress(subprocess.TimeoutExpired):
                        running.wait(0.1)
                    assert running.poll() is None, (tmp_path / "spark.log").read_text()
                with reader(tmp_path) as user:
                    for each in written(*CLIENTS):
                        user.run(Command(cluster.moved(each.line), each.output))
                flights = [{"tail": f"N{each}", "delay_minutes": each} for each in FLIGHTS]
                with Producer(given, value_serializer="json") as producer:
                    for flight in flights:
                        producer.send("flights", flight, key=flight["tail"])
                with Consumer(given, "late-flights", auto_offset_reset="earliest") as consumer:
                    late: set[bytes | None] = set()
                    while len(late) < 4:
                        assert running.poll() is None, (tmp_path / "spark.log").read_text()
                        late |= {message.key for message in consumer.batch(timeout=1.0)}
            finally:
                running.terminate()
    # The flight on the page has no key.
    assert late == {None, b"N40", b"N16", b"N15"}


@pytest.mark.timeout(900)
def test_the_steps_of_the_image_make_an_installation_that_runs(tmp_path: Path) -> None:
    clone = copy_clone(tmp_path / "clone")
    copied = [line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"]
    assert all((clone / each).exists() for each in copied)
    dockerfile = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    [build, *_] = re.findall(r"^RUN (.*)$", dockerfile, re.M)
    build = build.replace("/opt/tidelog", str(tmp_path / "opt"))
    build = build.replace("python3 -m venv", f"{sys.executable} -m venv")
    subprocess.run(["sh", "-e", "-c", build], cwd=clone, check=True)
    program = str(tmp_path / "opt" / "bin" / "tidelog")
    command = [program, "server", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with served(command, {"TIDELOG_STORE": "memory://image"}) as facts:
        assert facts["broker"] == "0"
        [check] = re.findall(
            r"^HEALTHCHECK .*CMD \[\"python3\", \"-c\", \"(.*)\"\]$", dockerfile, re.M
        )
        health = {"TIDELOG_HEALTH": f"http://{facts['http']}/readyz"}
        subprocess.run([sys.executable, "-c", check], env=environment_of(health), check=True)
