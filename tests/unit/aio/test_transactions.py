"""Transactions of the asyncio producer: cancelled at any place, a transaction is committed whole or
not at all."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest

from tests.unit.sdk.replaced_clients import replaced
from tests.unit.sdk.test_producer import values
from tidelog.aio.producer import Producer
from tidelog.errors import Refused
from tidelog.sdk.errors import (
    AbortableError,
    CommitOutcomeUnknown,
    ProducerFencedError,
    RetriableError,
)
from tidelog.testing.broker import Broker


class HeldClient:
    """A client of librdkafka whose commits wait until the test lets them go."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        self._client = confluent_kafka.Producer(configuration)
        self.held = "commit"
        """The call that waits."""
        self.asked = threading.Event()
        self.go = threading.Event()
        self.commits = 0
        self.failure: confluent_kafka.KafkaException | None = None
        self.is_closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def __len__(self) -> int:
        return len(self._client)

    def commit_transaction(self, timeout: float) -> None:
        self._hold("commit")
        self.commits += 1
        if self.failure is not None:
            raise self.failure
        self._client.commit_transaction(timeout)

    def abort_transaction(self, timeout: float) -> None:
        self._hold("abort")
        self._client.abort_transaction(timeout)

    def send_offsets_to_transaction(self, *_: Any) -> None:
        self._hold("offsets")

    def close(self) -> None:
        self._client.close()
        self.is_closed = True

    def _hold(self, call: str) -> None:
        if call == self.held:
            self.asked.set()
            self.go.wait()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[HeldClient]:
    """The clients of the producers that the test makes."""
    return replaced(monkeypatch, "sender", HeldClient)


async def send_all(producer: Producer, topic: str, *sent: str) -> None:
    async with producer.transaction():
        for value in sent:
            await producer.send(topic, value)


