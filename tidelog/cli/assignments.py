"""NAME=VALUE on the command line."""

from __future__ import annotations

from collections.abc import Iterable

import click


def assignments_of(given: Iterable[str], where: str) -> dict[str, str]:
    """The values by name. Raises BadParameter, which names `where` they were given."""
    pairs = {}
    for assignment in given:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{assignment!r} is not NAME=VALUE", param_hint=where)
        pairs[name] = value
    return pairs
