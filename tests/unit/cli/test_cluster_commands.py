"""`tidelog cluster` as a user types it, with two brokers on one folder."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.localstack.broker_process import BrokerProcess

TIDELOG = [sys.executable, "-m", "tidelog.cli"]


def tidelog(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [*TIDELOG, *words], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BrokerProcess]]:
    folder = tmp_path_factory.mktemp("cluster")
    url = f"file://{folder / 'bucket'}"
    still = {"auto.leader.rebalance.enable": "false"}
    with (
        BrokerProcess.start(url, folder / "log1", settings=still) as first,
        BrokerProcess.start(url, folder / "log2", broker_id=1, settings=still) as second,
    ):
        yield [first, second]


def bootstrap(broker: BrokerProcess) -> tuple[str, str]:
    return "--bootstrap", broker.kafka


def test_brokers_are_described_and_partitions_move(
    two: list[BrokerProcess], tmp_path: Path
) -> None:
    first, second = two
    assert tidelog("topics", "create", "flights", "--partitions", "4", *bootstrap(first))[0] == 0
    code, out, err = tidelog("cluster", "describe", "--json", *bootstrap(second))
    assert code == 0, err
    brokers = {each["broker"]: each for each in json.loads(out)["brokers"]}
    assert sorted(brokers) == [0, 1]
    assert [brokers[number]["partitions"] for number in (0, 1)] == [2, 2]
    for receiver in (0, 1):
        for number in range(4):
            words = ("cluster", "move", "flights", str(number), str(receiver))
            code, out, err = tidelog(*words, *bootstrap(first))
            assert (code, out) == (0, f"partition flights-{number} is with broker {receiver}\n"), (
                err
            )
        code, out, _ = tidelog("cluster", "describe", *bootstrap(first))
        assert code == 0
        assert f"broker {receiver}" in out
        assert "partitions 4" in out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("flights", "0", "7"), "there is no live broker 7; these live: 0, 1"),
        (("flights", "9", "0"), "there is no partition flights-9"),
        (("nowhere", "0", "0"), "there is no partition nowhere-0"),
    ],
)
def test_a_wrong_move_is_named(two: list[BrokerProcess], words: tuple[str, ...], why: str) -> None:
    tidelog("topics", "create", "flights", "--partitions", "4", *bootstrap(two[0]))
    code, _, err = tidelog("cluster", "move", *words, *bootstrap(two[0]))
    assert code == 1
    assert why in err


def shares(broker: BrokerProcess) -> dict[int, tuple[int, bool]]:
    code, out, err = tidelog("cluster", "describe", "--json", *bootstrap(broker))
    assert code == 0, err
    return {
        each["broker"]: (each["partitions"], each["draining"])
        for each in json.loads(out)["brokers"]
    }


def test_a_broker_is_drained_and_takes_its_share_again(two: list[BrokerProcess]) -> None:
    first, second = two
    tidelog("topics", "create", "flights", "--partitions", "4", *bootstrap(first))
    code, out, err = tidelog("cluster", "drain", "1", *bootstrap(first))
    assert (code, out) == (0, "broker 1 leads no partitions and gets no new ones\n"), err
    assert shares(second) == {0: (4, False), 1: (0, True)}
    assert "draining" in tidelog("cluster", "describe", *bootstrap(first))[1]
    code, _, err = tidelog("cluster", "drain", "0", *bootstrap(second))
    assert code == 1
    assert "broker 0 is the last one that can take partitions" in err
    code, _, err = tidelog("cluster", "move", "flights", "0", "1", *bootstrap(first))
    assert code == 1
    assert "broker 1 is being drained; end that with `tidelog cluster drain 1 --undo`" in err
    code, out, err = tidelog("cluster", "drain", "1", "--undo", *bootstrap(second))
    assert (code, out) == (0, "broker 1 takes partitions again\n"), err
    code, out, err = tidelog("cluster", "rebalance", *bootstrap(second))
    assert (code, out) == (0, "2 partitions moved\n"), err
    assert shares(first) == {0: (2, False), 1: (2, False)}
    assert tidelog("cluster", "rebalance", "--json", *bootstrap(first))[1] == '{"moved": 0}\n'


def test_a_drain_of_no_broker_is_named(two: list[BrokerProcess]) -> None:
    code, _, err = tidelog("cluster", "drain", "7", *bootstrap(two[0]))
    assert code == 1
    assert "there is no live broker 7; these live: 0, 1" in err


def test_a_drain_that_takes_too_long_names_the_remaining_partitions(tmp_path: Path) -> None:
    """The drained broker is paused, so it gives no partition away until it is resumed."""
    url = f"file://{tmp_path / 'bucket'}"
    with (
        BrokerProcess.start(url, tmp_path / "log1") as first,
        BrokerProcess.start(url, tmp_path / "log2", broker_id=1) as second,
    ):
        tidelog("topics", "create", "flights", "--partitions", "2", *bootstrap(first))
        tidelog("cluster", "move", "flights", "0", "1", *bootstrap(first))
        tidelog("cluster", "move", "flights", "1", "0", *bootstrap(first))
        second.process.send_signal(signal.SIGSTOP)
        try:
            words = ("cluster", "drain", "1", "--timeout", "0")
            code, _, err = tidelog(*words, *bootstrap(first))
        finally:
            second.process.send_signal(signal.SIGCONT)
        assert code == 1
        assert "broker 1 still leads 1 partitions: flights-0" in err
        code, _, err = tidelog("cluster", "drain", "1", *bootstrap(first))
        assert code == 0, err
