"""The file of a campaign: a line of JSON for each finished seed. A later run adds its seeds."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.simulation.run import Result
from tests.simulation.seeds import SeedOptions


@dataclass(frozen=True, slots=True)
class SeedResult:
    """The kept result of a seed."""

    seed: int
    line: str
    report: str
    tail: tuple[str, ...]
    counts: Counter[str]
    errors: Counter[str]

    @classmethod
    def of(cls, result: Result) -> SeedResult:
        """The parts of a run's result that are kept."""
        return cls(
            result.seed,
            result.line(),
            str(result.report),
            tuple(result.tail),
            result.counts,
            result.errors,
        )

    @property
    def valid(self) -> bool:
        """Whether every promise was kept."""
        return not self.report


class CampaignFile:
    """The finished seeds, by their options. An unfinished last line does not count."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, SeedResult] = {}
        whole = path.read_bytes().rpartition(b"\n") if path.exists() else (b"", b"", b"")
        if whole[2]:
            path.write_bytes(whole[0] + whole[1])
        for line in whole[0].splitlines():
            kept: dict[str, Any] = json.loads(line)
            kept_result = SeedResult(
                kept["seed"],
                kept["line"],
                kept["report"],
                tuple(kept["tail"]),
                Counter(kept["counts"]),
                Counter(kept["errors"]),
            )
            self._found[_name(kept["seed"], kept["options"])] = kept_result

    def find(self, options: SeedOptions) -> SeedResult | None:
        """The result of a finished seed."""
        return self._found.get(_name(options.seed, options.described()))

    def add(self, options: SeedOptions, result: SeedResult) -> None:
        """Append a finished seed."""
        kept = {
            "seed": options.seed,
            "options": options.described(),
            "line": result.line,
            "report": result.report,
            "tail": result.tail,
            "counts": result.counts,
            "errors": result.errors,
        }
        with self._path.open("a") as file:
            file.write(json.dumps(kept) + "\n")


def _name(seed: int, options: dict[str, Any]) -> str:
    return f"{seed} {json.dumps(options, sort_keys=True)}"
