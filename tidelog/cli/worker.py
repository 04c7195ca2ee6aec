"""The worker process beside a broker (`process_offload`), which `server` starts.

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
from tidelog.wal.roll import segment_roll  # noqa: F401 - the broker's requests name it
from tidelog.workers.offload import lower_priority
from tidelog.workers.process_channel import Channel
from tidelog.workers.process_offload import serve

COMMAND: Final = (sys.executable, "-m", "tidelog.cli.worker")

BACKGROUND_NICENESS: Final = 10
"""The niceness of workers that roll, compact and read segments.

If a worker keeps one core busy and clients the others, the event loop may wait some ms, the
system's next tick, at each wake-up. With niceness 5 that happened 5 to 16 times in a roll of 200
MB, with 10 once or twice, with 15 no less. More would let a busy machine suspend a worker for long
while it holds the interpreter's lock.
"""


def main() -> None:
    """Work until the broker is gone."""
    tune_allocator()
    lower_priority(BACKGROUND_NICENESS)
    connection, memory = map(int, sys.argv[1:])
    with closing(Channel(socket.socket(fileno=connection), FileIO(memory, "r+"))) as channel:
        serve(channel)


if __name__ == "__main__":
    main()
