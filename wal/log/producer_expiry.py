"""Schedules the expiration of idle producers, so that a round visits few partitions.

It knows only partitions with producers. For each it keeps the last append time of the least recent
producer, as of the last visit. A round visits partitions where a producer may have expired, and
partitions that got their first producer since the last round.
"""

from __future__ import annotations

from heapq import heappop, heappush

from tidelog.wal.log.partition_log import PartitionLog

_NOT_LOOKED_AT = -1


class ProducerExpiry:
    """The partitions with producers. Their logs report changes (`PartitionLog.watch`)."""

    def __init__(self) -> None:
        self._due: list[tuple[int, int]] = []
        self._logs: dict[int, PartitionLog] = {}
        self._numbers: dict[PartitionLog, int] = {}
        self._next_number = 0
        self.known = 0
        """Producers that these partitions remember; a producer counts in each of its partitions."""
        self.visited = 0
        """Visits to partitions, summed over all rounds."""

    def __len__(self) -> int:
        """The number of known partitions with producers."""
        return len(self._logs)

    def changed(self, log: PartitionLog, more: int) -> None:
        """Note that the log remembers `more` additional producers; fewer if negative."""
        self.known += more
        if log not in self._numbers:
            self._next_number += 1
            self._numbers[log] = self._next_number
            self._logs[self._next_number] = log
            heappush(self._due, (_NOT_LOOKED_AT, self._next_number))

    def discard(self, log: PartitionLog) -> None:
        """Forget a partition."""
        number = self._numbers.pop(log, None)
        if number is not None:
            del self._logs[number]
            self.known -= log.producer_count

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers whose last append is `expiration_ms` old; their number."""
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
        # After the loop: a producer with an open transaction never expires, so the loop would not
        # end.
        for entry in later:
            heappush(self._due, entry)
        return expired
