"""Tables on the terminal: a header, aligned columns, `none` for nothing. Lines of deleted names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence


def shown_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The lines of a table. Columns are two spaces apart."""
    cells = [[*map(str, row)] for row in rows]
    if not cells:
        return "none"
    lines = [[header.upper() for header in headers], *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def show_deleted(kind: str, names: Sequence[str], as_json: bool) -> None:
    """Print the names that the broker deleted, also beside refusals of the others."""
    if as_json:
        print(json.dumps({"deleted": names}))
        return
    for name in names:
        print(f"deleted {kind} {name}")
