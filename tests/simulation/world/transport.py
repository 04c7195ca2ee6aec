"""One end of a simulated TCP connection, as asyncio's transports behave."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.process import SimulatedProcess
from tidelog.storage.object_store import Buffer

WINDOW_BYTES = 256 * 1024
"""The bytes that may be under way or unread at the receiver's kernel, one direction."""
_READ_SIZE_HINT = 64 * 1024
_HIGH_WATER_BYTES = 64 * 1024

_Arrival = tuple[float, bytes | None]
"""The time of arrival, and the bytes, or None for the end of the stream."""


class Wire(Protocol):
    """A transport's interface to the network between the two hosts."""

    loop: SimulatedLoop

    def delay(self) -> float:
        """Seconds that the next segment travels."""
        ...

    def cut(self, size: int) -> int:
        """The size of the next segment, of `size` bytes that could go at once."""
        ...

    def carries(self, transport: SimulatedTransport) -> bool:
        """Whether anything gets from this end to the other one now."""
        ...

    def forget(self, transport: SimulatedTransport) -> None:
        """The transport is closed."""
        ...


class SimulatedTransport(asyncio.Transport):
    """Sends bytes in segments cut anywhere, in order, after a delay, while the receiver reads.

    Like uvloop's, it reads written buffers only after the step that wrote them: a writer that
    changes them sends garbage. Its callbacks run inside the process. Bytes on their way move on
    even if the process dies.
    """

    peer: SimulatedTransport

    def __init__(
        self,
        wire: Wire,
        process: SimulatedProcess,
        number: int,
        local: tuple[str, int],
        remote: tuple[str, int],
    ) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self.wire = wire
        self.process = process
        self.number = number
        self.local = local
        self.remote = remote
        self.severed = False
        self._loop = wire.loop
        self._context = process.context.copy()
        self._protocol: Any = None
        self._buffer: deque[Buffer] = deque()
        self._buffered_bytes = 0
        self._high, self._low = _HIGH_WATER_BYTES, _HIGH_WATER_BYTES // 4
        self._writing_paused = False
        self._pump_scheduled = False
        self._under_way_bytes = 0
        self._last_arrival = 0.0
        self._arrivals: deque[_Arrival] = deque()
        self._read_scheduled = False
        self._reading = True
        self._closing = False
        self._closed = False
        self._broken: OSError | None = None
        self._lost_because: OSError | None = None

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        """Set the protocol, inside the process. Bytes that have arrived are delivered
        afterwards."""
        self._protocol = protocol
        protocol.connection_made(self)
        if self._closed:
            # The other end gave up before this end accepted the connection.
            self._tell_lost()
        self._schedule_read()

    # --- asyncio.Transport ---

    def write(self, data: Buffer) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        if self._closing or not self.process.alive:
            return
        for data in list_of_data:
            if not isinstance(data, bytes | bytearray | memoryview):
                raise TypeError(f"bytes are written, not {type(data).__name__}")
            self._buffer.append(data)
            self._buffered_bytes += memoryview(data).nbytes
        if self._broken is not None:
            self._lose(self._broken)
            return
        self._schedule_pump()
        if self._buffered_bytes > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if self._closing or self._reading or not self.process.alive:
            return
        self._reading = True
        if self._broken is not None:
            self._lose(self._broken)
        self._schedule_read()

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def close(self) -> None:
        if self._closing or not self.process.alive:
            return
        self._closing = True
        self._arrivals.clear()
        self._schedule_pump()

    def abort(self) -> None:
        if not self._closed and self.process.alive:
            self._end(None, reset_peer=True)

    def is_closing(self) -> bool:
        return self._closing

    def can_write_eof(self) -> bool:
        return False

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_write_buffer_size(self) -> int:
        return self._buffered_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not 0 <= low <= high:
            raise ValueError(f"high ({high}) must be >= low ({low}) must be >= 0")
        self._high, self._low = high, low

    # --- effects of the network ---

    @property
    def is_open(self) -> bool:
        """Whether the connection still exists for this end."""
        return not self._closed

    @property
    def has_unsent(self) -> bool:
        """Whether bytes wait that the other end has not got."""
        return self._buffered_bytes > 0 or self._under_way_bytes > 0

    def move_on(self) -> None:
        """Try again to send waiting bytes: the network carries again."""
        self._schedule_pump()

    def break_off(self, error: OSError) -> None:
        """Mark the connection as gone: this end learns of it when it reads, or else when it
        writes."""
        if self._closed or self._broken is not None:
            return
        self._broken = error
        if self._reading or self._closing:
            self._loop.call_soon(self._lose, error, context=self._context)

    def vanish(self) -> None:
        """The process is gone: this end no longer exists, and makes no calls."""
        self._closed = self._closing = True
        self._buffer.clear()
        self._arrivals.clear()
        self.wire.forget(self)

    def reset_peer(self) -> None:
        """Tell the other end that this one is gone, after the bytes on their way to it."""
        if self.wire.carries(self):
            when = max(self._last_arrival, self._loop.time() + self.wire.delay())
            error = ConnectionResetError(f"reset by {self.local}")
            self._loop.call_system(when - self._loop.time(), self.peer.break_off, error)

    # --- sending ---

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled and not self._closed:
            self._pump_scheduled = True
            self._loop.call_system(0.0, self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        if self._closed:
            return
        carries = self.wire.carries(self)
        while carries and self._buffered_bytes and self._under_way_bytes < WINDOW_BYTES:
            room = WINDOW_BYTES - self._under_way_bytes
            self._send(self._take(self.wire.cut(min(self._buffered_bytes, room))))
        if self._writing_paused and self._buffered_bytes <= self._low:
            self._writing_paused = False
            self._loop.call_soon(self._protocol.resume_writing, context=self._context)
        if self._closing and not self._buffered_bytes:
            if carries:
                self._send(None)
            self._end(None, reset_peer=False)

    def _take(self, size: int) -> bytes:
        parts: list[Buffer] = []
        missing = size
        while missing:
            view = memoryview(self._buffer.popleft()).cast("B")
            if len(view) > missing:
                self._buffer.appendleft(view[missing:])
                view = view[:missing]
            parts.append(view)
            missing -= len(view)
        self._buffered_bytes -= size
        return b"".join(parts)

    def _send(self, data: bytes | None) -> None:
        now = self._loop.time()
        when = self._last_arrival = max(self._last_arrival, now + self.wire.delay())
        size = 0 if data is None else len(data)
        self._under_way_bytes += size
        self._loop.trace.record(now, f"wire {self.local[0]}>{self.remote[0]} {size} bytes")
        self.peer._arrive(when, data)

    def _consumed(self, size: int) -> None:
        self._under_way_bytes -= size
        if self._buffered_bytes:
            self._schedule_pump()

    # --- receiving ---

    def _arrive(self, when: float, data: bytes | None) -> None:
        if self._closing:
            # No process reads here any more, and the sender learns of it.
            if data is not None and self.wire.carries(self):
                error = ConnectionResetError(f"{self.local} is closed")
                self._loop.call_system(
                    when - self._loop.time() + self.wire.delay(), self.peer.break_off, error
                )
            return
        self._arrivals.append((when, data))
        self._schedule_read()

    def _schedule_read(self) -> None:
        if self._arrivals and self._reading and not self._read_scheduled and self._protocol:
            self._read_scheduled = True
            self._loop.call_at(self._arrivals[0][0], self._read, context=self._context)

    def _read(self) -> None:
        self._read_scheduled = False
        while self._arrivals and self._reading and not self._closing:
            when, data = self._arrivals[0]
            if when > self._loop.time():
                break
            self._arrivals.popleft()
            if data is None:
                if not self._protocol.eof_received():
                    self.close()
                return
            self._deliver(data)
        if not self._closing:
            self._schedule_read()

    def _deliver(self, data: bytes) -> None:
        try:
            if not isinstance(self._protocol, asyncio.BufferedProtocol):
                self._protocol.data_received(data)
                self.peer._consumed(len(data))
                return
            while data:
                buffer = memoryview(self._protocol.get_buffer(_READ_SIZE_HINT)).cast("B")
                size = min(len(buffer), len(data))
                if size == 0:
                    raise RuntimeError("get_buffer() returned an empty buffer")
                buffer[:size] = data[:size]
                # Release the view first, as the protocol may resize the buffer that it lent.
                buffer.release()
                data = data[size:]
                self._protocol.buffer_updated(size)
                self.peer._consumed(size)
                if data and (self._closing or not self._reading):
                    if not self._closing:
                        self._arrivals.appendleft((self._loop.time(), data))
                    return
        except Exception:
            self.abort()
            raise

    # --- the end ---

    def _lose(self, error: OSError) -> None:
        if not self._closed:
            self._end(error, reset_peer=False)

    def _end(self, error: OSError | None, *, reset_peer: bool) -> None:
        self._closed = self._closing = True
        self._buffer.clear()
        self._buffered_bytes = 0
        self._arrivals.clear()
        if reset_peer:
            self.reset_peer()
        self.wire.forget(self)
        self._lost_because = error
        if self._protocol is not None:
            self._tell_lost()

    def _tell_lost(self) -> None:
        lost = self._protocol.connection_lost
        self._loop.call_soon(lost, self._lost_because, context=self._context)
