"""The quick start as written, from a clone and from a wheel, with each interpreter that is there.

Each test prints how long a new user waits for the first record. No time is asserted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.page_reader import ROOT, Command, reader
from tidelog.localstack.ports import free_ports

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
INSTALL_SECONDS_MAX = 900


def interpreter(version: str) -> str:
    """An interpreter of this version: the running one, one on the path, or pyenv's. Skips if there
    is none."""
    candidates = [sys.executable, shutil.which(f"python{version}")]
    candidates += map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for each in filter(None, candidates):
        asked = [each, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
        if found.stdout.strip() == version:
            return each
    pytest.skip(f"no Python {version} on this machine")


def run(*command: str, cwd: Path) -> None:
    """Run a command of an installation."""
    environment = {name: each for name, each in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALL_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"


def installed_from_clone(python: str, folder: Path) -> Path:
    """The programs of an environment, by the commands of the quick start."""
    run("git", "clone", "--quiet", str(ROOT), "tidelog", cwd=folder)
    clone = folder / "tidelog"
    run(python, "-m", "venv", "../tidelog-venv", cwd=clone)
    programs = folder / "tidelog-venv" / "bin"
    run(str(programs / "pip"), "install", "--quiet", ".[broker]", cwd=clone)
    return programs


def installed_from_wheel(python: str, folder: Path) -> Path:
    """The programs of an environment that holds the wheel and its requirements."""
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "-w",
        ".",
        str(ROOT),
        cwd=folder,
    )
    (wheel,) = folder.glob("*.whl")
    run(python, "-m", "venv", "tidelog-venv", cwd=folder)
    programs = folder / "tidelog-venv" / "bin"
    run(str(programs / "pip"), "install", "--quiet", f"{wheel}[broker]", cwd=folder)
    return programs


INSTALLATIONS = {"clone": installed_from_clone, "wheel": installed_from_wheel}


@pytest.mark.parametrize("origin", INSTALLATIONS)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_quick_start(
    version: str, origin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = interpreter(version)
    began = time.monotonic()
    programs = INSTALLATIONS[origin](python, tmp_path)
    kafka, http = free_ports(2)
    page = (ROOT / "docs" / "tutorials" / "quick-start.md").read_text()
    page = page.replace("9092", str(kafka)).replace("9093", str(http))
    first, rest = page.split("Every Kafka client works.")
    work = tmp_path / "work"
    work.mkdir()
    with reader(work, programs, TIDELOG_BOOTSTRAP=f"127.0.0.1:{kafka}") as new_user:
        new_user.run(Command("tidelog --version", []))
        new_user.follow(first)
        first_record = time.monotonic() - began
        new_user.follow(rest)
    with capsys.disabled():
        print(
            f"\nPython {version} from a {origin}: first record after {first_record:.0f} s, the"
            f" whole quick start {time.monotonic() - began:.0f} s"
        )
