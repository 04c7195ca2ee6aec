"""The codecs, their refusals, and the limits of their memory."""

from __future__ import annotations

import gzip
import random
import threading
import tracemalloc
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard

from tidelog.records.compression import (
    Compression,
    CorruptCompression,
    DecompressedTooLarge,
    compress,
    decompress,
)

CODECS = [codec for codec in Compression if codec is not Compression.NONE]
SAMPLES = [b"", b"a", b"abc" * 50_000, random.Random(1).randbytes(200_000), bytes(1_000_000)]


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("sample", SAMPLES, ids=len)
def test_compressed_data_decompresses(codec: Compression, sample: bytes) -> None:
    compressed = compress(codec, memoryview(bytearray(sample)))
    assert decompress(codec, memoryview(bytearray(compressed)), len(sample)) == sample
    assert compress(codec, sample) == compressed


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("sample", SAMPLES[1:], ids=len)
def test_one_byte_beyond_the_limit_is_too_large(codec: Compression, sample: bytes) -> None:
    with pytest.raises(DecompressedTooLarge, match=str(len(sample) - 1)):
        decompress(codec, compress(codec, sample), len(sample) - 1)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("sample", SAMPLES[1:], ids=len)
def test_cut_or_followed_data_is_corrupt(codec: Compression, sample: bytes) -> None:
    whole = compress(codec, sample)
    for cut in {0, 1, len(whole) // 2, len(whole) - 1}:
        with pytest.raises(CorruptCompression):
            decompress(codec, whole[:cut], 10_000_000)
    with pytest.raises(CorruptCompression):
        decompress(codec, whole + b"?", 10_000_000)


@pytest.mark.parametrize("sample", SAMPLES[1:], ids=len)
def test_a_second_frame_is_corrupt(sample: bytes) -> None:
    # Some consumers read the content size, others do not.
    unsized = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True)
    frames = [
        (Compression.LZ4, compress(Compression.LZ4, sample)),
        (Compression.ZSTD, compress(Compression.ZSTD, sample)),
        (Compression.ZSTD, unsized.compress(sample)),
    ]
    for codec, frame in frames:
        assert decompress(codec, frame, 10_000_000) == sample
        for followed in (frame + frame, frame + b"\0"):
            with pytest.raises(CorruptCompression):
                decompress(codec, followed, 10_000_000)


@pytest.mark.parametrize("codec", CODECS)
def test_random_bytes_are_corrupt(codec: Compression) -> None:
    chance = random.Random(7)
    for size in range(1, 60):
        with pytest.raises((CorruptCompression, DecompressedTooLarge)):
            decompress(codec, chance.randbytes(size) + b"\xff", 1000)


# A growing buffer has an eighth to spare, and the last piece of 4 MiB is apart, maybe twice.
SLACK_BYTES = 16_000_000 // 8 + 2 * 4 * 1024 * 1024 + 100_000


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def test_raw_snappy_is_read_too() -> None:
    for sample in SAMPLES[1:]:
        assert decompress(Compression.SNAPPY, raw_snappy(sample), len(sample)) == sample


def test_snappy_is_written_in_blocks_of_32_kib() -> None:
    sample = random.Random(2).randbytes(70_000)
    framed = compress(Compression.SNAPPY, sample)
    assert framed.startswith(b"\x82SNAPPY\0\0\0\0\1\0\0\0\1")
    sizes = []
    position = 16
    while position < len(framed):
        length = int.from_bytes(framed[position : position + 4], "big")
        block = framed[position + 4 : position + 4 + length]
        sizes.append(len(cramjam.snappy.decompress_raw(block)))
        position += 4 + length
    assert sizes == [32_768, 32_768, 4_464]


def test_snappy_refuses_another_version_of_its_framing() -> None:
    framed = bytearray(compress(Compression.SNAPPY, b"x" * 100))
    framed[11] = 2
    with pytest.raises(CorruptCompression, match="version 1"):
        decompress(Compression.SNAPPY, framed, 1000)


def test_gzip_members_are_joined() -> None:
    members = gzip.compress(b"one ") + gzip.compress(b"two")
    assert decompress(Compression.GZIP, members, 7) == b"one two"
    with pytest.raises(DecompressedTooLarge):
        decompress(Compression.GZIP, members, 6)


def test_lz4_blocks_are_independent() -> None:
    info = lz4.frame.get_frame_info(compress(Compression.LZ4, b"data" * 100_000))
    assert not info["block_linked"]


def test_zstd_frames_without_their_size_are_read() -> None:
    for sample in SAMPLES:
        framed = zstandard.ZstdCompressor(write_content_size=False).compress(sample)
        assert zstandard.frame_content_size(framed) == -1 or not sample
        assert decompress(Compression.ZSTD, framed, len(sample)) == sample
        if sample:
            with pytest.raises(DecompressedTooLarge):
                decompress(Compression.ZSTD, framed, len(sample) - 1)


def test_the_widest_zstd_window_is_read() -> None:
    framed = zstandard.ZstdCompressor(level=22, write_content_size=False).compress(b"w" * 1000)
    assert decompress(Compression.ZSTD, framed, 1000) == b"w" * 1000


def bomb(codec: Compression, size: int) -> bytes:
    """Zeros, in the form that reveals the least about their number."""
    zeros = bytes(size)
    match codec:
        case Compression.GZIP:
            compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
            return compressor.compress(zeros) + compressor.flush()
        case Compression.SNAPPY:
            return raw_snappy(zeros)
        case Compression.LZ4:
            return lz4.frame.compress(zeros, store_size=False)
        case _:
            return zstandard.ZstdCompressor(write_content_size=False).compress(zeros)


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_takes_no_more_memory_than_the_limit(codec: Compression) -> None:
    limit = 16_000_000
    data = bomb(codec, 200_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(DecompressedTooLarge):
            decompress(codec, data, limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit + SLACK_BYTES


@pytest.mark.parametrize("codec", CODECS)
def test_decompression_to_the_limit_takes_one_copy(codec: Compression) -> None:
    size = 16_000_000
    data = bomb(codec, size)
    tracemalloc.start()
    try:
        assert len(decompress(codec, data, size)) == size
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size + SLACK_BYTES


def test_a_high_limit_takes_no_memory_from_frames_without_a_size() -> None:
    """Java's frames state none."""
    plain = bytes(8_000_000)
    data = zstandard.ZstdCompressor(write_content_size=False).compress(plain)
    tracemalloc.start()
    try:
        assert decompress(Compression.ZSTD, data, 2**31 - 1) == plain
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(plain) + SLACK_BYTES


@pytest.mark.parametrize("codec", Compression)
def test_threads_do_not_share_contexts(codec: Compression) -> None:
    chance = random.Random(3)
    samples = [chance.randbytes(50) * chance.randrange(1, 4000) for _ in range(40)]
    failures: list[bytes] = []

    def work() -> None:
        failures.extend(
            sample
            for sample in samples
            if decompress(codec, compress(codec, sample), len(sample)) != sample
        )

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize(
    ("codec", "levels"),
    [(Compression.GZIP, (1, 9)), (Compression.LZ4, (1, 12)), (Compression.ZSTD, (1, 19))],
)
def test_a_higher_level_compresses_better(codec: Compression, levels: tuple[int, int]) -> None:
    chance = random.Random(4)
    words = [chance.randbytes(chance.randrange(2, 9)) for _ in range(200)]
    sample = b"".join(chance.choices(words, k=20_000))
    low, high = (compress(codec, sample, level) for level in levels)
    assert len(high) < len(low)
    assert decompress(codec, high, len(sample)) == sample
