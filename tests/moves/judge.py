"""Whether the applications of one client saw every record once, in order, and no error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class Seen:
    """The lines of a client's programs, counted."""

    sent: dict[int, list[int]] = field(default_factory=dict)
    """The acknowledged numbers by partition."""
    got: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)
    """Offsets and numbers by topic and partition, as the consumer received them."""
    counts: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    def add(self, lines: Iterable[str]) -> None:
        """Take note of complete lines of one program."""
        for line in lines:
            word, *rest = line.split()
            self.counts[word] += 1
            match word:
                case "sent":
                    self.sent.setdefault(int(rest[0]), []).append(int(rest[1]))
                case "got":
                    place = rest[0], int(rest[1])
                    self.got.setdefault(place, []).append((int(rest[2]), int(rest[3])))
                case "committed" | "aborted":
                    self.counts[f"{word} records"] += int(rest[0])
                case "error":
                    self.errors.append(line)
                case "ready" | "note":
                    pass
                case _:
                    self.errors.append(f"error: not a line of the programs: {line}")

    @property
    def sent_count(self) -> int:
        """The acknowledged records."""
        return sum(map(len, self.sent.values()))

    def got_count(self, topic: str) -> int:
        """The received records of a topic, each counted once."""
        return sum(
            len({n for _, n in found}) for place, found in self.got.items() if place[0] == topic
        )

    def faults(self, topics: Sequence[str]) -> list[str]:
        """What is wrong at the end; each topic is to hold all that was sent."""
        found = list(self.errors)
        for partition, numbers in sorted(self.sent.items()):
            wanted = sorted(numbers)
            for topic in topics:
                records = self.got.get((topic, partition), [])
                found += _unordered(f"{topic}-{partition}", records, wanted)
        return found


def _unordered(place: str, records: list[tuple[int, int]], wanted: list[int]) -> list[str]:
    offsets, numbers = [offset for offset, _ in records], [number for _, number in records]
    if numbers == wanted and all(a < b for a, b in pairwise(offsets)):
        return []
    often = Counter(numbers)
    found = []
    if missing := sorted(set(wanted) - often.keys()):
        found.append(f"{place}: {len(missing)} records are missing, the first is {missing[0]}")
    if twice := sorted(number for number, count in often.items() if count > 1):
        found.append(f"{place}: {len(twice)} records came again, the first is {twice[0]}")
    if unsent := sorted(often.keys() - set(wanted)):
        found.append(f"{place}: {len(unsent)} records were not sent, the first is {unsent[0]}")
    return found or [f"{place}: the records are not in order"]
