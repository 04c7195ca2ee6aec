"""Clients of the SDK in a child of the process that made them: they have no threads there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.unit.sdk.test_producer import values
from tidelog.testing.broker import Broker

PARENT = """
import os, sys
from tidelog import Admin, Consumer, Producer

bootstrap, topic = sys.argv[1:]
producer = Producer(bootstrap, linger_ms=1000)
admin = Admin(bootstrap)
consumer = Consumer(bootstrap, topic, auto_offset_reset="earliest")
while consumer.poll(30) is None:
    pass
# No thread of the three connects any more: a lock that it held would be held in the child for ever.
producer.send(topic, "before the fork")
producer.flush()
admin.topics()
delivery = producer.send(topic, "of the parent")
child = os.fork()
if child == 0:
    uses = [
        lambda: producer.send(topic, "lost"),
        producer.flush,
        delivery.result,
        lambda: consumer.poll(1),
        admin.topics,
        lambda: admin.delete_topic(topic),
    ]
    for use in uses:
        try:
            use()
        except Exception as error:
            print(error)
    producer.close()
    consumer.close()
    assert Admin(bootstrap).topics() == {topic: 1}
    with Producer(bootstrap) as own:
        own.send(topic, "of the child")
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
producer.close()
print(sorted(message.value for message in consumer.to_end()))
consumer.close()
"""


def test_clients_that_were_made_before_a_fork_are_refused_in_the_child(shared: Broker) -> None:
    topic = shared.topic()
    shared.produce(topic, ["before", "held"])
    command = [sys.executable, "-W", "ignore", "-c", PARENT, shared.bootstrap, topic]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert "forked beside clients; it can hang" in run.stderr
    *refused, read = run.stdout.splitlines()
    clients = ["producer", "producer", "producer", "consumer", "admin", "admin"]
    assert [line.partition(" before a fork")[0] for line in refused] == [
        f"the {client} was made" for client in clients
    ]
    later = [b"before the fork", b"held", b"of the child", b"of the parent"]
    assert read == str(later)
    assert sorted(values(shared, topic)) == [b"before", *later]


IN_A_TRANSACTION = """
import os, sys
from tidelog import Producer

bootstrap, topic, fails = sys.argv[1:]
producer = Producer(bootstrap, transactional_id="forked-" + fails, max_block_ms=5000)
try:
    with producer.transaction(commit_timeout=5):
        producer.send(topic, "of the parent")
        producer.flush()
        child = os.fork()
        if child == 0 and fails == "True":
            raise KeyError
    os.waitpid(child, 0)
    producer.close()
except Exception as error:
    print(type(error).__name__, error, flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize("fails", [False, True])
def test_a_child_that_leaves_its_parents_transaction_is_told(shared: Broker, fails: bool) -> None:
    topic = shared.topic()
    command = [sys.executable, "-W", "ignore", "-c", IN_A_TRANSACTION]
    arguments = [shared.bootstrap, topic, str(fails)]
    run = subprocess.run(
        command + arguments, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.stdout.startswith("FatalError the producer was made before a fork"), run.stderr
    assert len(run.stdout.splitlines()) == 1
    assert values(shared, topic) == [b"of the parent"]


EXITS_BESIDE = """
import os, sys
from tidelog import Consumer

bootstrap, topic, group = sys.argv[1:]
consumer = Consumer(bootstrap, topic, group or None, auto_offset_reset="earliest")
while consumer.poll(30) is None:
    pass
child = os.fork()
if child == 0:
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
consumer.close()
"""


@pytest.mark.parametrize("group", ["", "exits-beside"])
def test_a_child_that_exits_beside_its_parents_consumer_does_not_crash(
    shared: Broker, group: str
) -> None:
    topic = shared.topic()
    shared.produce(topic, ["a"])
    command = [sys.executable, "-W", "ignore", "-c", EXITS_BESIDE, shared.bootstrap, topic, group]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (0, "3\n"), run.stderr
