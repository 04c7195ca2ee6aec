"""The process that works for a broker beside it (`process_offload`): `server` starts it by itself.

python -m tidelog.cli.worker SOCKET MEMORY

Both are numbers of file descriptors.
"""

from __future__ import annotations

import socket
import sys
from contextlib import closing
from io import FileIO
from typing import Final

from tidelog.broker.telemetry.process_memory import tune_allocator
from tidelog.offload import stand_back
from tidelog.process_channel import Channel
from tidelog.process_offload import serve
from tidelog.wal.roll import segment_roll  # noqa: F401 - what it will be asked for

COMMAND: Final = (sys.executable, "-m", "tidelog.cli.worker")

BACKGROUND_NICENESS: Final = 10
"""Of what rolls, compacts and reads segments. Where it keeps a core busy and clients the others,
the event loop would wait for the system's next tick, some ms, each time that it wakes up: with five
5 to 16 times in a roll of 200 MB, with ten once or twice, with fifteen no less. More would let a
busy machine hold such a worker back for long while it has the interpreter's lock."""


def main() -> None:
    """Until the broker is gone."""
    tune_allocator()
    stand_back(BACKGROUND_NICENESS)
    connection, memory = map(int, sys.argv[1:])
    with closing(Channel(socket.socket(fileno=connection), FileIO(memory, "r+"))) as channel:
        serve(channel)


if __name__ == "__main__":
    main()
