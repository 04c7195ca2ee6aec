"""The paths of committed segments, as Hadoop takes them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.unit.broker.one_broker import TOPIC
from tests.unit.bucket.bucket_world import world
from tests.unit.spark_source.spark_world import history, store_at
from tidelog.spark_source import committed_files, table_path


def test_a_folder_s_name_stands_in_paths_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "späte Flüge 100%25"

    async def write() -> None:
        store = store_at(folder)
        async with asyncio.timeout(120), world(store).broker() as broker:
            await history(broker, store)
        await store.close()

    asyncio.run(write())
    table = table_path(folder.as_uri(), TOPIC)
    assert Path(table.removeprefix("file://")).is_dir()
    files = committed_files(folder.as_uri(), TOPIC)
    assert [Path(each.path.removeprefix("file://")).stat().st_size for each in files] == [
        each.size_bytes for each in files
    ]
    assert [each.rows for each in files] == [2, 2]