async def cancel_in_commit(producer: Producer, client: HeldClient, topic: str) -> None:
    """A transaction whose task is cancelled while the commit request is on its way."""
    task = asyncio.create_task(send_all(producer, topic, "a", "b"))
    # A transaction that fails before its commit raises the error at once.
    task.add_done_callback(lambda _: client.asked.set())
    await asyncio.to_thread(client.asked.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def begin_once(producer: Producer) -> None:
    """Begin and abort a transaction. A broker's first one may take longer than max_block_ms."""
    while True:
        try:
            async with producer.transaction():
                raise KeyError
        except RetriableError:
            continue
        except KeyError:
            return


def test_a_transaction_commits_or_is_aborted_by_an_exception(shared: Broker) -> None:
    topic = shared.topic()

    async def fail(producer: Producer) -> None:
        async with producer.transaction():
            await producer.send(topic, "dropped")
            raise KeyError

    async def run() -> None:
        async with Producer(shared.bootstrap, transactional_id="aio-commits") as producer:
            await send_all(producer, topic, "kept")
            with pytest.raises(KeyError):
                await fail(producer)
            await send_all(producer, topic, "kept again")

    asyncio.run(run())
    assert values(shared, topic) == [b"kept", b"kept again"]


def test_a_task_that_is_cancelled_in_the_block_aborts(shared: Broker) -> None:
    topic = shared.topic()

    async def run() -> None:
        async with Producer(shared.bootstrap, transactional_id="aio-block") as producer:
            sent = asyncio.Event()

            async def work() -> None:
                async with producer.transaction():
                    await producer.send(topic, "dropped")
                    sent.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await sent.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await send_all(producer, topic, "kept")

    asyncio.run(run())
    assert values(shared, topic) == [b"kept"]


def test_a_commit_goes_on_when_its_task_is_cancelled_and_is_told_later(
    shared: Broker, held: list[HeldClient]
) -> None:
    topic = shared.topic()

    async def run() -> None:
        async with Producer(shared.bootstrap, transactional_id="aio-cancelled") as producer:
            (client,) = held
            await cancel_in_commit(producer, client, topic)
            client.go.set()
            await producer.resume_commit()
            assert client.commits == 1
            await send_all(producer, topic, "c")

    asyncio.run(run())
    assert values(shared, topic) == [b"a", b"b", b"c"]


def test_the_next_transaction_waits_for_the_commit_that_goes_on(
    shared: Broker, held: list[HeldClient]
) -> None:
    topic = shared.topic()

    async def run() -> None:
        async with Producer(shared.bootstrap, transactional_id="aio-next") as producer:
            (client,) = held
            await cancel_in_commit(producer, client, topic)
            following = asyncio.create_task(send_all(producer, topic, "c"))
            await asyncio.sleep(0)
            client.go.set()
            await following

    asyncio.run(run())
    assert values(shared, topic) == [b"a", b"b", b"c"]


def test_a_commit_that_fails_after_its_task_was_cancelled_is_told_later(
    shared: Broker, held: list[HeldClient]
) -> None:
    topic = shared.topic()

    async def run() -> None:
        async with Producer(shared.bootstrap, transactional_id="aio-failed") as producer:
            (client,) = held
            client.failure = confluent_kafka.KafkaException(
                confluent_kafka.KafkaError(
                    confluent_kafka.KafkaError.INVALID_TXN_STATE, txn_requires_abort=True
                )
            )
            await cancel_in_commit(producer, client, topic)
            client.go.set()
            with pytest.raises(AbortableError):
                await producer.resume_commit()
            client.failure = None
            await send_all(producer, topic, "again")

    asyncio.run(run())
    assert values(shared, topic) == [b"again"]


def test_close_waits_for_the_commit_that_goes_on(shared: Broker, held: list[HeldClient]) -> None:
    topic = shared.topic()

    async def run() -> None:
        producer = Producer(shared.bootstrap, transactional_id="aio-close")
        (client,) = held
        await cancel_in_commit(producer, client, topic)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        client.go.set()
        await closing

    asyncio.run(run())
    assert values(shared, topic) == [b"a", b"b"]


def test_close_ends_without_the_broker_and_says_that_the_outcome_is_unknown(
    broker: Broker, held: list[HeldClient]
) -> None:
    topic = broker.topic()

    async def run() -> None:
        producer = Producer(broker.bootstrap, transactional_id="aio-doubt", max_block_ms=3000)
        (client,) = held
        await begin_once(producer)
        await cancel_in_commit(producer, client, topic)
        await asyncio.to_thread(broker.kill)
        client.go.set()
        with pytest.raises(CommitOutcomeUnknown, match="never send"):
            await producer.close()

    asyncio.run(run())


def test_close_ends_a_begin_that_repeats_an_unanswered_commit(
    shared: Broker, held: list[HeldClient]
) -> None:
    topic = shared.topic()

    async def run() -> None:
        producer = Producer(shared.bootstrap, transactional_id="aio-begin", max_block_ms=2000)
        (client,) = held
        client.failure = confluent_kafka.KafkaException(
            confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT, retriable=True)
        )
        client.go.set()
        with pytest.raises(CommitOutcomeUnknown):
            async with producer.transaction(commit_timeout=0):
                await producer.send(topic, "in doubt")
        client.asked.clear()
        beginning = asyncio.create_task(send_all(producer, topic, "later"))
        await asyncio.to_thread(client.asked.wait)
        closing = asyncio.create_task(producer.close())
        _, waiting = await asyncio.wait([closing], timeout=30)
        assert not waiting, "the thread repeats the commit without end"
        with pytest.raises(CommitOutcomeUnknown, match="never send"):
            await beginning

    asyncio.run(run())


def test_a_close_that_is_cancelled_ends_the_commit_and_the_next_one_tells_its_outcome(
    broker: Broker, held: list[HeldClient]
) -> None:
    topic = broker.topic()

    async def run() -> None:
        producer = Producer(broker.bootstrap, transactional_id="aio-cancelled-close")
        (client,) = held
        await cancel_in_commit(producer, client, topic)
        await asyncio.to_thread(broker.kill)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        client.go.set()
        again = asyncio.create_task(producer.close())
        _, waiting = await asyncio.wait([again], timeout=30)
        assert not waiting, "the thread repeats the commit without end"
        with pytest.raises(CommitOutcomeUnknown, match="never send"):
            await again

    asyncio.run(run())


def test_a_commit_whose_answer_is_lost_is_repeated_and_not_aborted(broker: Broker) -> None:
    topic = broker.topic()

    async def lose(producer: Producer) -> None:
        async with producer.transaction(commit_timeout=0.1):
            await producer.send(topic, "first")
            await producer.flush(30)
            await asyncio.to_thread(broker.kill)

    async def run() -> None:
        async with Producer(broker.bootstrap, transactional_id="aio-lost") as producer:
            with pytest.raises(CommitOutcomeUnknown, match="resume_commit"):
                await lose(producer)
            await asyncio.to_thread(broker.start)
            await producer.resume_commit()
            await send_all(producer, topic, "second")

    asyncio.run(run())
    assert values(broker, topic) == [b"first", b"second"]


