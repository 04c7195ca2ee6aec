"""Every request in every state, sent by clients of every version to a whole broker. Each answer has
the error of the coordinator's table, in the code of that version. A refused request changes nothing
that DescribeTransactions shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.unit.broker.one_broker import World, run
from tests.unit.broker.transaction_states import (
    GOES_ON_FROM,
    GROUP_PARTITIONS,
    MANY_FROM,
    Producer,
    States,
    WireRequest,
    add_offsets_request,
    add_request,
    codes_of,
    end_request,
    init_request,
    offsets_request,
    versions,
    wire_requests,
)
from tests.unit.coordinator.transaction.request_table import (
    ABORTABLE,
    CONCURRENT,
    FENCED,
    INVALID_STATE,
    MAPPING,
    REQUESTS,
    Cell,
    E,
)
from tests.unit.coordinator.transaction.transaction_world import TV1, TV2
from tidelog.clock import SystemClock
from tidelog.coordinator.transaction.commands import ANONYMOUS, Command, Identity
from tidelog.coordinator.transaction.log_records import STORED_STATES
from tidelog.coordinator.transaction.states import TransactionState
from tidelog.identifiers import ProducerEpoch, ProducerId
from tidelog.protocol.api import ApiKey
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.transaction_listing import DescribedTransaction
from tidelog.protocol.schemas.transactions import (
    EndTxnResponse,
    InitProducerIdResponse,
)
from tidelog.storage.stores.memory import MemoryStore

SETTINGS = {
    "offsets_topic_num_partitions": GROUP_PARTITIONS,
    "transaction_state_log_num_partitions": 1,
}
STATES = list(STORED_STATES.values())
NONE = ErrorCode.NONE
EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
FENCED_SINCE = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""The versions that know PRODUCER_FENCED."""
ABORTABLE_SINCE = 4
"""The version of TxnOffsetCommit that knows TRANSACTION_ABORTABLE."""


def told(wire: WireRequest, error: ErrorCode) -> ErrorCode:
    """The error's code in this version of the request."""
    api, version = wire.api, wire.version
    if error is FENCED:
        knows = api in FENCED_SINCE and version >= FENCED_SINCE[api]
        return FENCED if knows else EPOCH
    if api is ApiKey.TXN_OFFSET_COMMIT:
        if error is ABORTABLE and version < ABORTABLE_SINCE:
            return INVALID_STATE
        if error is CONCURRENT:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return error


class Table:
    """Asks all requests of one state, and counts them."""

    def __init__(self, states: States) -> None:
        self.states = states
        self.asked: Counter[tuple[ApiKey, int]] = Counter()

    async def check(self, state: TransactionState) -> None:
        """Requests that are refused without effect share one transactional id."""
        shared = {version: await self.states.new(state, version) for version in (TV1, TV2)}
        for name, (version, command, cells) in REQUESTS.items():
            cell = cells[state]
            is_alone = bool(cell.writes) or cell.error is NONE
            for index, _ in enumerate(wire_requests(command, shared[version])):
                producer = await self.states.new(state, version) if is_alone else shared[version]
                wire = list(wire_requests(command, producer))[index]
                await self.ask(f"{name}, {state.label}: {wire}", wire, producer, cell)

    async def ask(self, what: str, wire: WireRequest, producer: Producer, cell: Cell) -> None:
        before = await self.states.described(producer.key)
        response = await self.states.send(wire)
        self.asked[wire.api, wire.version] += 1
        assert set(codes_of(response)) == {told(wire, cell.error)}, what
        after = await self.states.described(producer.key)
        if not cell.writes:
            assert after == before, what
        else:
            check_change(what, before, after, cell)
        if isinstance(response, InitProducerIdResponse) or (
            isinstance(response, EndTxnResponse) and wire.version >= 5
        ):
            told_identity = (response.producer_id, response.producer_epoch)
            if cell.error is NONE:
                assert told_identity == (after.producer_id, after.producer_epoch), what
            else:
                assert response.producer_id == -1, what


def check_change(
    what: str, before: DescribedTransaction, after: DescribedTransaction, cell: Cell
) -> None:
    """No partition holds up its marker, so a decided transaction is also complete."""
    states = [state.label.replace("Prepare", "Complete") for state in cell.writes]
    assert after.transaction_state == states[-1], what
    assert after.producer_id == before.producer_id, what
    assert after.producer_epoch - before.producer_epoch == cell.epoch - E, what
    if after.transaction_state == "Ongoing":
        assert sum(len(topic.partitions) for topic in after.topics) > sum(
            len(topic.partitions) for topic in before.topics
        ), what
    else:
        assert after.topics == [], what


