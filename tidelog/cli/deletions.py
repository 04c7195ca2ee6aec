"""The answers of commands that delete several things by their names."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tidelog.client.errors import RequestRefused


def show_deleted(kind: str, names: Sequence[str], as_json: bool) -> None:
    """Print the names of what was deleted, also beside refusals of the others."""
    if as_json:
        print(json.dumps({"deleted": names}))
        return
    for name in names:
        print(f"deleted {kind} {name}")


def raise_together(refusals: Sequence[RequestRefused]) -> None:
    """Raise the first refusal, with the others as notes."""
    if not refusals:
        return
    first, *others = refusals
    for other in others:
        first.add_note(str(other))
    raise first
