"""Runs the example applications against a cluster, Tidelog's or Apache Kafka's."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

from tidelog import Consumer, Producer

EXAMPLES = Path(__file__).parents[1] / "examples"
DELAYS = (0, 14, 15, 16, 300)


def application(name: str) -> ModuleType:
    """An example, imported from its file."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def late_flights_are_copied_once(bootstrap: str) -> None:
    """Two workers, one after the other. The second continues where the first ended."""
    example = application("late_flights")
    for topic in (example.SOURCE, example.TARGET):
        example.create_topic(bootstrap, topic)
    for worker in (1, 2):
        with Producer(bootstrap) as producer:
            for delay in DELAYS:
                producer.send(example.SOURCE, json.dumps({"delay_minutes": delay}), f"f{delay}")
        wanted = sorted(delay for delay in DELAYS if delay >= example.LATE_MINUTES) * worker
        example.work(bootstrap, worker, lambda wanted=wanted: len(copied(bootstrap)) >= len(wanted))
        assert sorted(copied(bootstrap)) == sorted(wanted)


def copied(bootstrap: str) -> list[int]:
    """The delays of the copied flights."""
    with Consumer(bootstrap, "late-flights", auto_offset_reset="earliest") as consumer:
        return [json.loads(message.value)["delay_minutes"] for message in consumer.to_end()]
