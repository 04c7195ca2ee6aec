"""When to look at which partition for producers that have not appended for long.

Only partitions that know a producer are here, each with the time of the one that appended longest
ago when it was last looked at. So a round looks at those where one may have expired, and at those
that have got their first producer since the last round; not at the others, however many there are.
"""

from __future__ import annotations

from heapq import heappop, heappush

from tidelog.wal.log.partition_log import PartitionLog

_NOT_LOOKED_AT = -1


class ProducerExpiry:
    """The partitions that know producers. Their logs tell of themselves (`PartitionLog.watch`)."""

    def __init__(self) -> None:
        self._due: list[tuple[int, int]] = []
        self._logs: dict[int, PartitionLog] = {}
        self._numbers: dict[PartitionLog, int] = {}
        self._next_number = 0
        self.known = 0
        """Producers that all these partitions remember; one counts in each."""
        self.visited = 0
        """Partitions that were looked at, in all rounds together."""

    def __len__(self) -> int:
        """Partitions that know producers, as far as is known here."""
        return len(self._logs)

    def changed(self, log: PartitionLog, more: int) -> None:
        """It knows so many more producers; fewer where negative."""
        self.known += more
        if log not in self._numbers:
            self._next_number += 1
            self._numbers[log] = self._next_number
            self._logs[self._next_number] = log
            heappush(self._due, (_NOT_LOOKED_AT, self._next_number))

    def discard(self, log: PartitionLog) -> None:
        """It is gone."""
        number = self._numbers.pop(log, None)
        if number is not None:
            del self._logs[number]
            self.known -= log.producer_count

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget the producers that have not appended for so long; how many those were."""
        expired = 0
        later: list[tuple[int, int]] = []
        while self._due and self._due[0][0] <= now_ms - expiration_ms:
            _, number = heappop(self._due)
            log = self._logs.get(number)
            if log is None:
                continue
            self.visited += 1
            expired += log.expire_producers(now_ms, expiration_ms)
            oldest_ms = log.oldest_producer_ms
            if oldest_ms is None:
                self.discard(log)
            else:
                later.append((oldest_ms, number))
        # Not in between: one with an open transaction never expires, and would come up for ever.
        for entry in later:
            heappush(self._due, entry)
        return expired
