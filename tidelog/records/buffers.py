"""Types of byte buffers."""

from __future__ import annotations

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes to read. Memoryviews must be contiguous, of single unsigned bytes (format B)."""
MutableBuffer: TypeAlias = bytearray | memoryview
"""Bytes to patch in place."""
