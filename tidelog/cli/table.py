"""Tables on the terminal: a header, aligned columns, `none` where there is nothing."""

from __future__ import annotations

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
