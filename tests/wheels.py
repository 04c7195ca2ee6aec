"""The wheel of the present work tree, built in a copy, since a build leaves files in its folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    """The output of the command. A failure shows all of it. The command has no checkout on its
    path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def copy_clone(target: Path) -> Path:
    """A copy of the files that git tracks or would track."""
    tracked = run("git", "ls-files", "-z", "-co", "--exclude-standard", cwd=ROOT).split("\0")
    for name in filter(None, tracked):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def build_wheel(clone: Path, target: Path) -> Path:
    """The wheel that a clone builds, with the pinned setuptools."""
    command = ("-m", "build", "--wheel", "--no-isolation", "--outdir", target, ".")
    run(sys.executable, *command, cwd=clone)
    [path] = target.glob("tidelog-*.whl")
    return path
