"""Settings of the SDK's clients: Kafka's names, the Java client's defaults, and the rules. Pure.

Where librdkafka's default differs from the Java client's, the Java client's is passed on, except
sizes of batches and queues. `isolation.level` is `read_committed`, unlike the Java client's.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tidelog.errors import InvalidConfiguration

INTEGER_MAX: Final = 2**31 - 1
CONNECTION_DEFAULTS: Final[dict[str, Any]] = {
    "connections.max.idle.ms": 540_000,
    "metadata.max.age.ms": 300_000,
    # Ask the bootstrap addresses again when all known brokers are gone.
    "metadata.recovery.rebootstrap.trigger.ms": 300_000,
    "metadata.recovery.strategy": "rebootstrap",
    "reconnect.backoff.max.ms": 1000,
    "reconnect.backoff.ms": 50,
    "socket.connection.setup.timeout.ms": 10_000,
}
PRODUCER_DEFAULTS: Final[dict[str, Any]] = {
    "acks": "all",
    "compression.type": "none",
    "delivery.timeout.ms": 120_000,
    "enable.idempotence": True,
    "linger.ms": 5,
    "max.in.flight.requests.per.connection": 5,
    "message.max.bytes": 1_048_576,
    "partitioner": "murmur2_random",
    "request.timeout.ms": 30_000,
    "retries": INTEGER_MAX,
}
CONSUMER_DEFAULTS: Final[dict[str, Any]] = {
    "allow.auto.create.topics": True,
    "auto.commit.interval.ms": 5000,
    "auto.offset.reset": "latest",
    "check.crcs": True,
    "enable.auto.commit": True,
    # The Java client knows no such pause: with librdkafka's second, a fast reader waits for it.
    "fetch.queue.backoff.ms": 10,
    "isolation.level": "read_committed",
    "max.poll.interval.ms": 300_000,
}
CLASSIC_GROUP_DEFAULTS: Final[dict[str, Any]] = {
    "heartbeat.interval.ms": 3000,
    # The first that Java's default shares with groups of the eager protocol.
    "partition.assignment.strategy": "range",
    "session.timeout.ms": 45_000,
}
TRANSACTION_TIMEOUT_MS: Final = 60_000
TRANSACTION_IDLE_MS: Final = 2_000
"""`connections.max.idle.ms` of a transactional producer.

When a group's coordinator dies, librdkafka waits without end to send it a transaction's offsets
(its issues 5456 and 5511). It looks for the new coordinator when another connection ends. From 4 s
on librdkafka shortens the time by chance, and its connections may end too close to each other.
"""
BLOCK_MS_MAX: Final = 60_000
POLL_RECORDS_MAX: Final = 500
NO_GROUP: Final = "tidelog-no-group"
"""librdkafka asks every consumer for a group id. A consumer without a group joins none."""

_JAVA_ONLY: Final = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
}
"""The Java client's names, and librdkafka's for the same setting."""
_ALIASES: Final = {
    "bootstrap.servers": ("metadata.broker.list",),
    "acks": ("request.required.acks",),
    "compression.type": ("compression.codec",),
    "delivery.timeout.ms": ("message.timeout.ms",),
    "linger.ms": ("queue.buffering.max.ms",),
    "max.in.flight.requests.per.connection": ("max.in.flight",),
    "retries": ("message.send.max.retries",),
}
"""librdkafka's other names for a setting."""
_PRODUCERS_ONLY: Final = frozenset(PRODUCER_DEFAULTS) - {"message.max.bytes"} | {
    "batch.size",
    "transaction.timeout.ms",
    "transactional.id",
}
_CONSUMERS_ONLY: Final = frozenset(CONSUMER_DEFAULTS | CLASSIC_GROUP_DEFAULTS) | {
    "group.id",
    "group.instance.id",
    "group.protocol",
    "max.poll.records",
}
_KNOWN: Final = sorted(
    {
        *CONNECTION_DEFAULTS,
        *_PRODUCERS_ONLY,
        *_CONSUMERS_ONLY,
        *_JAVA_ONLY,
        "bootstrap.servers",
        "buffer.memory",
        "client.id",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "max.block.ms",
        "max.partition.fetch.bytes",
        "message.max.bytes",
        "sasl.mechanism",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "ssl.ca.location",
    }
)


class ClientConfiguration(NamedTuple):
    """The configuration of an SDK client: librdkafka's part, and its own."""

    passed: dict[str, Any]
    """For librdkafka."""
    block_ms_max: int
    """`max.block.ms`: how long a call may wait for a broker or for room in the queue."""
    poll_records_max: int = POLL_RECORDS_MAX
    """`max.poll.records`: messages that a consumer takes at once."""


