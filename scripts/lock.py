"""Write requirements/*.txt: every package that the targets install, pinned, with hashes.

Both plain pip and uv read the files. They name no index: each machine uses its own. Each file holds
only packages that the files before it lack, so they are installed one after the other.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
PYTHON_OLDEST = "3.11"
EXTRAS = ("broker",)
"""Of the project; each group has them."""
GROUPS = ("test", "integration")
"""Dependency groups of pyproject.toml, in the order of installation."""
HEADER = """\
# Written by `make lock` from pyproject.toml; do not edit.
# Install with --no-deps: the file is complete.{after}
"""


def lock_file(group: str) -> Path:
    """The path of a group's pins."""
    return ROOT / "requirements" / f"{group}.txt"


def compiled(groups: tuple[str, ...], upgrade: bool) -> list[str]:
    """The pinned requirements of the project and these groups, each with its hashes.

    Pins stay unless pyproject.toml or `upgrade` asks for another version; the pins of earlier
    groups are binding.
    """
    command = ["uv", "pip", "compile", "pyproject.toml", "--universal", "--generate-hashes"]
    command += ["--no-annotate", "--no-header", "--quiet", "--python-version", PYTHON_OLDEST]
    for extra in EXTRAS:
        command += ["--extra", extra]
    for group in groups:
        command += ["--group", group]
    for group in groups[:-1]:
        command += ["--constraint", str(lock_file(group))]
    if upgrade:
        command += ["--upgrade"]
    with TemporaryDirectory() as folder:
        output = Path(folder, "lock.txt")
        pinned = [lock_file(group) for group in groups if lock_file(group).exists()]
        output.write_text("".join(path.read_text() for path in pinned))
        subprocess.run([*command, "--output-file", str(output)], cwd=ROOT, check=True)
        requirements: list[str] = []
        for line in output.read_text().splitlines():
            if line.startswith(" "):
                requirements[-1] += f"\n{line}"
            else:
                requirements.append(line)
        return requirements


def main() -> None:
    """Keep pins and add missing ones; with --upgrade take the newest version of everything."""
    if shutil.which("uv") is None:
        sys.exit("uv is needed to lock the dependencies: install it and run `make lock` again")
    upgrade = sys.argv[1:] == ["--upgrade"]
    before: list[str] = []
    for number, group in enumerate(GROUPS):
        requirements = compiled(GROUPS[: number + 1], upgrade)
        added = [line for line in requirements if line not in before]
        after = f" Install {GROUPS[number - 1]}.txt first." if number else ""
        lock_file(group).parent.mkdir(exist_ok=True)
        lock_file(group).write_text(HEADER.format(after=after) + "\n".join(added) + "\n")
        print(f"requirements/{group}.txt: {len(added)} packages")
        before = requirements


if __name__ == "__main__":
    main()
