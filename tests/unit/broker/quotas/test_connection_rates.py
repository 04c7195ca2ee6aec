"""How many connections an address may open, and a broker accept, in a second."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.loopback import run, serving
from tests.unit.broker.network.served import describe
from tests.unit.broker.one_broker import until
from tidelog.broker.quotas.connection_rates import AcceptRates, ConnectionRates
from tidelog.broker.settings.loading import load_settings
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.coordinator.cluster.records.client_quotas import DEFAULT_NAME, QuotaEntity
from tidelog.protocol.api import ApiKey
from tidelog.protocol.schemas.cluster.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)

HOST, OTHER = "10.0.0.1", "10.0.0.2"


def rates(**by_host: float) -> ConnectionRates:
    """Quotas of HOST (`host`) and of all other addresses (`default`)."""
    settings = BrokerSettings.of()
    found = ConnectionRates(lambda: settings)
    names = {"host": HOST, "default": DEFAULT_NAME}
    found.renew(
        {
            QuotaEntity(ip=names[name]): {"connection_creation_rate": value}
            for name, value in by_host.items()
        }
    )
    return found


def opened(found: ConnectionRates, host: str, tries: int, now: float) -> int:
    return sum(found.accepts(host, now) for _ in range(tries))


def test_without_quotas_every_connection_is_admitted() -> None:
    assert opened(rates(), HOST, 1000, 0.0) == 1000
    assert opened(rates(host=1), OTHER, 1000, 0.0) == 1000


def test_an_address_opens_ten_seconds_worth_and_then_its_rate() -> None:
    found = rates(host=5)
    assert opened(found, HOST, 1000, 0.0) == 50
    admitted = sum(opened(found, HOST, 100, second / 10) for second in range(1, 1001))
    assert 450 <= admitted <= 550
    assert opened(found, OTHER, 100, 100.0) == 100


def test_the_default_is_of_each_address_without_a_quota_of_its_own() -> None:
    found = rates(host=2, default=1)
    assert opened(found, HOST, 100, 0.0) == 20
    assert opened(found, OTHER, 100, 0.0) == 10
    assert opened(found, "10.0.0.3", 100, 0.0) == 10
    # Both spellings are the same address.
    assert opened(found, "::ffff:10.0.0.1", 100, 0.0) == 0


def test_a_changed_quota_counts_connections_opened_before() -> None:
    found = rates(host=1)
    assert opened(found, HOST, 100, 0.0) == 10
    found.renew({QuotaEntity(ip=HOST): {"connection_creation_rate": 3.0}})
    assert opened(found, HOST, 100, 0.0) == 20
    found.renew({})
    assert opened(found, HOST, 100, 0.0) == 100


def test_the_addresses_that_were_idle_for_longest_are_forgotten() -> None:
    settings = BrokerSettings.of(quota_clients_max=1)
    found = ConnectionRates(lambda: settings)
    found.renew({QuotaEntity(ip=DEFAULT_NAME): {"connection_creation_rate": 1.0}})
    assert opened(found, HOST, 100, 0.0) == 10
    assert opened(found, OTHER, 100, 0.0) == 10
    assert opened(found, HOST, 100, 0.0) == 10


def test_a_server_closes_connections_over_the_rate_at_once() -> None:
    async def main() -> None:
        async with serving({ApiKey.DESCRIBE_CLUSTER: describe}) as broker:
            rate = {"connection_creation_rate": 1.0}
            broker.connection_rates.renew({QuotaEntity(ip="127.0.0.1"): rate})
            clients = [await broker.connect() for _ in range(10)]
            request = DescribeClusterRequest()
            await asyncio.gather(
                *[each.ask(request, DescribeClusterResponse, 0) for each in clients]
            )
            assert await (await broker.connect()).closed()
            refused = broker.metrics.connections_refused.items()
            assert refused == [("connection_creation_rate", 1)]
            broker.connection_rates.renew({})
            await (await broker.connect()).ask(request, DescribeClusterResponse, 0)

    run(main())


def accept_rates(inter_broker: str | None = None, **by_name: int) -> AcceptRates:
    """Rates by name: `broker` is the whole broker's, the others are listeners' rates."""
    given = {
        "max.connection.creation.rate"
        if name == "broker"
        else f"listener.name.{name}.max.connection.creation.rate": rate
        for name, rate in by_name.items()
    }
    settings = load_settings(
        environment={}, flags=[f"{name}={rate}" for name, rate in given.items()]
    )
    return AcceptRates(lambda: settings, inter_broker)


def accepted(found: AcceptRates, listener: str, seconds: float) -> int:
    """The number of connections that one acceptor takes in this time from an endless queue."""
    now, number = 0.0, 0
    while now < seconds:
        now += found.delay(listener, now)
        number += 1
    return number


def test_without_a_rate_connections_are_accepted_at_once() -> None:
    found = accept_rates()
    assert [found.delay("CLIENTS", 0.0) for _ in range(1000)] == [0.0] * 1000


@pytest.mark.parametrize(("name", "inter_broker"), [("broker", None), ("clients", "CLIENTS")])
def test_connections_over_the_rate_are_accepted_later(name: str, inter_broker: str | None) -> None:
    found = accept_rates(inter_broker, **{name: 5})
    assert [found.delay("CLIENTS", 0.0) for _ in range(50)] == [0.0] * 50
    assert 0 < found.delay("CLIENTS", 0.0) <= 1
    assert 480 <= accepted(accept_rates(inter_broker, **{name: 5}), "CLIENTS", 100) <= 560


def test_the_stricter_of_the_two_rates_holds() -> None:
    assert accepted(accept_rates(broker=50, clients=5), "CLIENTS", 100) < 600
    assert accepted(accept_rates(broker=5, clients=50), "CLIENTS", 100) < 600
    # A listener's connections count for the broker.
    found = accept_rates(broker=5)
    assert accepted(found, "CLIENTS", 10) >= 50
    assert found.delay("OTHERS", 10.0) > 0


def test_brokers_are_delayed_by_the_rate_of_their_listener_alone() -> None:
    found = accept_rates("BROKERS", broker=1)
    assert [found.delay("BROKERS", 0.0) for _ in range(100)] == [0.0] * 100
    assert found.delay("CLIENTS", 0.0) == 0


def test_a_rate_of_0_lets_each_connection_wait_for_a_sample() -> None:
    assert accepted(accept_rates(broker=0), "CLIENTS", 10) == 10


LOOPS = ("uvloop", "asyncio")


@pytest.mark.parametrize("loop", LOOPS)
def test_a_server_accepts_all_connections_over_its_rate_and_refuses_none(loop: str) -> None:
    async def main() -> None:
        rates = {"max_connection_creation_rate": 50, "quota_window_num": 2}
        async with serving({ApiKey.DESCRIBE_CLUSTER: describe}, **rates) as broker:
            clients = [await broker.connect() for _ in range(60)]
            request = DescribeClusterRequest()
            await asyncio.gather(
                *[each.ask(request, DescribeClusterResponse, 0) for each in clients]
            )
            assert broker.metrics.connections_refused.items() == []
            assert 0 < broker.quotas.metrics.accepts_delayed <= 10

    run(main(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_server_that_ends_closes_a_connection_that_waits(loop: str) -> None:
    async def main() -> None:
        rate = {"max_connection_creation_rate": 0, "quota_window_size_seconds": 1000}
        async with serving({ApiKey.DESCRIBE_CLUSTER: describe}, **rate) as broker:
            clients = [await broker.connect() for _ in range(3)]
            await until(lambda: broker.quotas.metrics.accepts_delayed)
            await broker.server.abort()
            assert [await each.closed() for each in clients] == [True] * 3

    run(main(), loop)
