"""The faults of a bucket, and the counts of checked objects. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import Enum

from tidelog.errors import CorruptObject, MissingObject, some_of


class FaultKind(Enum):
    """The meaning of a fault; `label` is its name in reports."""

    MISSING = "an object that others need is not there: all that depends on it is lost"
    DAMAGED = "it does not decode or a checksum is wrong: all that depends on it cannot be served"
    CONTRADICTION = "it disagrees with other objects: one of them is wrong"
    FOREIGN = "Tidelog does not write such an object: give the cluster a prefix of its own"
    ORPHAN = "it is superfluous, and the brokers have had time to delete it: it only costs space"

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; equal if the same object has the same fault."""

    kind: FaultKind
    key: str
    """The key of the object to blame."""
    why: str
    affected: tuple[str, ...] = field(default=(), compare=False)
    """The partitions that are known to be unreadable because of it."""

    @classmethod
    def of(cls, error: CorruptObject) -> Fault:
        """The fault that a reader's error reports."""
        kind = FaultKind.MISSING if isinstance(error, MissingObject) else FaultKind.DAMAGED
        return cls(kind, error.key, error.why)

    def __str__(self) -> str:
        text = f"{self.key}: {self.kind.label}: {self.why}"
        return f"{text}; unread for it: {some_of(self.affected)}" if self.affected else text


@dataclass(slots=True)
class Findings:
    """The counts and the faults of a check."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)

    def add(self, kind: FaultKind, key: str, why: str) -> None:
        self.faults.append(Fault(kind, key, why))

    def blame(self, error: CorruptObject) -> None:
        """Add the fault that a reader's error reports."""
        self.faults.append(Fault.of(error))

    def merge(self, other: Findings) -> None:
        """Add the findings of another check."""
        self.counts.update(other.counts)
        found = {fault: fault for fault in self.faults}
        for fault in other.faults:
            known = found.get(fault, fault).affected
            found[fault] = replace(fault, affected=tuple(dict.fromkeys(known + fault.affected)))
        self.faults = list(found.values())
