"""A partition as a plain list of the appended batches. A search of the list gives every answer."""

from __future__ import annotations

from dataclasses import dataclass, field

NOTHING = -1


@dataclass
class Written:
    """A batch or marker in the list."""

    base: int
    last: int
    producer: int = NOTHING
    epoch: int = NOTHING
    first_sequence: int = NOTHING
    last_sequence: int = NOTHING
    ordinal: int = NOTHING
    transactional: bool = False
    marker: str = ""
    coordinator_epoch: int = NOTHING


@dataclass
class NaiveLog:
    """Kafka's rules, written once more as simply as possible."""

    written: list[Written] = field(default_factory=list)
    forgotten: dict[int, int] = field(default_factory=dict)
    """By expired producer, the length of the list at its expiry."""

    @property
    def next_offset(self) -> int:
        return self.written[-1].last + 1 if self.written else 0

    def known(self, producer: int) -> list[Written]:
        since = self.forgotten.get(producer, 0)
        return [w for w in self.written[since:] if w.producer == producer]

    def epoch_of(self, producer: int) -> int:
        return max((w.epoch for w in self.known(producer)), default=NOTHING)

    def open_transaction(self, producer: int, upto: int | None = None) -> Written | None:
        """The first batch of the open transaction, looking at the list's first `upto` items."""
        first = None
        for written in self.written[:upto]:
            if written.producer != producer:
                continue
            if written.marker:
                first = None
            elif written.transactional and first is None:
                first = written
        return first

    def decided_ordinal(self, producer: int) -> int:
        """The highest ordinal in the list."""
        return max((w.ordinal for w in self.known(producer)), default=NOTHING)

    def judge_batch(
        self,
        producer: int,
        epoch: int,
        first: int,
        last: int,
        transactional: bool,
        ordinal: int,
        version: int,
    ) -> int | Written:
        """0: to be appended; the original of a duplicate; or Kafka's error code."""
        history = [w for w in self.known(producer) if not w.marker]
        current = self.epoch_of(producer)
        of_epoch = [w for w in history if w.epoch == current]
        if epoch == current:
            for written in of_epoch[-5:]:
                if (written.first_sequence, written.last_sequence) == (first, last):
                    return written
        opened = self.open_transaction(producer)
        if transactional:
            if opened is None and (ordinal == NOTHING or ordinal <= self.decided_ordinal(producer)):
                return 48
            if opened is not None and ordinal not in (NOTHING, opened.ordinal):
                return 48
        if epoch < current:
            return 47
        if current == NOTHING:
            if first != 0 and (not self.forgotten or version >= 2):
                return 45
        elif epoch > current:
            if first != 0:
                return 45
        else:
            expected = (of_epoch[-1].last_sequence + 1) % 2**31 if of_epoch else 0
            if first != expected:
                return 45
        if not transactional and opened is not None:
            return 48
        return 0

    def judge_marker(
        self, producer: int, epoch: int, coordinator_epoch: int, ordinal: int, version: int
    ) -> int | None:
        """0 to append the batch, None for a late duplicate, or Kafka's error code."""
        coordinator = max((w.coordinator_epoch for w in self.known(producer)), default=NOTHING)
        if coordinator_epoch < coordinator:
            return 52
        opened = self.open_transaction(producer)
        newest = self.decided_ordinal(producer)
        if ordinal != NOTHING:
            if opened is not None and ordinal < opened.ordinal:
                return None
            if opened is None and ordinal <= newest:
                return None
        current = self.epoch_of(producer)
        if epoch < current or (version >= 2 and opened is not None and epoch == current):
            return 47
        if opened is not None and ordinal not in (NOTHING, opened.ordinal):
            return 48
        return 0

    def last_stable_offset(self, high_watermark: int, first_offset: int) -> int:
        """By definition, it covers no record of a transaction without a durable marker. Records
        below the first readable offset hold up nothing."""
        durable = [w for w in self.written if w.last < high_watermark]
        producers = {w.producer for w in self.written if w.transactional}
        stable = high_watermark
        for producer in producers:
            for number, written in enumerate(self.written):
                if written.producer != producer or not written.transactional or written.marker:
                    continue
                ended = any(
                    w.marker and w.producer == producer and w.base > written.base for w in durable
                )
                if not ended:
                    stable = min(stable, self.written[number].base)
        return max(stable, first_offset)

    def aborted(self) -> list[tuple[int, int, int]]:
        """(producer, first offset, marker's offset) of all aborted transactions."""
        found = []
        for number, written in enumerate(self.written):
            if written.marker == "abort":
                first = self.open_transaction(written.producer, number)
                if first is not None:
                    found.append((written.producer, first.base, written.base))
        return found
