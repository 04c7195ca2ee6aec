"""Runs one program in interpreters that hash strings differently. A run must not depend on the
hashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[3]


def printed(code: str, *hash_seeds: str) -> set[str]:
    """The different outputs of a program, run once with each hash seed."""
    return {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=_ROOT,
            env={**os.environ, "PYTHONHASHSEED": each},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for each in hash_seeds
    }
