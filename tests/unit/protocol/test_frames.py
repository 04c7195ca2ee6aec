"""The memory of frames, and the frames that are refused."""

from __future__ import annotations

import resource
import struct
import tracemalloc
from pathlib import Path

import pytest

from tidelog.protocol.errors import MalformedMessage
from tidelog.protocol.frames import FIRST_READ_BYTES, SCRATCH_BYTES, FrameReader, new_scratch

_STATM = Path("/proc/self/statm")
_LIMIT = "socket.request.max.bytes"


def _reader(size_bytes_max: int = 100_000_000) -> FrameReader:
    return FrameReader(size_bytes_max, _LIMIT, new_scratch())


def _feed(reader: FrameReader, data: bytes) -> list[memoryview]:
    frames: list[memoryview] = []
    while data:
        buffer = reader.get_buffer()
        part = data[: len(buffer)]
        buffer[: len(part)] = part
        data = data[len(part) :]
        frames += reader.buffer_updated(len(part))
    return frames


def test_small_frames_of_one_read_pin_only_themselves() -> None:
    frames = _feed(_reader(), (struct.pack(">i", 100) + b"x" * 100) * 3)
    assert [len(frame) for frame in frames] == [100, 100, 100]
    assert [len(frame.obj) for frame in frames] == [100, 100, 100]  # type: ignore[arg-type]


def test_the_rest_of_a_large_frame_is_read_where_it_stays() -> None:
    reader = _reader()
    size = 3 * SCRATCH_BYTES
    head = struct.pack(">i", size) + b"a" * 10
    assert _feed(reader, head) == []
    rest = reader.get_buffer()
    assert len(rest) == size - 10
    rest[:] = b"b" * len(rest)
    (frame,) = reader.buffer_updated(len(rest))
    assert bytes(frame) == b"a" * 10 + b"b" * (size - 10)
    assert len(reader.get_buffer()) == FIRST_READ_BYTES


def test_reads_grow_with_the_frames_in_them_and_shrink_with_their_number() -> None:
    """A read full of thousands of small requests would hold up all other connections."""
    reader = _reader()
    _feed(reader, (struct.pack(">i", 16_000) + bytes(16_000)) * 100)
    assert len(reader.get_buffer()) > SCRATCH_BYTES - 4
    _feed(reader, (struct.pack(">i", 10) + bytes(10)) * 40_000)
    assert len(reader.get_buffer()) <= FIRST_READ_BYTES
    assert len(reader.get_buffer(100)) == 100


def test_a_frame_that_is_being_received_is_known_by_its_size() -> None:
    reader = _reader()
    size = struct.pack(">i", 100_000)
    assert _feed(reader, size[:2]) == []
    assert reader.announced == 0
    _feed(reader, size[2:] + b"x")
    assert reader.announced == 100_004
    _feed(reader, bytes(99_999))
    assert reader.announced == 0


def test_a_size_that_is_cut_is_put_together() -> None:
    reader = _reader()
    data = struct.pack(">i", 5) + b"hello"
    frames = [frame for byte in data for frame in _feed(reader, bytes([byte]))]
    assert [bytes(frame) for frame in frames] == [b"hello"]
    assert _feed(reader, data[:3]) == []
    assert reader.waiting


@pytest.mark.skipif(not _STATM.exists(), reason="reads the process's memory from /proc")
def test_announcing_a_large_frame_costs_no_memory() -> None:
    resident_before = _resident_bytes()
    readers = []
    scratch = new_scratch()
    for _ in range(20):
        reader = FrameReader(100_000_000, _LIMIT, scratch)
        _feed(reader, struct.pack(">i", 100_000_000))
        _feed(reader, b"x")
        readers.append(reader)
    assert _resident_bytes() - resident_before < 200_000_000
    assert all(reader.waiting for reader in readers)


def _resident_bytes() -> int:
    return int(_STATM.read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize(
    ("prefix", "why"),
    [
        (struct.pack(">i", 1001), "1001 bytes exceeds socket.request.max.bytes = 1000"),
        (struct.pack(">i", -1), "size of -1 bytes"),
        (b"GET ", "HTTP request"),
        (b"\x16\x03\x01\x02", "TLS handshake"),
    ],
)
def test_sizes_that_cannot_be_are_refused_with_the_reason(prefix: bytes, why: str) -> None:
    with pytest.raises(MalformedMessage, match=why):
        _feed(_reader(size_bytes_max=1000), prefix)


def test_a_frame_of_exactly_the_limit_is_taken() -> None:
    (frame,) = _feed(_reader(size_bytes_max=1000), struct.pack(">i", 1000) + b"x" * 1000)
    assert len(frame) == 1000


def test_an_idle_connection_holds_nothing() -> None:
    scratch = new_scratch()
    tracemalloc.start()
    readers = [FrameReader(1000, _LIMIT, scratch) for _ in range(1000)]
    for reader in readers:
        _feed(reader, struct.pack(">i", 900) + b"x" * 900)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 500 * len(readers)
