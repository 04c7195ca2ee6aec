"""The command `tidelog`."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line; never returns."""
    from tidelog.broker.process_memory import share_heap
    from tidelog.cli.root import run

    share_heap()
    run()