def test_the_wait_for_deliveries_is_part_of_the_commit_timeout(broker: Broker) -> None:
    topic = broker.topic()

    async def run() -> None:
        producer = Producer(
            broker.bootstrap,
            transactional_id="aio-undelivered",
            delivery_timeout_ms=5000,
            request_timeout_ms=500,
        )
        await send_all(producer, topic, "first")

        async def lose() -> None:
            async with producer.transaction(commit_timeout=0):
                await producer.send(topic, "durable")
                await producer.flush(30)
                await asyncio.to_thread(broker.kill)
                await producer.send(topic, "on its way")

        with pytest.raises(CommitOutcomeUnknown, match="within commit_timeout"):
            await lose()
        await producer.close()

    asyncio.run(run())


def test_a_task_that_is_cancelled_while_it_begins_leaves_no_open_transaction(
    shared: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = shared.topic()

    async def run() -> None:
        async with Producer(shared.bootstrap, transactional_id="aio-begin") as producer:
            await producer.init_transactions()
            task = asyncio.create_task(send_all(producer, topic, "dropped"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await send_all(producer, topic, "kept")

    asyncio.run(run())
    assert values(shared, topic) == [b"kept"]


def test_a_refused_begin_that_is_cancelled_leaves_the_open_transaction_alone(
    shared: Broker,
) -> None:
    topic = shared.topic()

    async def run() -> None:
        async with (
            Producer(shared.bootstrap, transactional_id="aio-second") as producer,
            producer.transaction(),
        ):
            second = asyncio.create_task(send_all(producer, topic, "second"))
            await asyncio.sleep(0)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            await producer.init_transactions()
            await producer.send(topic, "kept")

    asyncio.run(run())
    assert values(shared, topic) == [b"kept"]


def test_a_block_whose_producer_was_closed_does_not_end_as_if_it_was_committed(
    shared: Broker,
) -> None:
    topic = shared.topic()

    async def close_within() -> None:
        producer = Producer(shared.bootstrap, transactional_id="aio-closed-within")
        async with producer.transaction():
            await producer.send(topic, "dropped")
            await producer.close()

    with pytest.raises(AbortableError, match="none of it is visible"):
        asyncio.run(close_within())
    assert values(shared, topic) == []


def test_a_block_that_ends_while_its_producer_closes_says_that_it_was_aborted(
    shared: Broker,
) -> None:
    topic = shared.topic()

    async def send_late(producer: Producer, sent: asyncio.Event) -> None:
        async with producer.transaction():
            await producer.send(topic, "dropped")
            sent.set()

    async def run() -> None:
        # The end of the block waits for the message, which lingers.
        producer = Producer(
            shared.bootstrap, transactional_id="aio-closes-beside", linger_ms=10_000
        )
        sent = asyncio.Event()
        ending = asyncio.create_task(send_late(producer, sent))
        await sent.wait()
        await producer.close()
        with pytest.raises(AbortableError, match="aborted before its block ended"):
            await ending

    asyncio.run(run())
    assert values(shared, topic) == []


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_transaction_that_begins_while_its_producer_closes_is_refused(
    shared: Broker, held: list[HeldClient], is_cancelled: bool
) -> None:
    topic = shared.topic()

    async def run() -> None:
        producer = Producer(
            shared.bootstrap, transactional_id=f"aio-begins-beside-close-{is_cancelled}"
        )
        early = producer.transaction()
        beginning = asyncio.create_task(send_all(producer, topic, "dropped"))
        # The task has asked the thread to begin.
        await asyncio.sleep(0)
        if is_cancelled:
            beginning.cancel()
        await producer.close()
        with pytest.raises(asyncio.CancelledError if is_cancelled else Refused) as raised:
            await beginning
        assert is_cancelled or "the producer is closed" in str(raised.value)
        with pytest.raises(Refused, match="the producer is closed"):
            await early.__aenter__()
        assert held[0].is_closed

    asyncio.run(run())
    assert values(shared, topic) == []


def test_a_begin_that_was_cancelled_leaves_nothing_that_keeps_close_from_closing(
    shared: Broker, held: list[HeldClient]
) -> None:
    async def run() -> None:
        producer = Producer(shared.bootstrap, transactional_id="aio-cancelled-begin")
        await producer.init_transactions()
        beginning = asyncio.create_task(send_all(producer, "never", "dropped"))
        await asyncio.sleep(0)
        beginning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beginning
        await producer.close()
        assert held[0].is_closed

    asyncio.run(run())


def test_close_aborts_behind_the_offsets_that_a_block_sends(
    shared: Broker, held: list[HeldClient]
) -> None:
    topic = shared.topic()

    async def run() -> None:
        source: Any = SimpleNamespace(transaction_offsets=lambda: ((), None))
        producer = Producer(shared.bootstrap, transactional_id="aio-close-beside-offsets")
        (client,) = held
        client.held = "offsets"

        async def send() -> None:
            async with producer.transaction() as transaction:
                await producer.send(topic, "dropped")
                await transaction.send_offsets(source)

        sending = asyncio.create_task(send())
        await asyncio.to_thread(client.asked.wait)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        client.go.set()
        await closing
        with pytest.raises(AbortableError, match="aborted before its block ended"):
            await sending
        assert client.commits == 0
        assert client.is_closed

    asyncio.run(run())
    assert values(shared, topic) == []


@pytest.mark.parametrize("turns", range(6))
def test_close_has_a_bound_whenever_a_block_ends_beside_it(
    shared: Broker, held: list[HeldClient], turns: int
) -> None:
    async def run() -> None:
        producer = Producer(
            shared.bootstrap, transactional_id=f"aio-ends-beside-close-{turns}", max_block_ms=2000
        )
        (client,) = held
        client.failure = confluent_kafka.KafkaException(
            confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT, retriable=True)
        )
        client.go.set()
        begun, is_stopped = asyncio.Event(), asyncio.Event()

        async def send() -> None:
            async with producer.transaction():
                begun.set()
                await is_stopped.wait()
                for _ in range(turns):
                    await asyncio.sleep(0)

        sending = asyncio.create_task(send())
        await begun.wait()
        is_stopped.set()
        closing = asyncio.create_task(producer.close())
        _, waiting = await asyncio.wait([closing, sending], timeout=30)
        assert not waiting, "the thread repeats the commit without end"
        closing.result()
        with pytest.raises((AbortableError, CommitOutcomeUnknown)):
            sending.result()

    asyncio.run(run())


def test_a_second_close_and_a_begin_wait_for_the_first_ones_abort(
    shared: Broker, held: list[HeldClient]
) -> None:
    topic = shared.topic()

    async def run() -> None:
        producer = Producer(shared.bootstrap, transactional_id="aio-closed-twice")
        (client,) = held
        client.held = "abort"
        early = producer.transaction()
        async with producer.transaction():
            await producer.send(topic, "dropped")
            closing = asyncio.create_task(producer.close())
            await asyncio.to_thread(client.asked.wait)
            again = asyncio.create_task(producer.close())
            beginning = asyncio.create_task(early.__aenter__())
            await asyncio.sleep(0)
            client.go.set()
            await again
            assert client.is_closed
            await closing
            with pytest.raises(Refused, match="the producer is closed"):
                await beginning

    with pytest.raises(AbortableError, match="aborted before its block ended"):
        asyncio.run(run())
    assert values(shared, topic) == []


def test_the_older_of_two_producers_is_fenced(shared: Broker) -> None:
    topic = shared.topic()

    async def run() -> None:
        old = Producer(shared.bootstrap, transactional_id="aio-same")
        await send_all(old, topic, "old")
        async with Producer(shared.bootstrap, transactional_id="aio-same") as new:
            await new.init_transactions()
            for _ in range(2):
                with pytest.raises(ProducerFencedError):
                    await send_all(old, topic, "zombie")
            await send_all(new, topic, "new")
        await old.close()

    asyncio.run(run())
    assert values(shared, topic) == [b"old", b"new"]


def test_transactions_are_used_as_kafka_says(shared: Broker) -> None:
    topic = shared.topic()

    async def run() -> None:
        async with Producer(shared.bootstrap) as plain:
            with pytest.raises(Refused, match="transactional_id"):
                plain.transaction()
        async with Producer(shared.bootstrap, transactional_id="aio-rules") as producer:
            with pytest.raises(Refused, match="within"):
                await producer.send(topic, "outside")
            async with producer.transaction():
                with pytest.raises(Refused, match="one at a time"):
                    await send_all(producer, topic, "nested")

    asyncio.run(run())
    assert values(shared, topic) == []


def test_without_a_broker_a_start_ends_at_its_limit(broker: Broker) -> None:
    bootstrap = broker.bootstrap
    broker.kill()

    async def run() -> None:
        async with Producer(bootstrap, transactional_id="aio-none", max_block_ms=0) as producer:
            with pytest.raises(RetriableError, match="start"):
                await producer.init_transactions()

    asyncio.run(run())
