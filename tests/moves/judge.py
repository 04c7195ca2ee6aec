"""Whether the applications of one client saw every record once, in order, and no error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.simulation.rules.history import Key
from tests.simulation.rules.observed import Observations


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
        """Count the complete lines of one program."""
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
        """The faults at the end; each topic must hold all sent records, in order."""
        observed = Observations()
        for partition, numbers in sorted(self.sent.items()):
            for number in sorted(numbers):
                for topic in topics:
                    # A separate program writes each topic.
                    observed.wrote(
                        f"{topic}-{partition}", (topic, str(number)), partition=partition
                    )
        for (topic, partition), records in self.got.items():
            for offset, number in records:
                observed.read("consume", Key(topic, partition), offset, str(number))
        return [*self.errors, *map(str, observed.check().anomalies)]
