"""Folders that the first process fills, once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidelog.localstack.made_once import made_once


def test_a_second_caller_waits_and_finds_the_work_done(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "thing"
    begun, go_on = threading.Event(), threading.Event()

    def fill() -> bool:
        with made_once(folder) as to_do:
            if to_do:
                begun.set()
                go_on.wait(30)
                (folder / "it").write_text("whole")
            assert (folder / "it").read_text() == "whole"
            return to_do

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(fill)
        assert begun.wait(30)
        others = [pool.submit(fill) for _ in range(3)]
        go_on.set()
        assert first.result(30)
        assert [other.result(30) for other in others] == [False] * 3
    assert fill() is False


def test_half_finished_work_is_done_anew(tmp_path: Path) -> None:
    folder = tmp_path / "thing"

    def run_out_of_space() -> None:
        with made_once(folder) as to_do:
            assert to_do
            (folder / "half").touch()
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        run_out_of_space()
    with made_once(folder) as to_do:
        assert to_do
        assert not list(folder.iterdir())
    with made_once(folder) as to_do:
        assert not to_do
