"""The versions of programs on this machine."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

VERSION_SECONDS_MAX = 30


def program_version(command: Sequence[str], after: str) -> tuple[int, ...] | None:
    """The number that follows the words `after` in a command's output.

    None if the command does not run, fails, or does not end.
    """
    try:
        answer = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=VERSION_SECONDS_MAX,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    number = re.search(rf"{re.escape(after)}(\d+(?:\.\d+)*)", answer.stdout)
    return tuple(map(int, number[1].split("."))) if number and not answer.returncode else None
