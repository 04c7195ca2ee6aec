"""Foreign programs that the long targets need: found, installed if possible, or reported.

    python -m scripts.tools java kcat

exits 1 and prints the remedy for each missing program, unless ALLOW_MISSING=java,kcat names it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

from tidelog.programs import program_version


@dataclass(frozen=True, slots=True)
class Tool:
    """A program: its version option, the oldest sufficient version, and its source."""

    name: str
    version_argument: str
    version_after: str
    """The words before the version in its output."""
    version_oldest: tuple[int, ...]
    debian_package: str
    used_for: str

    @property
    def remedy(self) -> str:
        """The user's remedy for its absence."""
        oldest = ".".join(map(str, self.version_oldest))
        return (
            f"{self.name} {oldest} or newer is needed for {self.used_for}: install it "
            f"(Debian: apt-get install {self.debian_package}) "
            f"or go without: ALLOW_MISSING={self.name}"
        )


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("java", "-version", 'version "', (17,), "default-jre-headless", "Spark and Kafka"),
        Tool("mvn", "--version", "Maven ", (3, 6), "maven", "fetching Apache Kafka's jars"),
        Tool("go", "version", "version go", (1, 24), "golang-go", "building MinIO"),
        Tool("node", "--version", "v", (18,), "nodejs", "KafkaJS"),
        Tool("npm", "--version", "", (8,), "npm", "installing KafkaJS"),
        Tool("promtool", "--version", "version ", (2, 40), "prometheus", "trying alert rules"),
        Tool("zsh", "--version", "zsh ", (5, 8), "zsh", "completion in zsh"),
        Tool("fish", "--version", "version ", (3, 5), "fish", "completion in fish"),
        Tool("kcat", "-V", "Version ", (1, 7), "kcat", "kcat as a client"),
    )
}


class MissingTool(Exception):
    """A program is missing and could not be installed; the message has the remedy."""


def allowed_missing() -> frozenset[str]:
    """The names in ALLOW_MISSING; ValueError for one that no target needs."""
    names = frozenset(re.split(r"[,\s]+", os.environ.get("ALLOW_MISSING", ""))) - {""}
    if unknown := sorted(names - TOOLS.keys()):
        known = ", ".join(sorted(TOOLS))
        raise ValueError(f"ALLOW_MISSING names unknown tools {', '.join(unknown)}; known: {known}")
    return names


def installed_version(tool: Tool) -> tuple[int, ...] | None:
    """The version on the PATH; None if the program is missing or does not run."""
    path = shutil.which(tool.name)
    if path is None:
        return None
    return program_version([path, tool.version_argument], tool.version_after)


def find(name: str) -> str | None:
    """The program's path if it is installed and new enough."""
    version = installed_version(TOOLS[name])
    if version is None or version < TOOLS[name].version_oldest:
        return None
    return shutil.which(name)


@cache
def _refresh_package_lists() -> None:
    subprocess.run(["apt-get", "update", "-qq"], check=False, stdin=subprocess.DEVNULL)


def _install(tool: Tool) -> None:
    """Install it with Debian's package manager, if this is Debian and the user may."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    print(f"tools: installing {tool.debian_package}", file=sys.stderr)
    _refresh_package_lists()
    subprocess.run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", tool.debian_package],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
    )


def require(name: str) -> str | None:
    """The program's path; None if it is missing and ALLOW_MISSING names it; else MissingTool."""
    if path := find(name):
        return path
    if name in allowed_missing():
        return None
    _install(TOOLS[name])
    if path := find(name):
        return path
    version = installed_version(TOOLS[name])
    there = "not found" if version is None else f"found {'.'.join(map(str, version))}"
    raise MissingTool(f"{name}: {there}; {TOOLS[name].remedy}")


def main(names: list[str]) -> int:
    """Require each; 0 if all are installed or allowed to be missing."""
    missing = 0
    for name in names:
        if name not in TOOLS:
            print(f"tools: unknown tool {name}; known: {', '.join(sorted(TOOLS))}", file=sys.stderr)
            return 2
        try:
            if require(name) is None:
                print(f"tools: going without {name}, as ALLOW_MISSING says", file=sys.stderr)
        except MissingTool as error:
            print(f"tools: {error}", file=sys.stderr)
            missing += 1
        except ValueError as error:
            print(f"tools: {error}", file=sys.stderr)
            return 2
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
