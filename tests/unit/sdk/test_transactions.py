"""How a transaction ends, by the answers that the client of librdkafka gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidelog.sdk.errors import AbortableError, FatalError, RetriableError
from tidelog.sdk.transactions import TransactionEnds

REFUSED = KafkaException(
    KafkaError(KafkaError._TIMED_OUT, "a message was not delivered", txn_requires_abort=True)
)
UNKNOWN_TRANSACTION = KafkaException(KafkaError(KafkaError.INVALID_TXN_STATE, fatal=True))
TIMED_OUT = KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True))


class RefusedCommit:
    """A client of librdkafka whose commit must be aborted, and whose first abort does not end."""

    def __init__(self, first_abort: BaseException) -> None:
        self._ends = [first_abort]

    def init_transactions(self, _: float) -> None:
        return None

    def begin_transaction(self) -> None:
        return None

    def commit_transaction(self, _: float) -> None:
        raise REFUSED

    def abort_transaction(self, _: float) -> None:
        if self._ends:
            raise self._ends.pop()

    def __len__(self) -> int:
        return 0


class SlowlyEnlisted:
    """A client of librdkafka with messages on their way, of which each poll delivers one.

    While none of their partitions is added to the transaction, the coordinator refuses the abort.
    """

    def __init__(self, messages: int, *, is_served: bool = True) -> None:
        self._messages = messages
        self._is_served = is_served
        self.is_aborted = False

    def init_transactions(self, _: float) -> None:
        return None

    def begin_transaction(self) -> None:
        return None

    def poll(self, _: float) -> None:
        self._messages -= self._is_served

    def abort_transaction(self, _: float) -> None:
        if self._messages:
            raise UNKNOWN_TRANSACTION
        self.is_aborted = True

    def __len__(self) -> int:
        return self._messages


def test_an_abort_waits_for_messages_whose_partitions_are_not_added_yet() -> None:
    client: Any = SlowlyEnlisted(3)
    ends = TransactionEnds(client, "hasty", 60_000)
    ends.begin()
    ends.abort()
    assert client.is_aborted
    ends.begin()


def test_an_abort_waits_for_messages_that_cannot_be_delivered_up_to_a_limit() -> None:
    client: Any = SlowlyEnlisted(3, is_served=False)
    ends = TransactionEnds(client, "cut-off", 10)
    ends.begin()
    with pytest.raises(FatalError, match="INVALID_TXN_STATE"):
        ends.abort()


@pytest.mark.parametrize(
    ("first_abort", "raised"),
    [(TIMED_OUT, RetriableError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
@pytest.mark.parametrize("follow", [TransactionEnds.settle, TransactionEnds.begin])
def test_a_refused_commit_whose_abort_does_not_end_is_never_told_as_committed(
    first_abort: BaseException,
    raised: type[BaseException],
    follow: Callable[[TransactionEnds], None],
) -> None:
    client: Any = RefusedCommit(first_abort)
    ends = TransactionEnds(client, "refused", 0)
    ends.begin()
    with pytest.raises(raised):
        ends.commit(None)
    with pytest.raises(AbortableError, match="a message was not delivered"):
        follow(ends)
    # It is told once.
    ends.settle()
    ends.begin()
