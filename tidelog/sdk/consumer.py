"""A consumer: in a group, or of all partitions by itself.

Offsets: a message counts as consumed when the next one is asked for. With `enable.auto.commit` the
consumer commits, from time to time and at its end, the messages that count as consumed. A process
that dies reads the others again: at least once, as with the Java client.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, OFFSET_INVALID, KafkaError, TopicPartition
from confluent_kafka.serialization import MessageField, SerializationContext

from tidelog.errors import InvalidConfiguration, Refused
from tidelog.sdk.connecting import (
    CLOCK,
    FORKED,
    STEP_SECONDS,
    ends_at_fork,
    logger,
    made,
    never_freed,
    pause,
    repeated,
)
from tidelog.sdk.errors import KafkaRequestError, RetriableError, translated
from tidelog.sdk.fetched import FetchedMessages, Place, Position, is_faultless, place_of
from tidelog.sdk.messages import Message
from tidelog.sdk.partition_offsets import EARLIEST, LATEST, offsets_at, partitions_of
from tidelog.sdk.serializers import Deserializer, NotDeserializable, deserializer_of
from tidelog.sdk.settings import boolean_of, consumer_configuration

_STARTS = {"earliest": EARLIEST, "smallest": EARLIEST, "latest": LATEST, "largest": LATEST}


class Consumer:
    """Reads topics: `for message in Consumer("127.0.0.1:9092", "flights", group="planes")`.

    With a group, its members share the partitions. Without one, the consumer reads the partitions
    that the topics have now, from `auto.offset.reset` on, and commits nothing.
    """

    def __init__(
        self,
        bootstrap: str,
        topics: str | Sequence[str],
        group: str | None = None,
        *,
        key_deserializer: Deserializer | str | None = None,
        value_deserializer: Deserializer | str | None = None,
        **settings: Any,
    ) -> None:
        """Raises InvalidConfiguration; without a group KafkaRequestError for an unknown topic."""
        configuration = consumer_configuration(bootstrap, group, settings)
        self._topics = [topics] if isinstance(topics, str) else list(topics)
        if not self._topics or not all(self._topics):
            raise InvalidConfiguration("topics: name at least one topic")
        self._key = deserializer_of("key_deserializer", key_deserializer)
        self._value = deserializer_of("value_deserializer", value_deserializer)
        self.group = group
        self.commits_by_itself = boolean_of(configuration.passed, "enable.auto.commit")
        """`enable.auto.commit`."""
        self.reads_committed = configuration.passed["isolation.level"] == "read_committed"
        self._block_ms_max = configuration.block_ms_max
        self._records_max = configuration.poll_records_max
        self._start = str(configuration.passed["auto.offset.reset"])
        self._client = made(confluent_kafka.Consumer, configuration.passed)
        decodes = self._key is not None or self._value is not None
        self._fetched = FetchedMessages(self._decoded if decodes else None)
        self._revoked_places: set[Place] = set()
        """Of the messages that are being fetched."""
        self._first: dict[Place, int] = {}
        """The partition and offset of the first of them."""
        self._consumed: dict[Place, Position] = {}
        """Positions behind the messages of earlier batches."""
        self._ends: dict[Place, int] = {}
        """Up to where `to_end` reads, of the partitions that have not come there."""
        self._is_closed = self._is_forked = False
        ends_at_fork(self)
        if group is None:
            try:
                self._assign_all()
            except BaseException:
                # An open client goes on connecting, and logs each failure.
                self._client.close()
                raise
        else:
            self._client.subscribe(self._topics, on_revoke=self._revoked, on_lost=self._revoked)

    def __iter__(self) -> Iterator[Message]:
        """The messages as they arrive, without end."""
        while True:
            yield from self._fetched.messages
            if self._fetched.is_empty:
                self.fetch(STEP_SECONDS)

    def poll(self, timeout: float) -> Message | None:
        """The next message, or None after `timeout` seconds or when another thread closes.

        Raises NotDeserializable, KafkaRequestError.
        """
        if self._fetched.is_empty:
            self.fetch(timeout)
        return self.take_one()

    def batch(self, records_max: int | None = None, timeout: float = 1.0) -> list[Message]:
        """Up to `records_max` messages that are there; waits up to `timeout` seconds for the first.

        All of them count as consumed when the next ones are asked for.
        """
        if self._fetched.is_empty:
            self.fetch(timeout)
        return self.take(records_max)

    @property
    def has_fetched(self) -> bool:
        """Whether messages, or ends for `to_end`, are there that were not given out."""
        return not self._fetched.is_empty or self._fetched.has_ends

    def take_one(self) -> Message | None:
        """The next message of those that are there, or None. Does not wait."""
        message = next(self._fetched.messages, None)
        if message is None:
            self._fetched.begin_call()
            self._reach_ends()
        return message

    def take(self, records_max: int | None = None) -> list[Message]:
        """Up to `records_max` messages of those that are there. Does not wait."""
        found = self._fetched.take(records_max or self._records_max)
        self._reach_ends()
        return found

    def to_end(self) -> Iterator[Message]:
        """The messages up to the present end of each partition; for a consumer without a group.

        The end is the last stable offset, or the high watermark with `read_uncommitted`. While
        other partitions are read, a partition also gives out messages that arrive behind its end.
        """
        self.find_ends()
        while self.is_before_ends:
            message = self.poll(STEP_SECONDS)
            if message is not None:
                self.note_given(message)
                yield message

    def find_ends(self) -> None:
        """Ask for the present ends of the partitions, for `to_end`. Raises Refused."""
        if self.group is not None:
            raise Refused(
                "to_end: the partitions of a group's member change; leave the group out to read to"
                " the end"
            )
        self._refuse_closed()
        places = [(each.topic, each.partition) for each in self._client.assignment()]
        ends = offsets_at(self._client, places, LATEST, self._block_ms_max)
        starts = {
            (each.topic, each.partition): each.offset
            for each in self._client.position([TopicPartition(*place) for place in places])
        }
        self._ends = {
            place: end for place, end in ends.items() if self._first_of(place, starts) < end
        }

    @property
    def is_before_ends(self) -> bool:
        """Whether a partition has not come to the end that `find_ends` found."""
        self._reach_ends()
        return bool(self._ends)

    def note_given(self, message: Message) -> None:
        """Note that `to_end` gives a message out."""
        self._note_end((message.topic, message.partition), message.offset + 1)

    def commit(self, *, wait: bool = True) -> None:
        """Commit the position behind the last message that was given out.

        Without `wait` it returns at once, and the log tells of a failure. Raises KafkaRequestError
        if the partitions belong to another member by now: it reads these messages again.
        """
        if self.group is None:
            raise Refused('commit: a consumer without a group has no offsets; give group="..."')
        self._refuse_closed()
        offsets = self._positions()
        if not offsets:
            return
        if not wait:
            self._client.commit(offsets=offsets, asynchronous=True)
            return
        answered = repeated(
            lambda _: self._client.commit(offsets=offsets, asynchronous=False),
            f"commit of group {self.group}",
            self._block_ms_max,
            pause,
        )
        for each in answered or []:
            if each.error is not None:
                raise translated(each.error, f"commit of {each.topic}-{each.partition}")

    def transaction_offsets(self) -> tuple[list[TopicPartition], object]:
        """The position and the group's metadata, for a transaction. Raises Refused."""
        if self.group is None:
            raise Refused('send_offsets: the consumer has no group; give group="..."')
        if self.commits_by_itself:
            raise Refused(
                "send_offsets: the consumer commits by itself, also what a transaction aborts; make"
                " it with enable_auto_commit=False"
            )
        self._refuse_closed()
        return self._positions(), self._client.consumer_group_metadata()

    def rewind(self) -> None:
        """Give the messages of the last call out again; and then all behind them.

        Messages of partitions that another member has by now are left to it.
        """
        self._refuse_closed()
        self._seek(self._fetched.given_last())

    def seek_to_committed(self) -> None:
        """Go on at the group's committed offsets.

        In partitions without one the messages of the last call are given out again. An open
        transaction's offsets are waited for. Raises RetriableError after `max.block.ms`.
        """
        if self.group is None:
            raise Refused("seek_to_committed: a consumer without a group has no offsets")
        self._refuse_closed()
        self._note()
        # If a `rewind` has failed or did not run, librdkafka's position is behind these messages.
        given = self._fetched.given_last()
        # A partition that has given out nothing begins at its committed offset anyway.
        wanted = [TopicPartition(*place) for place in self._consumed | given]
        if not wanted:
            return
        found = repeated(
            lambda seconds: self._client.committed(wanted, seconds),
            f"offsets of group {self.group}",
            self._block_ms_max,
            pause,
        )
        starts = dict(given)
        for each in found:
            if each.error is not None:
                raise translated(each.error, f"offset of {each.topic}-{each.partition}")
            if each.offset >= 0:
                starts[each.topic, each.partition] = (each.offset, each.leader_epoch)
        elsewhere = {
            place: at
            for place, at in starts.items()
            if place not in self._consumed or self._consumed[place][0] != at[0]
        }
        self._seek(elsewhere)

    def take_back(self) -> None:
        """The messages of the last call do not count as consumed: they were not processed."""
        self._note()
        self._consumed |= self._fetched.given_last()

    def close(self) -> None:
        """Leave the group. With `enable.auto.commit` commit what was given out."""
        if self._is_closed:
            return
        self._is_closed = True
        self._store()
        # Nothing that is given out from now on could be committed.
        self._fetched.replace([])
        self._client.close()

    def forked(self) -> None:
        """This process is a child of the consumer's: the fetched messages are the parent's."""
        self._is_closed = self._is_forked = True
        never_freed(self._client)
        self._fetched.replace([])

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.take_back()
        self.close()

    def fetch(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for messages, and keep those that are there.

        The messages of the last call count as consumed.
        """
        self._refuse_closed()
        self._store()
        self._fetched.begin_call()
        self._reach_ends()
        deadline = CLOCK.monotonic() + timeout
        left = timeout
        # Another thread's close waits for this call.
        while not self.has_fetched and not self._is_closed:
            try:
                self._fetch_once(max(0.0, min(left, STEP_SECONDS)))
            except KafkaRequestError:
                raise
            except BaseException as error:
                if self._is_closed and isinstance(error, RuntimeError):
                    # confluent-kafka refuses calls of a client that was closed between two of them.
                    return
                self._go_back()
                raise
            left = deadline - CLOCK.monotonic()
            if left <= 0:
                return

    def _fetch_once(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for messages, and hold those that are there."""
        self._first = {}
        first = self._client.poll(0)
        if first is None:
            first = self._client.poll(timeout)
        if first is None:
            return
        self._revoked_places.clear()
        if first.error() is None:
            self._first = {place_of(first): first.offset() or 0}
        # Waiting for a full batch would delay the messages that are there.
        fetched = [first, *self._client.consume(self._records_max - 1, 0)]
        self._hold(self._owned(fetched) if self._revoked_places else fetched)

    def _refuse_closed(self) -> None:
        if self._is_closed:
            why = FORKED if self._is_forked else "is closed; make a new one"
            raise Refused(f"the consumer {why}")

    def _go_back(self) -> None:
        """Seek back to the messages that librdkafka has given out and that are not held.

        If a signal's handler or a callback of the settings raises in `poll` or `consume`,
        confluent-kafka drops the messages of this call. librdkafka's position is behind them.
        """
        if self._is_closed or not self._fetched.is_empty:
            return
        given = {
            (each.topic, each.partition): each.offset
            for each in self._client.position(self._client.assignment())
            if each.offset != OFFSET_INVALID
        }
        begun = self._first | {place: at[0] for place, at in self._consumed.items()}
        known = {place: offset for place, offset in begun.items() if place in given}
        starts = known | self._starts([place for place in given if place not in known], given)
        for place, start in starts.items():
            if start != given[place]:
                self._client.seek(TopicPartition(*place, start))

    def _starts(self, places: list[Place], given: dict[Place, int]) -> dict[Place, int]:
        """Where partitions begin that have given out nothing."""
        if self.group is None or not places:
            return {place: self._assigned[place] for place in places}
        try:
            committed = self._client.committed([TopicPartition(*at) for at in places], STEP_SECONDS)
        except confluent_kafka.KafkaException:
            committed = []
        offsets = {(each.topic, each.partition): each.offset for each in committed}
        is_from_start = _STARTS.get(self._start) == EARLIEST
        return {
            place: offset
            if (offset := offsets.get(place, OFFSET_INVALID)) >= 0
            # A new group at the end of a partition has got this one message, as a rule.
            else (OFFSET_BEGINNING if is_from_start else given[place] - 1)
            for place in places
        }

    def _owned(self, fetched: list[confluent_kafka.Message]) -> list[confluent_kafka.Message]:
        """The messages without those of partitions that were revoked while they were fetched."""
        owned = {(each.topic, each.partition) for each in self._client.assignment()}
        gone = self._revoked_places - owned
        return [each for each in fetched if place_of(each) not in gone]

    def _hold(self, fetched: list[confluent_kafka.Message]) -> None:
        """Keep messages, and the ends of partitions for `to_end`. Raises KafkaRequestError."""
        if is_faultless(fetched):
            self._fetched.replace(fetched)
            return
        messages: list[confluent_kafka.Message] = []
        ends: list[tuple[int, Place, int]] = []
        failures: list[KafkaRequestError] = []
        for each in fetched:
            error = each.error()
            if error is None:
                messages.append(each)
            elif error.code() == KafkaError._PARTITION_EOF:
                if self._ends:
                    ends.append((len(messages), place_of(each), each.offset() or 0))
            elif (failure := self._failure_of(each, error)) is not None:
                failures.append(failure)
        # The messages beside a failure are held: librdkafka gives them out once.
        self._fetched.replace(messages, ends)
        if failures:
            raise failures[0]

    def _failure_of(
        self, event: confluent_kafka.Message, error: KafkaError
    ) -> KafkaRequestError | None:
        """The error for the application, or None if the consumer waits for a remedy."""
        if self.group is None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            # librdkafka looks for the coordinator of NO_GROUP. Nothing here needs it.
            return None
        topic = event.topic()
        what = f"topic {topic}" if topic else f"group {self.group}" if self.group else "consumer"
        if error.code() == KafkaError._FATAL:
            return KafkaRequestError(
                f"{what}: {error.str()}; close this consumer and make a new one", error.name()
            )
        failure = translated(error, what)
        waits = error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._MAX_POLL_EXCEEDED)
        if not waits and not isinstance(failure, RetriableError):
            return failure
        # As the Java client, which waits for a topic and joins its group again.
        # Python's default handler shows the message alone, so the reason is part of it.
        logger.warning("consumer waits: %s", failure, extra={"topic": topic})
        return None

    def _reach_ends(self) -> None:
        """Note the ends of partitions behind the messages that were given out."""
        if self._fetched.has_ends:
            for place, offset in self._fetched.take_ends():
                self._note_end(place, offset)

    def _decoded(self, fetched: confluent_kafka.Message) -> Message:
        key, value = fetched.key(), fetched.value()
        if self._key is not None:
            key = self._field(self._key, key, fetched, MessageField.KEY)
        if self._value is not None:
            value = self._field(self._value, value, fetched, MessageField.VALUE)
        return Message(fetched, fetched.offset() or 0, key, value)

    def _field(
        self,
        deserializer: Deserializer,
        data: bytes | None,
        fetched: confluent_kafka.Message,
        field: MessageField,
    ) -> Any:
        if data is None:
            return None
        try:
            return deserializer(
                data, SerializationContext(fetched.topic() or "", field, fetched.headers())
            )
        # A deserializer is the user's: whatever it raises means that these bytes are not its own.
        except Exception as error:
            place = place_of(fetched)
            raise NotDeserializable(
                f"{field.value} of {place[0]}-{place[1]} at offset {fetched.offset()}: {error}"
            ) from error

    def _note(self) -> None:
        """Remember the positions of this batch."""
        self._consumed |= self._fetched.given_since()

    def _positions(self) -> list[TopicPartition]:
        self._note()
        return [_topic_partition(place, at) for place, at in self._consumed.items()]

    def _store(self) -> None:
        """Store the offsets of messages given out, which librdkafka commits in its time."""
        self._note()
        if not self.commits_by_itself:
            return
        for offset in self._positions():
            try:
                self._client.store_offsets(offsets=[offset])
            except confluent_kafka.KafkaException as error:
                # Another member has the partition: it reads from the committed offset on.
                logger.warning(
                    "offset not stored", extra={"topic": offset.topic, "reason": str(error)}
                )

    def _revoked(self, _: confluent_kafka.Consumer, gone: list[TopicPartition]) -> None:
        places = {(each.topic, each.partition) for each in gone}
        self._note()
        for place in places:
            self._consumed.pop(place, None)
        self._revoked_places |= places
        self._fetched.drop(places)

    def _note_end(self, place: Place, offset: int) -> None:
        if offset >= self._ends.get(place, offset + 1):
            del self._ends[place]

    def _first_of(self, place: Place, positions: dict[Place, int]) -> int:
        """The offset that is given out next, as far as it is known."""
        buffered = self._fetched.first_offset(place)
        if buffered is not None:
            return buffered
        consumed = positions[place]
        return consumed if consumed >= 0 else self._assigned[place]

    def _assign_all(self) -> None:
        if self._start not in _STARTS:
            raise InvalidConfiguration(
                "auto.offset.reset=none without a group: there are no committed offsets; take"
                " earliest or latest"
            )
        client, block_ms = self._client, self._block_ms_max
        places = [
            (topic, number)
            for topic in self._topics
            for number in partitions_of(client, topic, block_ms)
        ]
        self._assigned = offsets_at(client, places, _STARTS[self._start], block_ms)
        self._client.assign(
            [TopicPartition(*place, offset) for place, offset in self._assigned.items()]
        )

    def _seek(self, positions: dict[Place, Position]) -> None:
        """Give out the partitions' messages from these positions on next."""
        self._note()
        owned = {(each.topic, each.partition) for each in self._client.assignment()}
        for place, at in positions.items():
            self._consumed.pop(place, None)
            if place in owned:
                self._seek_one(_topic_partition(place, at))
                self._consumed[place] = at
            # Only now: if the seek fails, a further `rewind` begins at the same message.
            self._fetched.drop([place])

    def _seek_one(self, wanted: TopicPartition) -> None:
        repeated(
            lambda _: self._client.seek(wanted),
            f"seek in {wanted.topic}-{wanted.partition}",
            self._block_ms_max,
        )


def _topic_partition(place: Place, at: Position) -> TopicPartition:
    offset, leader_epoch = at
    if leader_epoch is None:
        return TopicPartition(*place, offset)
    return TopicPartition(*place, offset, leader_epoch=leader_epoch)