def producer_configuration(bootstrap: str, given: Mapping[str, Any]) -> ClientConfiguration:
    """A producer's settings. Raises InvalidConfiguration with the rule that they break."""
    named = _named(bootstrap, given)
    _refuse(named, _CONSUMERS_ONLY, "a setting of consumers; a producer has no use for it")
    block_ms = _taken(named, "max.block.ms", BLOCK_MS_MAX)
    if "buffer.memory" in named:
        kilobytes = -(-_taken(named, "buffer.memory", 0) // 1024)
        named["queue.buffering.max.kbytes"] = kilobytes
    passed = CONNECTION_DEFAULTS | PRODUCER_DEFAULTS | named
    _settle_idempotence(named, passed)
    _settle_transactions(named, passed)
    linger, request, delivery = (
        number_of(passed, name)
        for name in ("linger.ms", "request.timeout.ms", "delivery.timeout.ms")
    )
    if linger + request > delivery:
        raise InvalidConfiguration(
            f"delivery.timeout.ms={delivery} must be at least linger.ms + request.timeout.ms"
            f" = {linger + request}: raise it or lower those"
        )
    return ClientConfiguration(passed, block_ms)


def consumer_configuration(
    bootstrap: str, group: str | None, given: Mapping[str, Any]
) -> ClientConfiguration:
    """A consumer's settings. Raises InvalidConfiguration with the rule that they break."""
    named = _named(bootstrap, given)
    _refuse(named, _PRODUCERS_ONLY, "a setting of producers; a consumer has no use for it")
    _refuse(named, {"group.id"}, 'given as group="...", the third argument')
    _refuse(
        named,
        {"enable.auto.offset.store", "enable.partition.eof"},
        "set by Consumer: an offset counts as consumed when the next message is asked for",
    )
    if group == "":
        raise InvalidConfiguration("group: an empty name is no group; leave it out or name one")
    block_ms = _taken(named, "max.block.ms", BLOCK_MS_MAX)
    records_max = _taken(named, "max.poll.records", POLL_RECORDS_MAX)
    if not 1 <= records_max <= 1_000_000:
        raise InvalidConfiguration(f"max.poll.records={records_max} is not in 1 to 1000000")
    _check_choice(named, "isolation.level", ("read_committed", "read_uncommitted"))
    _check_choice(
        named, "auto.offset.reset", ("earliest", "latest", "none", "error", "smallest", "largest")
    )
    passed = CONNECTION_DEFAULTS | CONSUMER_DEFAULTS | _group_settings(group, named) | named
    if passed["auto.offset.reset"] == "none":
        passed["auto.offset.reset"] = "error"
    passed["enable.auto.offset.store"] = False
    # Only a consumer without a group reads up to an end.
    passed["enable.partition.eof"] = group is None
    return ClientConfiguration(passed, block_ms, records_max)


def admin_configuration(bootstrap: str, given: Mapping[str, Any]) -> ClientConfiguration:
    """An administrator's settings. Raises InvalidConfiguration."""
    named = _named(bootstrap, given)
    _refuse(named, _PRODUCERS_ONLY | _CONSUMERS_ONLY, "no setting of an Admin")
    block_ms = _taken(named, "max.block.ms", BLOCK_MS_MAX)
    return ClientConfiguration(CONNECTION_DEFAULTS | named, block_ms)


def unknown_setting(message: str) -> InvalidConfiguration:
    """librdkafka's refusal of a setting, with the name that may have been meant."""
    name = message.partition('"')[2].partition('"')[0]
    close = difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.75) if name else []
    hint = f"; did you mean {close[0]}?" if close and close[0] != name else ""
    return InvalidConfiguration(f"{message}{hint}")


def number_of(settings: Mapping[str, Any], name: str) -> int:
    """A setting's whole number. Raises InvalidConfiguration."""
    value = settings[name]
    try:
        if isinstance(value, bool):
            raise ValueError
        return int(value)
    except (TypeError, ValueError):
        raise InvalidConfiguration(f"{name}={value!r} is not a whole number") from None


def boolean_of(settings: Mapping[str, Any], name: str) -> bool:
    """A setting's truth value. Raises InvalidConfiguration."""
    text = str(settings[name]).lower()
    if text not in ("true", "false"):
        raise InvalidConfiguration(f"{name}={settings[name]!r} is neither true nor false")
    return text == "true"


