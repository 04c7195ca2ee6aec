"""A worker of an application: `python -m tests.integration.exactly_once_worker BOOTSTRAP ...`.

It copies the messages of one topic to another until it is killed.
"""

from __future__ import annotations

import sys

from tidelog import Consumer, Message, NewMessage, Producer, exactly_once


def main() -> None:
    """Arguments: bootstrap, source topic, sink topic, group, transactional id, group protocol."""
    bootstrap, source, sink, group, transactional_id, protocol = sys.argv[1:]

    def pass_on(message: Message) -> NewMessage:
        return NewMessage(sink, message.value, message.key)

    with (
        Consumer(
            bootstrap,
            source,
            group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            group_protocol=protocol,
        ) as consumer,
        Producer(bootstrap, transactional_id=transactional_id) as producer,
    ):
        exactly_once(consumer, producer, pass_on, batch_records_max=20)


if __name__ == "__main__":
    main()
