"""docs/COMMANDS.md and docs/PROTOCOL.md, made from the code: `python -m scripts.reference`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from tidelog.cli.root import CONTEXT, cli
from tidelog.protocol.api import ADVERTISED, ApiKey, request_type

DOCUMENTS: Final = Path(__file__).resolve().parents[1] / "docs"
COLUMNS: Final = 96

_COMMANDS: Final = """\
# Commands

This page has the `--help` of every command. It is generated: `python -m scripts.reference`; a test
compares the two. [OPERATIONS.md](OPERATIONS.md#commands) says what the commands are for.
"""
_PROTOCOL: Final = """\
# Protocol

The requests of Kafka's protocol that a broker serves. This page is generated from
`tidelog/protocol/api.py`: `python -m scripts.reference`; a test compares the two.
[STATUS.md](STATUS.md) has the tests. Kafka's versions are those of the schemas in the Python
package kio, which the tests use. [formats/requests.md](formats/requests.md) has Tidelog's own
requests.

## Served

| API | Key | Versions | Kafka's |
|---|---|---|---|
"""
_NOT_SERVED: Final = """
## Not served

ApiVersions does not list these, so clients do not ask for them. A broker closes the connection of a
client that does, as Kafka does.

| What | APIs |
|---|---|
"""
REASONS: Final[dict[str, tuple[int, ...]]] = {
    "Delegation tokens": (38, 39, 40, 41),
    "Requests of Kafka's controllers and between its brokers; Tidelog's brokers keep the metadata"
    " in the bucket": (52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 80, 81, 82),
    "Levels of features; `tidelog cluster features` raises Tidelog's": (57,),
    "Metrics that clients send": (71, 72),
    "Share groups (KIP-932)": (76, 77, 78, 79, 83, 84, 85, 86, 87, 90, 91, 92),
    "The broker's part of Kafka Streams' new groups (KIP-1071); Streams runs with classic groups": (
        88,
        89,
    ),
}
"""The APIs that Tidelog does not have: a reason, and the keys."""


def commands_page() -> str:
    """The whole page of the commands."""
    return "\n".join([_COMMANDS, *_sections(cli, "tidelog", None)])


def protocol_page() -> str:
    """The whole page of the protocol."""
    served = [
        f"| {request_type(key).__name__.removesuffix('Request')} | {key.value}"
        f" | {_range(*versions)} | {_range(*_kafkas(key))} |"
        for key, versions in ADVERTISED.items()
    ]
    missing = [
        f"| {what} | {', '.join(map(_kafkas_name, keys))} |" for what, keys in REASONS.items()
    ]
    return _PROTOCOL + "\n".join(served) + "\n" + _NOT_SERVED + "\n".join(missing) + "\n"


def _sections(command: click.Command, path: str, parent: click.Context | None) -> Iterator[str]:
    context = click.Context(
        command,
        info_name=path.rpartition(" ")[2],
        parent=parent,
        terminal_width=COLUMNS,
        max_content_width=COLUMNS,
        help_option_names=CONTEXT["help_option_names"],
    )
    mark = "#" * min(4, 2 + path.count(" "))
    yield f"{mark} {path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            part = command.get_command(context, name)
            assert part is not None
            yield from _sections(part, f"{path} {name}", context)


def _kafkas(key: int) -> tuple[int, int]:
    """The versions of an API in Kafka's schemas."""
    versions = schema_name_map[api_key_map[key]]
    return min(versions), max(versions)


def _kafkas_name(key: int) -> str:
    versions = schema_name_map[api_key_map[key]]
    return versions[max(versions)][EntityType.request].rpartition(":")[2].removesuffix("Request")


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def unexplained() -> set[int]:
    """Keys of Kafka's that are neither served nor explained, or both."""
    explained = {key for keys in REASONS.values() for key in keys}
    return (set(api_key_map) - {*map(int, ApiKey)}) ^ explained


if __name__ == "__main__":
    (DOCUMENTS / "COMMANDS.md").write_text(commands_page(), encoding="utf-8")
    (DOCUMENTS / "PROTOCOL.md").write_text(protocol_page(), encoding="utf-8")
