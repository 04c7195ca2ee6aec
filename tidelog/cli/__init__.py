"""The command `tidelog`."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line; never returns."""
    from tidelog.cli.root import run

    run()
