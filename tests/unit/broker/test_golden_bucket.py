"""A bucket written by the first version of each format opens, and a broker goes on with it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from scripts.golden import SETTINGS, contents
from tests.unit.broker.one_broker import World, batch, run
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.storage.filesystem import FilesystemStore

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.mark.parametrize("form", sorted(path.name for path in GOLDEN.iterdir()))
def test_a_golden_bucket_opens_and_goes_on(form: str, tmp_path: Path) -> None:
    expected = json.loads((GOLDEN / form / "contents.json").read_text())
    with zipfile.ZipFile(GOLDEN / form / "bucket.zip") as archive:
        archive.extractall(tmp_path)

    async def story() -> None:
        store = FilesystemStore(tmp_path, SystemClock(), SeededEntropy(1))
        world = World(store, **SETTINGS)
        world.starts = 100
        async with world.broker() as one:
            assert one.broker.faults() == []
            assert json.loads(json.dumps(await contents(one))) == expected
            end = expected["plain-0"]["high_watermark"]
            last = batch(b"again", None, producer_id=7, producer_epoch=3, base_sequence=end - 2)
            assert (await one.produce(last, topic="plain")).base_offset == end - 2
            following = batch(b"next", producer_id=7, producer_epoch=3, base_sequence=end)
            assert (await one.produce(following, topic="plain")).base_offset == end

    run(story)
