"""The alerts that fire in Prometheus if a broker's present metrics last for hours.

Two scrapes of a real broker bound a piece of its life. In the time that promtool makes, counters
rise on as between the scrapes, and gauges stay. A time of a last success stays where it was if
the broker had no success between the scrapes; otherwise it keeps its age.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple
from urllib.request import urlopen

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.deploy.commands import DEPLOY

RULES: Final = DEPLOY / "prometheus" / "alerts.yaml"
QUIET_MINUTES: Final = 20
"""How long the first scrape's values last, before the state between the scrapes begins."""
LASTING_MINUTES: Final = 120
_TIME: Final = re.compile("_timestamp_seconds$|^process_start_time_seconds$")
_COUNTER: Final = re.compile("_(total|bucket|count|sum)$")


class Scrape(NamedTuple):
    """A broker's series at a time."""

    at: float
    series: dict[tuple[str, str], float]
    """The series by name and labels."""

    def total(self, name: str) -> float:
        """The sum over all labels."""
        return sum(value for (each, _), value in self.series.items() if each == name)


def scraped(http: str, at: float) -> Scrape:
    """The series that Prometheus gets from a broker at the time `at`."""
    text = urlopen(f"http://{http}/metrics", timeout=30).read().decode()
    series = {
        (
            sample.name,
            ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items())),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return Scrape(at, series)


def expect_firing(
    folder: Path,
    before: Scrape,
    after: Scrape,
    firing: Collection[str],
    *,
    is_up: bool = True,
    rising: Collection[str] = (),
    aside: Collection[str] = (),
) -> None:
    """Fail unless exactly these alerts fire in the end. Alerts of `aside` may fire or not.

    Gauges of `rising` keep rising, as counters do.
    """
    others = f'alertname!~"{"|".join(aside)}"'
    fires = f'group by (alertname) (ALERTS{{alertstate="firing",{others}}})'
    wanted = set(re.findall(r"\w+", RULES.read_text()))
    lines = [("up", "", f"1x{QUIET_MINUTES} {int(is_up)}x{LASTING_MINUTES}")]
    for (name, labels), value in sorted(after.series.items()):
        if name in wanted and is_up:
            first = before.series.get((name, labels), 0.0 if _COUNTER.search(name) else value)
            lines.append((name, labels, _values(name, first, value, before, after, rising)))
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {
                        "series": f"{name}{{{','.join(filter(None, (OF_BROKER, labels)))}}}",
                        "values": values,
                    }
                    for name, labels, values in lines
                ],
                "promql_expr_test": [
                    {
                        "expr": fires,
                        "eval_time": f"{QUIET_MINUTES + LASTING_MINUTES}m",
                        "exp_samples": [
                            {"labels": f'{{alertname="{name}"}}', "value": 1}
                            for name in sorted(firing)
                        ],
                    }
                ],
            }
        ],
    }
    path = folder / "alerts_test.yaml"
    path.write_text(yaml.safe_dump(document))
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


OF_BROKER: Final = 'instance="broker",job="tidelog"'


def _values(
    name: str,
    first: float,
    last: float,
    before: Scrape,
    after: Scrape,
    rising: Collection[str],
) -> str:
    """A series in promtool's words, a value each minute."""
    seconds = after.at - before.at
    if _TIME.search(name):
        # promtool's time begins at 0, and the second scrape's state with the quiet minutes' end.
        age = after.at - last
        if name == "process_start_time_seconds":
            return f"{-age:f}x{QUIET_MINUTES + LASTING_MINUTES}"
        quiet = f"{before.at - first and -(before.at - first):f}+60x{QUIET_MINUTES}"
        start = 60 * (QUIET_MINUTES + 1)
        if last > first:
            return f"{quiet} {start - age:f}+60x{LASTING_MINUTES - 1}"
        return f"{quiet} {60 * QUIET_MINUTES - (before.at - first):f}x{LASTING_MINUTES - 1}"
    if _COUNTER.search(name) or name in rising:
        rise = 60 * (last - first) / seconds
        return f"{first:f}x{QUIET_MINUTES} {first + rise:f}+{rise:f}x{LASTING_MINUTES - 1}"
    return f"{first:f}x{QUIET_MINUTES} {last:f}x{LASTING_MINUTES - 1}"
