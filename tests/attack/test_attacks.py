"""Each attack beside a well-behaved client: the client is served, the broker lives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from benchmarks.harness.targets import Target as MeasuredProcess
from scripts.verify import commit
from tests.attack import probe
from tests.attack.attack import Attack, all_attacks
from tests.attack.attacker import address
from tests.attack.good_client import GoodClient, Seen
from tests.attack.probe import Told
from tests.attack.report import Outcome, report, rows_of
from tidelog.localstack.broker_process import BrokerProcess

pytestmark = pytest.mark.attack

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "docs" / "ATTACKS.md"
TOPIC = "good"
WARM_UP_SECONDS = 1.0
BEFORE_SECONDS = 3.0
END_SECONDS_MAX = 30.0
"""How long an attacker may take to begin and to end, beside its attack."""
STARVED_SECONDS = 5.0
"""A client that waits this long once is not served. The limit does not measure speed."""
ATTACKS = all_attacks()


@pytest.fixture(scope="module")
def rows() -> Iterator[dict[str, str]]:
    """The rows of this run. In the end they replace the former rows."""
    renewed: dict[str, str] = {}
    yield renewed
    kept = rows_of(REPORT.read_text()) if REPORT.exists() else {}
    seen_at = (
        f"Rows were seen at different commits; the newest at {commit()}, on {os.cpu_count()} cores"
        f" of {platform.machine()}, Python {platform.python_version()}."
    )
    REPORT.write_text(report(ATTACKS, kept | renewed, seen_at))


@pytest.mark.parametrize("name", ATTACKS)
def test_a_well_behaved_client_is_served_beside(
    name: str, tmp_path: Path, rows: dict[str, str]
) -> None:
    outcome = asyncio.run(_attacked(ATTACKS[name], tmp_path))
    rows[name] = outcome.row()
    print(outcome.row(), *sorted(set(outcome.under.failures)), sep="\n")
    assert not outcome.harm
    assert outcome.told.unanswered == 0, "a liveness probe has failed"
    assert max(outcome.under.seconds) < STARVED_SECONDS, "the client was starved"


async def _attacked(attack: Attack, folder: Path) -> Outcome:
    store = f"file://{folder / 'bucket'}" if attack.store == "file" else "memory://attacked"
    sasl = f"127.0.0.1:{free_port()}" if attack.sasl else None
    listening: dict[str, object] = {}
    if sasl is not None:
        listening = {
            "listeners": f"PLAINTEXT://127.0.0.1:0,CLIENTS://{sasl}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        }
    with BrokerProcess.start(
        store,
        folder / "log",
        listen=None if listening else "127.0.0.1:0",
        http="127.0.0.1:0",
        settings={**listening, **attack.settings},
        descriptors_max=attack.descriptors_max,
    ) as broker:
        measured = MeasuredProcess("attacked", broker.kafka, broker.process.pid, None)
        client = GoodClient(address(broker.kafka), TOPIC)
        await client.create_topic()
        await _work(client, Seen(), WARM_UP_SECONDS)
        before, under, told = Seen(), Seen(), Told()
        measured.reset_peak_memory()
        await _work(client, before, BEFORE_SECONDS)
        before_mb = measured.peak_memory_mb()
        async with (
            _going_on(client.work, under),
            _going_on(probe.watch, address(broker.http), told),
        ):
            await _attack(attack, broker, sasl)
        harm, under_mb = "ended", 0.0
        if broker.process.poll() is None:
            harm, under_mb = await client.check(), measured.peak_memory_mb()
        await client.close()
        return Outcome(attack, before, under, (before_mb, under_mb), told, harm)


async def _work(client: GoodClient, seen: Seen, seconds: float) -> None:
    async with _going_on(client.work, seen):
        await asyncio.sleep(seconds)


@asynccontextmanager
async def _going_on(work: object, *arguments: object) -> AsyncIterator[None]:
    """Run a task until the block ends. The task then ends by itself."""
    stopping = asyncio.Event()
    task = asyncio.create_task(work(*arguments, stopping))
    try:
        yield
    finally:
        stopping.set()
        await task


def free_port() -> int:
    """A port of the loopback interface that no process uses now."""
    with socket.socket() as probing:
        probing.bind(("127.0.0.1", 0))
        port: int = probing.getsockname()[1]
        return port


async def _attack(attack: Attack, broker: BrokerProcess, sasl: str | None) -> None:
    """Run the attacker's process to its end."""
    command = [sys.executable, "-m", "tests.attack.attacker", attack.name]
    listener = [] if sasl is None else [sasl]
    attacker = await asyncio.create_subprocess_exec(
        *command, broker.kafka, broker.http, TOPIC, *listener, stdout=subprocess.PIPE, cwd=ROOT
    )
    try:
        async with asyncio.timeout(attack.seconds + END_SECONDS_MAX):
            assert attacker.stdout is not None
            assert await attacker.stdout.readline() == b"begun\n"
            assert await attacker.wait() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            attacker.kill()
        await attacker.wait()
