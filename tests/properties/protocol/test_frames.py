"""A stream of frames may be cut into any reads: the same frames come out, and each owns its
bytes."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from tidelog.protocol.frames import FrameReader

_frames = st.lists(
    st.binary(max_size=40) | st.integers(0, 400).map(lambda size: (bytes(range(256)) * 2)[:size])
)


@given(frames=_frames, reads=st.lists(st.integers(1, 50)), scratch_bytes=st.integers(8, 100))
def test_frames_survive_any_cutting(
    frames: list[bytes], reads: list[int], scratch_bytes: int
) -> None:
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    scratch = memoryview(bytearray(scratch_bytes))
    reader = FrameReader(10_000, "limit", scratch)
    received: list[memoryview] = []
    position = 0
    turn = 0
    while position < len(stream):
        buffer = reader.get_buffer()
        assert len(buffer) > 0
        wanted = reads[turn % len(reads)] if reads else len(buffer)
        part = stream[position : position + min(wanted, len(buffer))]
        buffer[: len(part)] = part
        received += reader.buffer_updated(len(part))
        # Another connection of the same loop reads into the scratch buffer in between.
        scratch[:] = bytes([turn % 256]) * scratch_bytes
        position += len(part)
        turn += 1
    assert [bytes(frame) for frame in received] == frames
    assert not reader.waiting
    assert all(not frame.readonly for frame in received)
