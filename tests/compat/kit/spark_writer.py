"""Writes messages to a topic by the Spark sink, in a process with a separate Spark.

python -m tests.compat.kit.spark_writer STORE BOOTSTRAP TOPIC PARQUET FOLDER

`PARQUET` has columns of the sink, such as key and value. Spark keeps its files in `FOLDER`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark.sessions import local_session
from tidelog.spark_source import register


def main() -> None:
    store, bootstrap, topic, messages, folder = sys.argv[1:]
    session = local_session(Path(folder))
    register(session)
    session.read.parquet(messages).write.format("tidelog").options(
        **{"store": store, "kafka.bootstrap.servers": bootstrap, "topic": topic},
        transactionalId="writer",
        batchId="1",
    ).mode("append").save()
    session.stop()


if __name__ == "__main__":
    main()
