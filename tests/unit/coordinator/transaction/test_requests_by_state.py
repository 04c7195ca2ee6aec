"""Every request in every state: its answer, and the record that is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.coordinator.transaction.request_table import (
    DIFFERENCES,
    EMPTY,
    FRESH_PID,
    MAPPING,
    NO,
    ONGOING,
    PID,
    PREPARE_ABORT,
    REQUESTS,
    Cell,
    Difference,
    E,
    error_of,
    init,
    stored,
)
from tests.unit.coordinator.transaction.transaction_world import (
    START_MS,
    TIMEOUT_MS,
    TV1,
    TV2,
    TXN,
    P,
    TransactionWorld,
    identity,
)
from tidelog.coordinator.transaction.commands import (
    ANONYMOUS,
    AddPartitions,
    Command,
    EndTransaction,
    Identity,
    IdentityReply,
    InitProducer,
    VerifyPartitions,
)
from tidelog.coordinator.transaction.log_records import STORED_STATES, TransactionStored
from tidelog.coordinator.transaction.states import TransactionState
from tidelog.protocol.error_codes import ErrorCode

CELLS = [
    pytest.param(version, command, state, cell, id=f"{name}-{state.label}")
    for name, (version, command, cells) in REQUESTS.items()
    for state, cell in cells.items()
]


@pytest.mark.parametrize(("version", "command", "state", "cell"), CELLS)
def test_the_table(version: int, command: Command, state: TransactionState, cell: Cell) -> None:
    world = TransactionWorld()
    before = stored(state, version)
    world.put(before)
    world.monotonic_ms = 5
    reply = world.replies[world.submit(command)]
    assert error_of(reply) is cell.error
    written = [record for record in world.log[1:] if isinstance(record, TransactionStored)]
    assert tuple(record.transaction.state for record in written) == cell.writes
    after = world.transaction
    assert (after.producer_epoch, after.last_epoch) == (cell.epoch, cell.last_epoch)
    if not cell.writes:
        assert after == before
    else:
        assert after.updated_ms == START_MS + 5
    if isinstance(reply, IdentityReply) and reply.error is ErrorCode.NONE:
        assert (reply.producer_id, reply.epoch) == (PID, after.producer_epoch)
    began = after.state is ONGOING and state is not ONGOING
    assert after.ordinal == before.ordinal + began


def test_the_table_has_a_cell_for_every_request_in_every_state(
    capsys: pytest.CaptureFixture[str],
) -> None:
    states = list(STORED_STATES.values())
    lines = []
    for name, (_, _, cells) in REQUESTS.items():
        assert list(STORED_STATES.values()) == sorted(cells), name
        shown = [
            f"{'' if cells[state].error is ErrorCode.NONE else int(cells[state].error)} "
            f"{'+'.join(written.label for written in cells[state].writes)}".strip()
            or "none"
            for state in states
        ]
        lines.append(f"  {name:36}" + "".join(f"{each:28}" for each in shown))
    with capsys.disabled():
        print(f"\n{len(CELLS)} cells: {len(REQUESTS)} requests in {len(states)} states")
        print(f"  {'':36}" + "".join(f"{state.label:28}" for state in states))
        print("\n".join(lines))
        print(f"{len(DIFFERENCES)} cells differ from Kafka's:")
        for (name, state), kafka in DIFFERENCES.items():
            print(f"  {name}, {state.label} (there {kafka.error.name}): {kafka.why}")


@pytest.mark.parametrize(("place", "kafka"), DIFFERENCES.items())
def test_each_listed_difference_from_kafka_exists(
    place: tuple[str, TransactionState], kafka: Difference
) -> None:
    name, state = place
    cell = REQUESTS[name][2][state]
    assert (cell.error, cell.last_epoch) != (kafka.error, kafka.last_epoch)


@pytest.mark.parametrize("version", [TV1, TV2])
@pytest.mark.parametrize("state", STORED_STATES.values())
def test_the_sweep_fences_and_aborts_only_ongoing_transactions(
    state: TransactionState, version: int
) -> None:
    world = TransactionWorld()
    before = stored(state, version)
    world.put(before)
    world.advance(TIMEOUT_MS)
    assert world.transaction == before
    world.advance(world.settings.timeout_check_interval_ms + 1)
    after = world.transaction
    if state is ONGOING:
        assert (after.state, after.producer_epoch, after.last_epoch) == (PREPARE_ABORT, E + 1, NO)
        assert [(each.producer_epoch, each.commit) for each in world.markers] == [(E + 1, False)]
    else:
        assert after == before
        assert world.markers == []


def test_an_unknown_id_is_created_at_epoch_0() -> None:
    world = TransactionWorld()
    reply = world.ask(init(), IdentityReply)
    assert (reply.error, reply.producer_id, reply.epoch) == (ErrorCode.NONE, FRESH_PID, 0)
    assert world.transaction.state is EMPTY
    assert world.transaction.last_epoch == NO


BLANK: list[tuple[Callable[[str], Command], ErrorCode]] = [
    (lambda key: InitProducer(transactional_id=key, timeout_ms=1), ErrorCode.NONE),
    (
        lambda key: AddPartitions(
            transactional_id=key,
            identity=identity(PID, E),
            partitions=frozenset({P}),
            client_version=TV1,
        ),
        MAPPING,
    ),
    (
        lambda key: VerifyPartitions(
            transactional_id=key, identity=identity(PID, E), partitions=frozenset({P})
        ),
        MAPPING,
    ),
    (
        lambda key: EndTransaction(
            transactional_id=key, identity=identity(PID, E), commit=True, client_version=TV2
        ),
        MAPPING,
    ),
]


@pytest.mark.parametrize(("make", "when_unknown"), BLANK)
def test_an_empty_id_is_invalid_and_an_unknown_one_maps_to_no_producer(
    make: Callable[[str], Command], when_unknown: ErrorCode
) -> None:
    world = TransactionWorld()
    assert error_of(world.replies[world.submit(make(""))]) is ErrorCode.INVALID_REQUEST
    unknown = world.replies[world.submit(make("unknown"))]
    if when_unknown is not ErrorCode.NONE:
        assert error_of(unknown) is when_unknown
    assert world.log == []


@pytest.mark.parametrize(
    ("who", "timeout_ms", "error"),
    [
        (identity(PID, -1), 1, ErrorCode.INVALID_REQUEST),
        (identity(-1, E), 1, ErrorCode.INVALID_REQUEST),
        (ANONYMOUS, 0, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (ANONYMOUS, -1, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (ANONYMOUS, 900_001, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (ANONYMOUS, 900_000, ErrorCode.NONE),
        (ANONYMOUS, 1, ErrorCode.NONE),
    ],
)
@pytest.mark.parametrize("is_known", [False, True])
def test_an_illegal_initialisation_changes_nothing(
    who: Identity, timeout_ms: int, error: ErrorCode, is_known: bool
) -> None:
    world = TransactionWorld()
    if is_known:
        world.put(stored(EMPTY, TV1))
    written = len(world.log)
    command = InitProducer(
        transactional_id=TXN, timeout_ms=timeout_ms, identity=who, fresh_id=FRESH_PID
    )
    assert world.ask(command, IdentityReply).error is error
    assert len(world.log) - written == (error is ErrorCode.NONE)
