"""scripts/bootstrap names faults of the machine before it changes anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout without an environment."""
    (tmp_path / "scripts").mkdir()
    shutil.copy2(ROOT / "scripts" / "bootstrap", tmp_path / "scripts" / "bootstrap")
    return tmp_path


def program(path: Path, text: str) -> Path:
    """An executable shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("uv", ["is there", "is not there"])
def test_a_python_that_is_too_old_is_refused_with_the_remedy(checkout: Path, uv: str) -> None:
    old = program(checkout / "python-old", 'test "$1" = -c && exit 1; echo Python 3.9.2')
    program(checkout / "uv", "exit 0" if uv == "is there" else "exit 1")
    done = subprocess.run(
        [checkout / "scripts" / "bootstrap", "test"],
        env={"PATH": f"{checkout}:{os.environ['PATH']}", "PYTHON": str(old)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "Python 3.11 or newer is needed, found: Python 3.9.2" in done.stderr
    assert "make PYTHON=" in done.stderr
    assert not (checkout / ".venv").exists()
