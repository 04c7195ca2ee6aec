"""Tries each damage on each kind of object, at many places; writes docs/DAMAGE.md.

python -m tests.damage --flips 40 --jobs 2
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.damage.damages import Case, Kind, Place, cases
from tests.damage.judge import Outcome, Verdict, judged
from tests.damage.rich_bucket import RichBucket, build

PAGE = Path(__file__).parents[2] / "docs" / "DAMAGE.md"
DAMAGES = ("flip", "truncate", "delete", "swap")
HEAD = """# Damaged objects

The effect of one damaged object: each kind of object, each way of damage, and the oldest, a middle
and the newest object of the kind. Each case has a copy of one bucket. Three brokers have written
that bucket and were cut off, and collectors have deleted in it. fsck checks the copy. Then a broker
starts on it, and a client asks the broker for every record and every offset.

- *named*: `tidelog fsck` names the object, or what is missing for it, and exits with 4. The broker
  serves no wrong record. It answers KAFKA_STORAGE_ERROR for partitions that rest on the damage, and
  serves all others; `/healthz` and `tidelog_partition_unserved` tell which they are, and the object
  to blame. On a damaged metadata log the broker does not start, and its message names the object.
- *harmless*: fsck finds nothing, and everything is served as it was.

Why a damage is harmless:

| object | because |
|---|---|
| metadata entry, deleted | a snapshot stands for the entries below it |
| metadata snapshot, deleted | the entries that it stands for are still there |
| lease, deleted | its broker is dead; a living one writes it again |
| marks of collections | without them superfluous objects stay for the grace once more |
| state snapshot, deleted | the log of the coordinator still has the records of the snapshot |
| table log entry, deleted | a table checkpoint stands for the entries below it |
| table checkpoint, pointer to it, deleted | the entries that it stands for are still there |
| a bit of a Parquet file's first four bytes | readers know the file by its last four bytes |
| a bit of a pointer behind its version | Tidelog's readers use the version alone |

**What cannot be noticed.** The last slots of a broker that died, and the last entries of the
metadata log, are proved by stamps that were written behind them: by later slots, and by the lease,
which is renewed every `broker.heartbeat.interval.ms` (2 s). If the last slot or the last entry is
lost together with every stamp above it, nothing tells that it was there. So only slots and
entries of the last heartbeat interval before the last broker died can be lost unseen
(`tests/unit/broker/read/test_lost_slots.py`,
`tests/unit/coordinator/cluster/log/test_log_proof.py`).

`make damage` tries all of it and writes this page; `make test` tries a part.
"""


def tried(rich: RichBucket, case: Case) -> Outcome:
    """One case, in a separate process."""
    logging.disable(logging.CRITICAL)
    return judged(rich, case)


def page(outcomes: list[Outcome], flips: int) -> str:
    """The table of results."""
    tally: dict[tuple[Kind, Place, str], Counter[Verdict]] = defaultdict(Counter)
    for outcome in outcomes:
        case = outcome.case
        tally[case.kind, case.place, case.damage.name][outcome.verdict] += 1
    lines = [
        HEAD,
        f"The table is of {len(outcomes)} cases, with up to {flips} flipped bits an object.",
        "",
        "| object | place | a bit flipped | cut off | deleted | another of its kind in its place |",
        "|---|---|---|---|---|---|",
    ]
    for kind in Kind:
        for place in Place:
            cells = [_cell(tally[kind, place, damage]) for damage in DAMAGES]
            if any(cells):
                lines.append(f"| {kind.value} | {place.value} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(found: Counter[Verdict]) -> str:
    if len(found) == 1:
        return next(iter(found)).value
    return ", ".join(f"{count} {verdict.value}" for verdict, count in found.most_common())


def main() -> int:
    """Try all cases. Returns 1 if a damage stays unnoticed or a wrong record is served."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rich = asyncio.run(build())
    wanted = cases(rich.objects, arguments.flips, arguments.seed, rich.deleted)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        outcomes = list(pool.map(tried, [rich] * len(wanted), wanted, chunksize=8))
    wrong = [o for o in outcomes if o.wrong or o.verdict is Verdict.SILENT]
    for outcome in wrong:
        case = outcome.case
        print(f"{case.key}: {case.damage.name}: {outcome.verdict.value}: {outcome.wrong}")
    if not wrong:
        PAGE.write_text(page(outcomes, arguments.flips))
    print(f"{len(outcomes)} damages, {len(wrong)} of them wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
