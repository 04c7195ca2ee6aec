"""docs/BENCHMARKS.md as sections: tables, each with the run that measured it, then prose.

A run replaces the tables that it has measured, after each of its parts, and keeps the others. So an
interrupted or partial run loses nothing. The prose after the tables is written by hand and kept.
"""

from __future__ import annotations

import re

NOTES = "## What the figures mean"
_HEAD = """\
# Benchmarks

Written by `make bench`. Below the heading of each table stands the run that measured it. The
machine is shared: trust the ratios within a run, not the absolute values.

"""
_SECTIONS = re.compile(r"^(?=## )", re.MULTILINE)


def with_tables(before: str, tables: str, run: str) -> str:
    """The page `before` with new tables, each below a heading `## ...`. `run`: its description.

    A new table replaces the one with its heading; else it follows the new table before it, and the
    first one all others.
    """
    sections = _sections(before)
    notes = sections.pop(NOTES, f"{NOTES}\n")
    order = list(sections)
    place = len(order)
    for heading, section in _sections(tables).items():
        if heading in sections:
            place = order.index(heading)
        else:
            order.insert(place, heading)
        place += 1
        sections[heading] = section.replace(heading, f"{heading}\n\n{run}", 1)
    return _HEAD + "".join(f"{sections[each].strip()}\n\n" for each in order) + notes.strip() + "\n"


def _sections(text: str) -> dict[str, str]:
    """The sections by heading, each with its heading; text before the first one is left out."""
    found = [each for each in _SECTIONS.split(text) if each.startswith("## ")]
    return {each.partition("\n")[0].strip(): each for each in found}
