"""The use of quotas by clients."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tidelog.broker.quotas.client_quotas import ClientQuotas
from tidelog.broker.quotas.metrics import QuotaMetrics
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.coordinator.cluster.records.client_quotas import DEFAULT_NAME, QuotaEntity

ALICE, BOB = QuotaEntity("alice"), QuotaEntity("bob")


def with_quotas(
    quotas: Mapping[QuotaEntity, Mapping[str, float]], **settings: object
) -> ClientQuotas:
    found = ClientQuotas(lambda: BrokerSettings.of(**settings), QuotaMetrics())
    found.renew(quotas)
    return found


def test_quotas_are_active_while_a_user_or_client_id_has_some() -> None:
    quotas = with_quotas({})
    assert not quotas.active
    quotas.renew({QuotaEntity(ip="10.0.0.1"): {"connection_creation_rate": 5.0}})
    assert not quotas.active
    quotas.renew({ALICE: {"producer_byte_rate": 5.0}})
    assert quotas.active
    quotas.renew({})
    assert not quotas.active


def test_a_producer_over_its_quota_waits_and_the_wait_is_counted() -> None:
    quotas = with_quotas({ALICE: {"producer_byte_rate": 100.0}})
    alice = quotas.of("alice", "app")
    assert alice.produce_ms(1000, 0.0) == 0
    assert alice.produce_ms(25, 0.0) == 250
    assert quotas.of("bob", "app").produce_ms(10**9, 0.0) == 0
    assert quotas.metrics.throttled.items() == [("producer_byte_rate", 1)]


def test_all_clients_of_a_user_share_its_quota_and_clients_of_pairs_do_not() -> None:
    rate = {"producer_byte_rate": 100.0}
    quotas = with_quotas({ALICE: rate, QuotaEntity("bob", DEFAULT_NAME): rate})
    quotas.of("alice", "one").produce_ms(1000, 0.0)
    assert quotas.of("alice", "two").produce_ms(10, 0.0) == 100
    quotas.of("bob", "one").produce_ms(1000, 0.0)
    assert quotas.of("bob", "two").produce_ms(10, 0.0) == 0


def test_a_changed_quota_counts_bytes_used_before() -> None:
    quotas = with_quotas({ALICE: {"producer_byte_rate": 100.0}})
    quotas.of("alice", "app").produce_ms(2000, 0.0)
    quotas.renew({ALICE: {"producer_byte_rate": 200.0}, BOB: {"producer_byte_rate": 1.0}})
    assert quotas.of("alice", "app").produce_ms(0, 0.0) == 0
    assert quotas.of("alice", "app").produce_ms(20, 0.0) == 100
    quotas.renew({ALICE: {"producer_byte_rate": 50.0}})
    assert quotas.of("alice", "app").produce_ms(0, 0.0) == 30_400
    quotas.renew({BOB: {"producer_byte_rate": 50.0}})
    assert quotas.of("alice", "app").produce_ms(10**6, 0.0) == 0


def test_a_throttled_fetch_uses_nothing() -> None:
    quotas = with_quotas({ALICE: {"consumer_byte_rate": 100.0}})
    alice = quotas.of("alice", "app")
    assert alice.fetch_bytes_max == 1000
    assert alice.fetch_ms(900, 0.0) == (0, True)
    assert alice.fetch_ms(200, 0.0) == (1000, False)
    assert alice.fetch_ms(200, 0.0) == (1000, False)
    assert alice.fetch_ms(100, 0.0) == (0, True)


def test_a_batch_that_no_window_has_room_for_is_given_once_and_waited_for() -> None:
    quotas = with_quotas({ALICE: {"consumer_byte_rate": 100.0}})
    alice = quotas.of("alice", "app")
    assert alice.fetch_ms(5000, 0.0) == (40_000, True)
    waits_ms, is_given = alice.fetch_ms(5000, 5.0)
    assert waits_ms > 40_000
    assert not is_given
    assert alice.fetch_ms(5000, 40.0) == (40_000, True)


def test_the_time_of_requests_is_limited_and_the_wait_too() -> None:
    """100 percent are the whole event loop of the broker."""
    quotas = with_quotas({ALICE: {"request_percentage": 10.0}})
    alice = quotas.of("alice", "app")
    assert alice.request_ms(1.0, 0.0) == 0
    assert alice.request_ms(0.01, 0.0) == 100
    assert alice.request_ms(5.0, 0.0) == 1000, "no longer than one sample"
    assert quotas.metrics.busy_seconds == pytest.approx(6.01)
    # A fetch over the quota of requests is empty as well.
    assert alice.fetch_ms(10, 0.0) == (1000, False)


def test_the_greatest_quota_is_no_limit_in_practice() -> None:
    quotas = with_quotas({ALICE: {"consumer_byte_rate": float(2**63 - 1)}})
    assert quotas.of("alice", "app").fetch_bytes_max == 2**31 - 1
    smallest = with_quotas({ALICE: {"consumer_byte_rate": 1.0}}, quota_window_num=1)
    assert smallest.of("alice", "app").fetch_bytes_max == 1


def test_the_longest_wait_fits_into_the_protocol() -> None:
    quotas = with_quotas({ALICE: {"producer_byte_rate": 1.0}})
    assert quotas.of("alice", "app").produce_ms(10**9, 0.0) == 2**31 - 1


def test_the_clients_that_were_idle_for_longest_are_forgotten() -> None:
    quotas = with_quotas(
        {QuotaEntity(None, DEFAULT_NAME): {"producer_byte_rate": 1.0}}, quota_clients_max=2
    )
    quotas.of("x", "one").produce_ms(20, 0.0)
    quotas.of("x", "two").produce_ms(20, 0.0)
    assert quotas.of("x", "one").produce_ms(0, 0.0) == 10_000
    quotas.of("x", "three")
    assert quotas.of("x", "one").produce_ms(0, 0.0) == 10_000
    assert quotas.of("x", "two").produce_ms(0, 0.0) == 0


@pytest.mark.parametrize("client_id", [None, ""])
def test_clients_without_an_id_count_as_one_client(client_id: str | None) -> None:
    quotas = with_quotas({QuotaEntity(None, DEFAULT_NAME): {"producer_byte_rate": 1.0}})
    quotas.of("alice", "").produce_ms(20, 0.0)
    assert quotas.of("bob", client_id).produce_ms(0, 0.0) == 10_000
