"""Rates against quotas, on a clock of the test's own."""

from __future__ import annotations

import pytest

from tidelog.broker.fairness.rates import SampledRate, TokenBucket, Windows

WINDOWS = Windows(11, 1.0)
QUOTA = 100.0


def test_a_rate_counts_over_all_whole_samples_from_the_start() -> None:
    """Ten seconds' quota may be used at once: a burst is no rate yet."""
    rate = SampledRate(WINDOWS)
    assert rate.seconds_over(QUOTA, 5.0) == 0
    rate.record(1000, 5.0)
    assert rate.seconds_over(QUOTA, 5.0) == 0
    rate.record(50, 5.0)
    assert rate.seconds_over(QUOTA, 5.0) == pytest.approx(0.5)


def test_after_the_wait_the_rate_is_the_quota() -> None:
    rate = SampledRate(WINDOWS)
    rate.record(1550, 0.0)
    waits = rate.seconds_over(QUOTA, 0.0)
    assert waits == pytest.approx(5.5)
    # The wait assumes that whole samples leave the window at once, so it is an upper bound.
    assert rate.seconds_over(QUOTA, waits) < waits
    assert rate.seconds_over(QUOTA, 10.9) > 0
    assert rate.seconds_over(QUOTA, 11.0) == 0


@pytest.mark.parametrize("size", [10, 99, 500])
def test_a_client_that_waits_as_told_has_the_quota_as_its_rate(size: int) -> None:
    """Within five percent over many times all samples, with requests of less than a window.

    As in Kafka, a request that is larger than all samples does not wait for the time of one window.
    """
    rate, now, sent = SampledRate(WINDOWS), 0.0, 0
    while now < 1100:
        rate.record(size, now)
        sent += size
        now += rate.seconds_over(QUOTA, now) + 0.001
    assert sent / now == pytest.approx(QUOTA, rel=0.05)


def test_samples_are_forgotten_when_they_are_too_old() -> None:
    rate = SampledRate(WINDOWS)
    rate.record(5000, 0.0)
    rate.record(0, 10.5)
    assert rate.seconds_over(QUOTA, 10.5) > 0
    rate.record(0, 11.0)
    assert rate.seconds_over(QUOTA, 11.0) == 0


def test_a_value_that_is_taken_back_leaves_nothing() -> None:
    rate = SampledRate(WINDOWS)
    rate.record(5000, 0.5)
    rate.record(-5000, 0.5)
    rate.record(1000, 0.6)
    assert rate.seconds_over(QUOTA, 0.6) == 0


def test_the_ring_of_samples_wraps() -> None:
    rate, now = SampledRate(Windows(2, 1.0)), 0.0
    for _ in range(20):
        rate.record(100, now)
        assert rate.seconds_over(QUOTA, now) <= 1.0
        now += 1.0
    assert len(rate._begins) == 3


def test_one_sample_is_enough() -> None:
    rate = SampledRate(Windows(1, 1.0))
    rate.record(50, 0.0)
    # The rate over a very short time is high.
    assert rate.seconds_over(QUOTA, 0.0) == pytest.approx(0.499)
    assert rate.seconds_over(QUOTA, 0.5) == 0


def test_a_bucket_begins_full_and_refills_at_the_quota() -> None:
    bucket = TokenBucket(Windows(11, 1.0))
    bucket.record(10, 1.0, 1000.0)
    assert bucket.seconds_over(1.0, 1000.0) == 0
    bucket.record(6, 1.0, 1000.0)
    assert bucket.seconds_over(1.0, 1000.0) == pytest.approx(5)
    assert bucket.seconds_over(1.0, 1002.0) == pytest.approx(3)
    assert bucket.seconds_over(1.0, 1005.0) == 0
    # After any pause, a client has at most the use of all samples.
    bucket.record(12, 1.0, 9000.0)
    assert bucket.seconds_over(1.0, 9000.0) == pytest.approx(1)


def test_a_bucket_follows_a_changed_quota() -> None:
    bucket = TokenBucket(Windows(1, 1.0))
    bucket.record(11, 1.0, 0.0)
    assert bucket.seconds_over(1.0, 0.0) == pytest.approx(10)
    assert bucket.seconds_over(5.0, 0.0) == pytest.approx(2)
