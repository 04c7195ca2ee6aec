"""The records that every client must carry: nulls, empties, headers, one byte and a megabyte."""

from __future__ import annotations

from dataclasses import dataclass

PARTITIONS = 3
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
MEGABYTE = 1_000_000
PARTITIONERS = -1
"""The partition of a record that leaves it to the client's partitioner."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record as the application sees it. `offset` is None before it is produced."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset: int | None = None

    def line(self) -> str:
        """One line of the foreign programs' record format."""
        headers = ",".join(f"{name}={_hex(value)}" for name, value in self.headers)
        offset = "-" if self.offset is None else str(self.offset)
        return "\t".join((str(self.partition), offset, _hex(self.key), _hex(self.value), headers))

    @classmethod
    def parse(cls, line: str) -> Record:
        """The record of a line."""
        partition, offset, key, value, headers = line.split("\t")
        pairs = (pair.split("=") for pair in headers.split(",") if pair)
        return cls(
            int(partition),
            _bytes(key),
            _bytes(value),
            tuple((name, _bytes(content)) for name, content in pairs),
            None if offset == "-" else int(offset),
        )


def _hex(value: bytes | None) -> str:
    return "-" if value is None else value.hex()


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else bytes.fromhex(text)


def _text(size: int) -> bytes:
    line = b"the quick brown fox jumps over the lazy dog 0123456789 "
    return (line * (size // len(line) + 1))[:size]


def sample() -> list[Record]:
    """Every shape of record, spread over the partitions. All text, so that kcat can print it."""
    shapes = [
        (b"key", b"value", ()),
        (None, b"null key", ()),
        (b"null value", None, ()),
        (b"empty value", b"", ()),
        (b"", b"empty key", ()),
        (b"k", b"x", ()),
        (b"headers", b"v", (("a", b"1"), ("b", b""), ("c", b"3"))),
        (b"megabyte", _text(MEGABYTE), ()),
    ]
    records = [
        Record(partition, key, value, headers)
        for partition in range(PARTITIONS)
        for key, value, headers in shapes
    ]
    records += [Record(0, b"%d" % n, b"value %d" % n) for n in range(200)]
    return records


def by_partition(records: list[Record]) -> dict[int, list[Record]]:
    """The records of each partition, in their given order."""
    found: dict[int, list[Record]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(record)
    return found