def _named(bootstrap: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by librdkafka's names, with the bootstrap addresses."""
    if not isinstance(bootstrap, str) or not bootstrap.strip():
        raise InvalidConfiguration(
            'bootstrap: give the address of a broker, as in "127.0.0.1:9092", or several with'
            " commas between"
        )
    if "://" in bootstrap:
        raise InvalidConfiguration(
            f"bootstrap: {bootstrap!r} is a URL; give HOST:PORT of a broker's Kafka listener"
        )
    named: dict[str, Any] = {}
    for written, value in given.items():
        is_callback = written.endswith("_cb") or written in ("on_commit", "logger")
        name = written if is_callback else written.replace("_", ".")
        name = _canonical(_JAVA_ONLY.get(name, name))
        if name in named:
            raise InvalidConfiguration(f"{name} is given twice, once as {written}")
        if value is None:
            raise InvalidConfiguration(f"{name}=None: leave the setting out to take its default")
        named[name] = value
    _refuse(named, {"bootstrap.servers"}, "given as bootstrap, the first argument")
    return {"bootstrap.servers": bootstrap} | named


def _canonical(name: str) -> str:
    return next((known for known, others in _ALIASES.items() if name in others), name)


def _refuse(named: Mapping[str, Any], names: set[str] | frozenset[str], why: str) -> None:
    for name in sorted(names & named.keys()):
        raise InvalidConfiguration(f"{name} is {why}")


def _taken(named: dict[str, Any], name: str, default: int) -> int:
    """A setting of the SDK itself, which librdkafka does not know."""
    if name not in named:
        return default
    value = number_of(named, name)
    del named[name]
    if value < 0:
        raise InvalidConfiguration(f"{name}={value} is negative")
    return value


def _check_choice(named: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> None:
    if name in named and named[name] not in choices:
        raise InvalidConfiguration(f"{name}={named[name]!r} is none of {', '.join(choices)}")


def _settle_idempotence(named: Mapping[str, Any], passed: dict[str, Any]) -> None:
    """Kafka's rules: idempotence needs acks=all, retries, and at most five requests in flight.

    If `enable.idempotence` is not given, other acks or no retries turn it off, as in Java.
    """
    is_asked = "enable.idempotence" in named
    wanted = boolean_of(passed, "enable.idempotence")
    if not wanted:
        return
    has_acks = str(passed["acks"]) in ("all", "-1")
    has_retries = number_of(passed, "retries") > 0
    if number_of(passed, "max.in.flight.requests.per.connection") > 5:
        raise InvalidConfiguration(
            "max.in.flight.requests.per.connection must be at most 5 for an idempotent producer:"
            " a broker recognises the last five batches; lower it or set enable.idempotence=false"
        )
    if has_acks and has_retries:
        return
    broken = "acks" if not has_acks else "retries"
    rule = "acks must be all" if not has_acks else "retries must be above 0"
    if is_asked or "transactional.id" in named:
        needs = "enable.idempotence=true" if is_asked else "transactional.id"
        raise InvalidConfiguration(
            f"{broken}={passed[broken]} with {needs}: {rule} for an idempotent producer"
        )
    passed["enable.idempotence"] = False


def _settle_transactions(named: Mapping[str, Any], passed: dict[str, Any]) -> None:
    if "transactional.id" not in named:
        _refuse(
            named,
            {"transaction.timeout.ms"},
            "of use only with transactional.id: give that too, or leave it out",
        )
        return
    if not str(named["transactional.id"]):
        raise InvalidConfiguration("transactional.id is empty: name it, stable and unique")
    if not boolean_of(passed, "enable.idempotence"):
        raise InvalidConfiguration(
            "transactional.id with enable.idempotence=false: a transactional producer is"
            " idempotent; leave enable.idempotence out"
        )
    if "connections.max.idle.ms" not in named:
        passed["connections.max.idle.ms"] = TRANSACTION_IDLE_MS
    passed.setdefault("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
    timeout = number_of(passed, "transaction.timeout.ms")
    if "delivery.timeout.ms" not in named:
        # librdkafka refuses more: such a message could arrive after its transaction's end.
        passed["delivery.timeout.ms"] = min(timeout, passed["delivery.timeout.ms"])
        if "request.timeout.ms" not in named:
            left = passed["delivery.timeout.ms"] - number_of(passed, "linger.ms")
            passed["request.timeout.ms"] = max(1, min(passed["request.timeout.ms"], left))
    elif number_of(named, "delivery.timeout.ms") > timeout:
        raise InvalidConfiguration(
            f"delivery.timeout.ms={named['delivery.timeout.ms']} is above"
            f" transaction.timeout.ms={timeout}: a message must not outlast its transaction"
        )


def _group_settings(group: str | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that follow from the group and its protocol."""
    classic_only = set(CLASSIC_GROUP_DEFAULTS)
    if group is None:
        _refuse(
            named,
            {"group.instance.id", "group.protocol", "auto.commit.interval.ms"} | classic_only,
            'of use only in a group: give group="..." or leave it out',
        )
        if "enable.auto.commit" in named and boolean_of(named, "enable.auto.commit"):
            raise InvalidConfiguration(
                "enable.auto.commit=true without a group: offsets are committed for a group; give"
                ' group="..." or leave it out'
            )
        return {"group.id": NO_GROUP, "enable.auto.commit": False}
    settings: dict[str, Any] = {"group.id": group}
    _check_choice(named, "group.protocol", ("classic", "consumer"))
    if named.get("group.protocol") == "consumer":
        _refuse(
            named,
            classic_only,
            "of the classic protocol; with group.protocol=consumer the broker decides it",
        )
        return settings
    settings |= CLASSIC_GROUP_DEFAULTS
    merged = CONSUMER_DEFAULTS | settings | dict(named)
    session = number_of(merged, "session.timeout.ms")
    if number_of(merged, "heartbeat.interval.ms") >= session:
        raise InvalidConfiguration(
            f"heartbeat.interval.ms={merged['heartbeat.interval.ms']} must be below"
            f" session.timeout.ms={session}"
        )
    if number_of(merged, "max.poll.interval.ms") < session:
        raise InvalidConfiguration(
            f"max.poll.interval.ms={merged['max.poll.interval.ms']} must be at least"
            f" session.timeout.ms={session}"
        )
    return settings