@pytest.mark.parametrize("state", STATES, ids=[state.label for state in STATES])
def test_each_request_is_answered_as_the_table_says_in_every_version(
    state: TransactionState,
) -> None:
    async def story() -> None:
        here = World(MemoryStore(SystemClock()), **SETTINGS)
        async with here.broker() as broker:
            states = States(broker)
            await states.prepare()
            table = Table(states)
            await table.check(state)
            # The test covered every advertised version.
            for api in (*FENCED_SINCE, ApiKey.TXN_OFFSET_COMMIT):
                for version in versions(api):
                    assert table.asked[api, version], (api, version)

    run(story)


def wrong_requests(producer: Producer) -> list[tuple[WireRequest, set[ErrorCode]]]:
    """Requests that are wrong in any state, with their answers."""
    key, who = producer.key, producer.identity
    invalid, found = {ErrorCode.INVALID_REQUEST}, []
    for version in versions(ApiKey.INIT_PRODUCER_ID):
        for timeout_ms in (0, -1, 900_001):
            wire = init_request(key, ANONYMOUS, version, timeout_ms)
            found.append((wire, {ErrorCode.INVALID_TRANSACTION_TIMEOUT}))
        found.append((init_request("", ANONYMOUS, version), invalid))
    for version in versions(ApiKey.INIT_PRODUCER_ID, GOES_ON_FROM):
        halves = (
            Identity(who.producer_id, ProducerEpoch(-1)),
            Identity(ProducerId(-1), who.epoch),
        )
        found += [(init_request(key, half, version), invalid) for half in halves]
    keyed: list[tuple[ApiKey, Callable[[str, int], WireRequest]]] = [
        (ApiKey.ADD_PARTITIONS_TO_TXN, lambda name, version: add_request(name, who, version, 0)),
        (
            ApiKey.ADD_OFFSETS_TO_TXN,
            lambda name, version: add_offsets_request(name, who, version, "g0"),
        ),
        (ApiKey.TXN_OFFSET_COMMIT, lambda name, version: offsets_request(name, who, version, "g1")),
        (ApiKey.END_TXN, lambda name, version: end_request(name, who, version, commit=True)),
    ]
    for api, make in keyed:
        for version in versions(api):
            found += [(make("", version), invalid), (make("nobody", version), {MAPPING})]
    unknown = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    for version in versions(ApiKey.ADD_PARTITIONS_TO_TXN):
        found.append((add_request(key, who, version, 9), unknown))
        wire = add_request(key, who, version, 0, topics={"nowhere": 0})
        found.append((wire, unknown | {ErrorCode.OPERATION_NOT_ATTEMPTED}))
    for version in versions(ApiKey.ADD_PARTITIONS_TO_TXN, MANY_FROM):
        wire = add_request("nobody", who, version, 0, verify_only=True)
        found.append((wire, {MAPPING}))
    no_group = {ErrorCode.INVALID_GROUP_ID}
    for version in versions(ApiKey.ADD_OFFSETS_TO_TXN):
        found.append((add_offsets_request(key, who, version, ""), no_group))
    for version in versions(ApiKey.TXN_OFFSET_COMMIT):
        found.append((offsets_request(key, who, version, ""), no_group))
    return found


@pytest.mark.parametrize("state", STATES, ids=[state.label for state in STATES])
def test_a_wrong_request_is_refused_in_every_state_and_version_and_changes_nothing(
    state: TransactionState,
) -> None:
    async def story() -> None:
        here = World(MemoryStore(SystemClock()), **SETTINGS)
        async with here.broker() as broker:
            states = States(broker)
            await states.prepare()
            producer = await states.new(state, TV1)
            before = await states.described(producer.key)
            for wire, codes in wrong_requests(producer):
                assert set(codes_of(await states.send(wire))) == codes, wire
                assert await states.described(producer.key) == before, wire
            assert (await states.described("nobody")).error_code != 0

    run(story)


def test_commands_of_the_table_are_all_sent() -> None:
    producer = Producer("t", Identity(ProducerId(1), ProducerEpoch(2)))
    commands: list[Command] = [command for _, command, _ in REQUESTS.values()]
    assert all(list(wire_requests(command, producer)) for command in commands)
