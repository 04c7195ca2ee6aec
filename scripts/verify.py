"""Run every target, the long ones too, and write their results to docs/VERIFICATION.md.

    python -m scripts.verify [TARGET ...]

A target may have variables: `"moves SECONDS=300"`. Without names: all of TARGETS. Continues after a
failure, and then exits 1. The report keeps the results of targets that are not run, each with its
commit; those of one target with other variables are rows of their own.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from scripts.tools import TOOLS, allowed_missing, installed_version

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "docs" / "VERIFICATION.md"
TARGETS = (
    *("test", "integration", "compat", "spark-cluster", "chaos", "chaos-cluster", "moves"),
    *("damage", "attack", "simulate", "demo", "demo-spark", "bench", "coverage"),
)
PACKAGES = (
    *("setuptools", "ruff", "mypy", "import-linter", "pytest", "hypothesis", "coverage"),
    *("obstore", "boto3", "moto", "pyarrow", "numpy", "uvloop"),
    *("confluent-kafka", "aiokafka", "kafka-python", "kio"),
)
REPORT_ROW = re.compile(r"^\| `make ([a-z][^`]*)` \|.*\|$", re.MULTILINE)
ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
LOG_OF_CLIENT = re.compile(r"%\d\|")
"""Begins a line that librdkafka logs."""
PYTEST_SUMMARY = re.compile(r"\d+ (?:passed|failed|errors?|skipped|deselected)\b.* in [\d.]+s")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one target."""

    target: str
    exit_code: int
    seconds: float
    said: str

    def row(self, of_commit: str) -> str:
        """The target's line in the report."""
        result = "passed" if self.exit_code == 0 else f"**failed** ({self.exit_code})"
        said = self.said.replace("|", "\\|")
        return (
            f"| `make {self.target}` | {result} | {said} | {self.seconds / 60:.1f} | {of_commit} |"
        )


def summary_lines(output: str) -> str:
    """pytest's summaries, without their frames, and the last line if it differs."""
    lines = [ESCAPES.sub("", line).strip() for line in output.splitlines()]
    said = [
        line
        for line in lines
        if re.search(r"\w", line) and not (line.startswith("make:") or LOG_OF_CLIENT.match(line))
    ]
    if not said:
        return ""
    summaries = [summary.group() for line in lines if (summary := PYTEST_SUMMARY.search(line))]
    if not summaries:
        return said[-1]
    last = [] if summaries[-1] in said[-1] else said[-1:]
    return "; ".join(summaries + last)


def run(target: str) -> Outcome:
    """Run one target, and show its output as it arrives."""
    print(f"\n=== make {target}", flush=True)
    output: list[str] = []
    begun = time.monotonic()
    with subprocess.Popen(
        ["make", "--no-print-directory", *target.split()],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            output.append(line)
    seconds = time.monotonic() - begun
    return Outcome(target, process.returncode, seconds, summary_lines("".join(output)))


def git(*arguments: str) -> str:
    """The output of a git command in this checkout."""
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def commit() -> str:
    """The verified commit, and whether the work tree differs from it."""
    # Files that the targets write themselves do not count.
    written = ("VERIFICATION", "BENCHMARKS", "ATTACKS", "DAMAGE")
    others = (f":!docs/{page}.md" for page in written)
    changed = git("status", "--porcelain", "--", ".", *others)
    name = f"`{git('rev-parse', '--short=12', 'HEAD')}`"
    return f"{name} with uncommitted changes" if changed else name


def versions() -> dict[str, str]:
    """The versions of Python, the important packages, and the foreign programs."""
    found = {"Python": platform.python_version()}
    found |= {package: version(package) for package in PACKAGES}
    for tool in TOOLS.values():
        number = installed_version(tool)
        found[tool.name] = ".".join(map(str, number)) if number else "not there"
    return found


def name_of(target: str) -> str:
    """The target without its variables."""
    return target.split(maxsplit=1)[0]


def rows_of(text: str) -> dict[str, str]:
    """The report's line of each target."""
    return {found[1]: found[0] for found in REPORT_ROW.finditer(text)}


def report(begun: datetime, rows: Mapping[str, str]) -> str:
    """The text of docs/VERIFICATION.md."""
    without = ", ".join(sorted(allowed_missing())) or "nothing"
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    lines = [
        "# Verification",
        "",
        "Written by `make verify`; do not edit. Each target says what it covers in `make help`.",
        "",
        f"- Last run begun: {begun:%Y-%m-%d %H:%M} UTC",
        f"- Machine: {platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"{memory_bytes / 2**30:.0f} GiB",
        f"- Went without, by ALLOW_MISSING: {without}",
        "",
        "| Target | Result | What it said | Minutes | Commit |",
        "|---|---|---|---|---|",
    ]
    # A target's rows with variables follow its own.
    lines += [rows[name] for target in TARGETS for name in sorted(rows) if name_of(name) == target]
    lines += ["", "| With | Version |", "|---|---|"]
    lines += [f"| {name} | {number} |" for name, number in versions().items()]
    return "\n".join(lines) + "\n"


def main(targets: list[str]) -> int:
    """Run them in turn; the report is written after each, so an interruption loses little."""
    if unknown := [target for target in targets if name_of(target) not in TARGETS]:
        known = ", ".join(TARGETS)
        print(f"verify: unknown targets {', '.join(unknown)}; known: {known}", file=sys.stderr)
        return 2
    allowed_missing()
    of_commit, begun = commit(), datetime.now(UTC)
    # A whole run begins a new report.
    rows = rows_of(REPORT.read_text()) if targets and REPORT.exists() else {}
    outcomes: list[Outcome] = []
    for target in targets or TARGETS:
        outcomes.append(run(target))
        rows[target] = outcomes[-1].row(of_commit)
        REPORT.write_text(report(begun, rows))
    failed = [outcome.target for outcome in outcomes if outcome.exit_code]
    verdict = f"failed: {', '.join(failed)}" if failed else "everything passed"
    print(f"\n{verdict}; see {REPORT.relative_to(ROOT)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
