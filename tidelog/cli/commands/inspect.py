"""`tidelog inspect`: prints the content of an object of a bucket."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import click

from tidelog.bucket.fsck.segment_check import read_whole
from tidelog.bucket.inspection import (
    Facts,
    check_kind,
    checkpoint_facts,
    metadata_facts,
    staged_facts,
    state_facts,
    table_facts,
    wal_facts,
)
from tidelog.bucket.views.bucket import Bucket
from tidelog.cli.broker_client import json_option
from tidelog.cli.bucket_reader import store_option, with_bucket
from tidelog.errors import CorruptObject
from tidelog.storage.object_store import Buffer
from tidelog.storage.segment.segment_reader import SegmentReader

ROWS_SHOWN = 1000
SEGMENT = "segment"
_DECODERS: dict[str, Callable[[str, Buffer], Facts]] = {
    "wal": wal_facts,
    "checkpoint": checkpoint_facts,
    "table": table_facts,
    "state": state_facts,
    "metadata": metadata_facts,
    "staged": staged_facts,
}


@click.command()
@click.argument("kind", type=click.Choice([*_DECODERS, SEGMENT]))
@click.argument("key", metavar="KEY")
@store_option
@click.option(
    "--rows",
    type=click.IntRange(0),
    default=ROWS_SHOWN,
    show_default=True,
    help="Rows of each list.",
)
@json_option
def inspect(kind: str, key: str, store: str, rows: int, as_json: bool) -> None:
    """Print the content of the object at KEY, with every checksum verified.

    KEY is relative to the store's address. JSON has all rows.

    \b
    wal         a WAL object, a merged one or a seal: header, index, opening images
    checkpoint  a checkpoint or a hand-over object: the partitions' images
    segment     a segment: its footer, and statistics of its rows
    table       a commit of a topic's table, a checkpoint of it, or _last_checkpoint
    state       a snapshot of a coordinator's state
    metadata    an entry of the metadata log, a snapshot of it, or a lease
    staged      a staged object of an exactly-once sink: its purpose, its batches
    """

    check_kind(kind, key)

    async def run(bucket: Bucket) -> Facts:
        access = bucket.access
        if kind == SEGMENT:
            return await _segment_facts(bucket, key)
        data = (await access.store.get(key)).data
        return await access.offload.run(_DECODERS[kind], key, data)

    facts = with_bucket(store, run)
    if as_json:
        print(json.dumps(facts))
    else:
        for line in shown(facts, rows):
            print(line)


async def _segment_facts(bucket: Bucket, key: str) -> Facts:
    access = bucket.access
    index = (await SegmentReader.open_key(access.store, access.offload, key)).index
    statistics, crc = await read_whole(access.store, access.offload, index)
    if statistics.facts()["row_count"] != index.row_count:
        raise CorruptObject(key, f"it has other rows than its footer says ({index.row_count})")
    identity = index.identity
    facts: Facts = {
        "topic_id": str(identity.topic_partition.topic_id),
        "partition": identity.topic_partition.partition,
        "base_offset": identity.base_offset,
        "last_offset": identity.last_offset,
        "size_bytes": index.size_bytes,
        "crc32c": f"{crc:08x}",
    }
    for name, value in statistics.facts().items():
        facts[f"{name}_ms" if name.startswith("timestamp") else name] = value
    groups = []
    for group in range(index.groups):
        first, last = index.offsets_of(group)
        groups.append({"group": group, "first_offset": first, "last_offset": last})
    return facts | {"row_groups": groups}


def shown(facts: Mapping[str, Any], rows_max: int, indent: str = "") -> Iterable[str]:
    """Facts as lines of text: a line a value, a block a mapping or list.

    Lists of rows that hold only plain values become tables.
    """
    for name, value in facts.items():
        match value:
            case Mapping():
                yield f"{indent}{name}:"
                yield from shown(value, rows_max, f"{indent}  ")
            case list():
                yield f"{indent}{name}: {len(value)}"
                yield from _list(value[:rows_max], rows_max, f"{indent}  ")
                if len(value) > rows_max:
                    yield f"{indent}  ... {len(value) - rows_max} more (--rows, --json)"
            case _:
                yield f"{indent}{name}: {_text(name, value)}"


def _list(rows: list[Any], rows_max: int, indent: str) -> Iterable[str]:
    is_table = all(
        isinstance(row, Mapping)
        and not any(isinstance(value, Mapping | list) for value in row.values())
        for row in rows
    )
    if is_table and rows:
        yield from _table(rows, indent)
        return
    for number, row in enumerate(rows):
        if isinstance(row, Mapping):
            yield f"{indent}[{number}]"
            yield from shown(row, rows_max, f"{indent}  ")
        else:
            yield f"{indent}{row}"


def _table(rows: list[Mapping[str, Any]], indent: str) -> Iterable[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_text(name, row.get(name, "")) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"{indent}{'  '.join(padded)}".rstrip()


def _text(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.endswith("_ms") and isinstance(value, int) and value >= 0:
        try:
            when = datetime.fromtimestamp(value / 1000, UTC)
        except (OverflowError, ValueError):
            return str(value)
        return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return str(value)
