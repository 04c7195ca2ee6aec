"""KIP-227: full, incremental, declined, evicted and mistaken fetch sessions."""

from __future__ import annotations

from itertools import count
from uuid import uuid4

import pytest

from tidelog.broker.read.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchSessions,
    FetchTarget,
    InvalidSessionEpoch,
    SessionNotFound,
    SessionTopicKeyMixed,
)


def sessions(slots_max: int = 10) -> FetchSessions:
    ids = count(100)
    return FetchSessions(slots_max, lambda: next(ids))


def target(partition: int, offset: int = 0) -> FetchTarget:
    return FetchTarget(("flights", partition), offset, 1000)


def test_a_session_remembers_partitions_that_a_request_does_not_repeat() -> None:
    cache = sessions()
    first = cache.plan(0, INITIAL_EPOCH, [target(0), target(1)], [], by_id=False, now=0)
    assert not first.incremental
    assert first.session_id == 100
    then = cache.plan(100, 1, [target(1, offset=7)], [], by_id=False, now=1)
    assert then.incremental
    assert [(t.key[1], t.fetch_offset) for t in then.targets] == [(0, 0), (1, 7)]
    last = cache.plan(100, 2, [], [("flights", 0)], by_id=False, now=2)
    assert [t.key[1] for t in last.targets] == [1]


def test_a_wrong_epoch_and_an_unknown_session_are_refused() -> None:
    cache = sessions()
    cache.plan(0, INITIAL_EPOCH, [target(0)], [], by_id=False, now=0)
    with pytest.raises(InvalidSessionEpoch):
        cache.plan(100, 2, [], [], by_id=False, now=0)
    with pytest.raises(SessionNotFound):
        cache.plan(101, 1, [], [], by_id=False, now=0)
    with pytest.raises(SessionTopicKeyMixed):
        cache.plan(100, 1, [FetchTarget((uuid4(), 0), 0, 1)], [], by_id=True, now=0)


def test_a_full_cache_declines_until_the_oldest_is_idle() -> None:
    cache = sessions(slots_max=1)
    assert cache.plan(0, INITIAL_EPOCH, [target(0)], [], by_id=False, now=0).session_id == 100
    declined = cache.plan(0, INITIAL_EPOCH, [target(1)], [], by_id=False, now=60)
    assert declined.session_id == 0
    assert [t.key[1] for t in declined.targets] == [1]
    assert cache.plan(0, INITIAL_EPOCH, [target(1)], [], by_id=False, now=121).session_id == 101
    with pytest.raises(SessionNotFound):
        cache.plan(100, 1, [], [], by_id=False, now=121)


def test_the_final_epoch_closes_a_session() -> None:
    cache = sessions()
    cache.plan(0, INITIAL_EPOCH, [target(0)], [], by_id=False, now=0)
    closing = cache.plan(100, FINAL_EPOCH, [target(0)], [], by_id=False, now=0)
    assert closing.session is None
    assert len(cache) == 0


def test_forgetting_every_partition_ends_the_session() -> None:
    cache = sessions()
    cache.plan(0, INITIAL_EPOCH, [target(0)], [], by_id=False, now=0)
    assert cache.plan(100, 1, [], [("flights", 0)], by_id=False, now=0).session is None
    assert len(cache) == 0


def test_the_epoch_wraps_to_1() -> None:
    cache = sessions()
    session = cache.plan(0, INITIAL_EPOCH, [target(0)], [], by_id=False, now=0).session
    assert session is not None
    session.epoch = 2**31 - 1
    cache.plan(100, 2**31 - 1, [], [], by_id=False, now=0)
    assert session.epoch == 1


def test_only_news_is_told_and_errors_are_repeated() -> None:
    t = target(0)
    quiet = {"records": False, "error": False, "high_watermark": 5, "log_start": 0}
    assert t.update_if_changed(**quiet)
    assert not t.update_if_changed(**quiet)
    assert t.update_if_changed(records=True, error=False, high_watermark=5, log_start=0)
    assert t.update_if_changed(records=False, error=True, high_watermark=5, log_start=0)
    assert t.update_if_changed(**quiet)


def test_served_partitions_go_behind_the_other_partitions() -> None:
    cache = sessions()
    session = cache.plan(
        0, INITIAL_EPOCH, [target(0), target(1), target(2)], [], by_id=False, now=0
    ).session
    assert session is not None
    session.serve_last([("flights", 0)])
    plan = cache.plan(100, 1, [], [], by_id=False, now=0)
    assert [t.key[1] for t in plan.targets] == [1, 2, 0]


def test_a_new_session_that_gave_way_while_its_fetch_waited_may_be_throttled() -> None:
    cache = sessions(slots_max=1)
    waiting = cache.plan(0, INITIAL_EPOCH, [target(0)], [], by_id=False, now=0)
    other = cache.plan(0, INITIAL_EPOCH, [target(1)], [], by_id=False, now=121)
    assert cache.throttled(waiting) == 0
    assert cache.plan(other.session_id, 1, [], [], by_id=False, now=122).incremental
