"""`tidelog consume`: print a topic's records."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import click

from tidelog.cli.address import Bootstrap
from tidelog.cli.broker_client import (
    bootstrap_option,
    json_option,
    new_client,
    offset_at,
    with_client,
)
from tidelog.cli.group_reader import GroupReader
from tidelog.cli.record_text import INT64_MAX, JSON, LINES, text
from tidelog.client.committed import visible_batches
from tidelog.client.errors import RequestFailed, RequestRefused
from tidelog.client.groups.membership import GroupMember
from tidelog.client.operations import EARLIEST, LATEST, Fetched, IsolationLevel, fetch
from tidelog.client.pool import Client
from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.errors import Refused
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.batch import iterate_batches
from tidelog.records.records import decode_records

RETRY_SECONDS = 0.5
ATTEMPTS_MAX = 20
FETCH_BYTES_MAX = 4 * 1024 * 1024
WAIT_MS = 500
"""The wait for new records, over all partitions together."""


@dataclass(frozen=True, slots=True)
class Start:
    """The start position: an offset, or the ListOffsets answer for a timestamp."""

    offset: int | None = None
    timestamp_ms: int = EARLIEST


class StartType(click.ParamType[Start]):
    """`beginning`, `end`, an offset, or `@` and milliseconds since 1970."""

    name = "START"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Start:
        word = str(value)
        if isinstance(value, Start):
            return value
        if word in ("beginning", "end"):
            return Start(timestamp_ms=EARLIEST if word == "beginning" else LATEST)
        number = word.removeprefix("@")
        if number.isdecimal() and int(number) <= INT64_MAX:
            return Start(offset=int(number)) if number == word else Start(timestamp_ms=int(number))
        self.fail(f"{word!r} is not beginning, end, an offset or @MILLISECONDS", param, ctx)


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    type=StartType(),
    default="beginning",
    show_default=True,
    metavar="beginning|end|OFFSET|@MS",
    help="The start: an end, an offset, or the first record at a time in ms since 1970.",
)
@click.option(
    "--max", "records_max", type=click.IntRange(1), default=None, help="Stop after so many records."
)
@click.option("--until-end", is_flag=True, help="Stop at the present end.")
@click.option("--partition", "partitions", type=click.IntRange(0), multiple=True)
@click.option(
    "--group",
    "group_id",
    default=None,
    help="Share the topic with the other members of this consumer group, start at its committed"
    " offsets (else at --from), and commit printed records: each is printed at least once.",
)
@click.option(
    "--isolation",
    type=click.Choice([level.name.lower() for level in IsolationLevel]),
    default="read_committed",
    show_default=True,
)
@click.option(
    "--format", "form", type=click.Choice([LINES, JSON]), default=LINES, show_default=True
)
@bootstrap_option
@json_option
def consume(
    topic: str,
    start: Start,
    records_max: int | None,
    until_end: bool,
    partitions: tuple[int, ...],
    group_id: str | None,
    isolation: str,
    form: str,
    bootstrap: Bootstrap,
    as_json: bool,
) -> None:
    """Print the records of TOPIC as they arrive: partitions in turn, each in order."""
    level = IsolationLevel[isolation.upper()]
    printer = Printer(JSON if as_json else form, records_max)

    if partitions and group_id is not None:
        raise click.UsageError("--partition and --group exclude each other: the group assigns")

    async def run(client: Client) -> None:
        known = sorted((await client.topic(topic)).partitions)
        reader = Reader(client, topic, level, printer)
        if group_id is None:
            await reader.read(list(partitions) or known, start, until_end)
        else:
            async with new_client(bootstrap) as of_member:
                member = GroupMember(of_member, SystemClock(), SystemEntropy(), group_id, [topic])
                await GroupReader(reader, member, start).read(until_end)

    with_client(bootstrap, run)


class Printer:
    """Prints records up to a maximum."""

    def __init__(self, form: str, records_max: int | None) -> None:
        self._form = form
        self._left = records_max

    @property
    def done(self) -> bool:
        """Whether the maximum is reached."""
        return self._left == 0

    def show(self, fetched: Fetched, partition: int, offset: int, isolation: IsolationLevel) -> int:
        """Print the visible records from `offset` on; return the first unprinted offset."""
        aborted = fetched.aborted if isolation is IsolationLevel.READ_COMMITTED else []
        following = offset
        for records in fetched.records:
            for _, header in iterate_batches(records):
                following = header.last_offset + 1
            for _, batch in visible_batches(records, aborted):
                for record in decode_records(batch):
                    if record.offset < offset:
                        continue
                    if self.done:
                        sys.stdout.buffer.flush()
                        return record.offset
                    sys.stdout.buffer.write(text(record, partition, self._form) + b"\n")
                    if self._left is not None:
                        self._left -= 1
        sys.stdout.buffer.flush()
        return following


class Reader:
    """Reads partitions in turn and survives a broker's restart."""

    def __init__(
        self, client: Client, topic: str, isolation: IsolationLevel, printer: Printer
    ) -> None:
        self._client = client
        self._topic = topic
        self._isolation = isolation
        self._printer = printer

    async def read(self, partitions: list[int], start: Start, until_end: bool) -> None:
        """Print from `start` on, for ever or up to the present ends."""
        offsets = {number: await self.begin(number, start) for number in partitions}
        ends = await self.ends(partitions) if until_end else {}
        while not self.done:
            left = [n for n in partitions if not until_end or offsets[n] < ends[n]]
            if not left:
                return
            for number in left:
                offsets[number] = await self.show(number, offsets[number], len(partitions))

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._topic

    @property
    def done(self) -> bool:
        """Whether the maximum is reached."""
        return self._printer.done

    async def ends(self, partitions: list[int]) -> dict[int, int]:
        """The present ends of partitions."""
        found = {}
        for number in partitions:
            found[number] = await offset_at(
                self._client, self._topic, number, LATEST, self._isolation
            )
        return found

    async def show(self, partition: int, offset: int, partitions: int) -> int:
        """Print a partition's next records, or wait a little; return the next offset.

        The wait is divided by `partitions`, which are read in turn.
        """
        fetched = await self._fetch(partition, offset, WAIT_MS // max(1, partitions))
        return self._printer.show(fetched, partition, offset, self._isolation)

    async def begin(self, partition: int, start: Start) -> int:
        """The start offset of a partition."""
        if start.offset is not None:
            # The loop of --until-end fetches nothing above the end, so no broker would refuse it.
            if start.offset > await offset_at(self._client, self._topic, partition, LATEST):
                raise await self._outside(partition, start.offset)
            return start.offset
        found = await offset_at(self._client, self._topic, partition, start.timestamp_ms)
        if found < 0:
            # No record is that recent: start with the next one.
            found = await offset_at(self._client, self._topic, partition, LATEST)
        return found

    async def _fetch(self, partition: int, offset: int, wait_ms: int) -> Fetched:
        attempt = 0
        while True:
            attempt += 1
            try:
                return await fetch(
                    self._client,
                    self._topic,
                    partition,
                    offset,
                    max_bytes=FETCH_BYTES_MAX,
                    max_wait_ms=wait_ms,
                    isolation=self._isolation,
                )
            except (RequestRefused, RequestFailed) as error:
                if (
                    isinstance(error, RequestRefused)
                    and error.code == ErrorCode.OFFSET_OUT_OF_RANGE
                ):
                    raise await self._outside(partition, offset) from error
                final = isinstance(error, RequestRefused) and not error.retriable
                if final or attempt == ATTEMPTS_MAX:
                    raise
                await SystemClock().sleep(RETRY_SECONDS)

    async def _outside(self, partition: int, offset: int) -> Refused:
        first, end = [
            await offset_at(self._client, self._topic, partition, which)
            for which in (EARLIEST, LATEST)
        ]
        return Refused(
            f"{self._topic}-{partition} has no record at offset {offset}: it holds {first} to"
            f" {end}, exclusive. Name one of these with --from. Move a group's offsets with"
            " `tidelog groups reset-offsets`"
        )
