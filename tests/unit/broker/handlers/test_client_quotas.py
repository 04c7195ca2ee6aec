"""DescribeClientQuotas and AlterClientQuotas."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.broker.administered import AdministeredBroker, administer, new_broker
from tests.unit.coordinator.cluster.samples import registered
from tidelog.broker.handlers.configs import client_quotas as handlers
from tidelog.broker.handlers.configs.client_quotas import (
    MatchType,
    alter_client_quotas,
    describe_client_quotas,
)
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.records import LEVEL_VERSION
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.security.quotas import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    QuotaAlteration,
    QuotaEntityPart,
    QuotaFilter,
    QuotaOperation,
)
from tidelog.storage.stores.memory import MemoryStore

Entity = Mapping[str, str | None]
"""Names by type. None stands for the default."""
USER: Entity = {"user": "alice"}
CLIENT: Entity = {"client-id": "app"}
BOTH: Entity = {"user": "alice", "client-id": "app"}
DEFAULTS: Entity = {"user": None, "client-id": None}
IP: Entity = {"ip": "10.0.0.1"}
RATE = {"producer_byte_rate": 1000.0}


def entry(entity: Entity, values: Mapping[str, float | None]) -> QuotaAlteration:
    return QuotaAlteration(
        entity=[QuotaEntityPart(entity_type=kind, entity_name=n) for kind, n in entity.items()],
        ops=[
            QuotaOperation(key=key, value=value or 0.0, remove=value is None)
            for key, value in values.items()
        ],
    )


async def alter(
    broker: AdministeredBroker,
    *entries: QuotaAlteration,
    version: int = 1,
    validate_only: bool = False,
) -> list[tuple[dict[str, str | None], int, str | None]]:
    """The entities of the answer, each with its error."""
    request = AlterClientQuotasRequest(entries=[*entries], validate_only=validate_only)
    answer = await broker.ask(alter_client_quotas, request, version)
    return [
        (
            {part.entity_type: part.entity_name for part in each.entity},
            each.error_code,
            each.error_message,
        )
        for each in answer.entries
    ]


async def ask_for(
    broker: AdministeredBroker,
    *components: tuple[str, int, str | None],
    strict: bool = False,
    version: int = 1,
) -> Any:
    filters = [QuotaFilter(entity_type=k, match_type=t, match=m) for k, t, m in components]
    request = DescribeClientQuotasRequest(components=filters, strict=strict)
    return await broker.ask(describe_client_quotas, request, version)


async def described(
    broker: AdministeredBroker, *components: tuple[str, int, str | None], **more: Any
) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    answer = await ask_for(broker, *components, **more)
    assert (answer.error_code, answer.error_message) == (0, None)
    return [
        (
            {part.entity_type: part.entity_name for part in each.entity},
            {value.key: value.value for value in each.values},
        )
        for each in answer.entries
    ]


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_set_described_changed_and_removed(version: int) -> None:
    async def story(broker: AdministeredBroker) -> None:
        assert await described(broker, version=version) == []
        found = await alter(
            broker,
            entry(USER, {**RATE, "request_percentage": 12.5}),
            entry(DEFAULTS, {"controller_mutation_rate": 0.5}),
            entry(IP, {"connection_creation_rate": 5.0}),
            version=version,
        )
        assert found == [(dict(each), 0, None) for each in (USER, DEFAULTS, IP)]
        sequence = broker.state.sequence
        assert await described(broker, version=version) == [
            (USER, {**RATE, "request_percentage": 12.5}),
            (DEFAULTS, {"controller_mutation_rate": 0.5}),
            (IP, {"connection_creation_rate": 5.0}),
        ]
        # A repeated request, after a lost answer, changes nothing.
        await alter(broker, entry(USER, RATE), entry(CLIENT, {"consumer_byte_rate": None}))
        assert broker.state.sequence == sequence
        await alter(broker, entry(USER, {"producer_byte_rate": None, "consumer_byte_rate": 7.0}))
        await alter(broker, entry(DEFAULTS, {"controller_mutation_rate": None}))
        assert await described(broker, version=version) == [
            (USER, {"request_percentage": 12.5, "consumer_byte_rate": 7.0}),
            (IP, {"connection_creation_rate": 5.0}),
        ]

    administer(story)


def test_filters_select_by_name_default_and_type() -> None:
    every = (USER, CLIENT, BOTH, {"user": "alice", "client-id": None}, DEFAULTS)
    table: Sequence[tuple[Sequence[tuple[str, int, str | None]], bool, Sequence[Entity]]] = [
        ((), False, every),
        ((), True, ()),
        ((("user", MatchType.EXACT, "alice"),), False, (USER, BOTH, every[3])),
        ((("user", MatchType.EXACT, "alice"),), True, (USER,)),
        ((("user", MatchType.EXACT, "bob"),), False, ()),
        ((("user", MatchType.EXACT, ""),), False, ()),
        ((("user", MatchType.DEFAULT, None),), False, (DEFAULTS,)),
        ((("user", MatchType.DEFAULT, None),), True, ()),
        ((("user", MatchType.SPECIFIED, None),), False, (USER, BOTH, every[3], DEFAULTS)),
        ((("client-id", MatchType.SPECIFIED, None),), True, (CLIENT,)),
        (
            (("user", MatchType.EXACT, "alice"), ("client-id", MatchType.DEFAULT, None)),
            True,
            (every[3],),
        ),
        (
            (("user", MatchType.SPECIFIED, None), ("client-id", MatchType.SPECIFIED, None)),
            True,
            (BOTH, every[3], DEFAULTS),
        ),
        ((("ip", MatchType.SPECIFIED, None),), False, ()),
    ]

    async def story(broker: AdministeredBroker) -> None:
        await alter(broker, *[entry(entity, RATE) for entity in every])
        for components, strict, wanted in table:
            found = await described(broker, *components, strict=strict)
            assert [entity for entity, _ in found] == [*wanted], (components, strict)

    administer(story)


@pytest.mark.parametrize(
    ("components", "code", "why"),
    [
        ([("", 0, "a")], ErrorCode.INVALID_REQUEST, "Invalid empty entity type."),
        ([("group", 0, "a")], ErrorCode.UNSUPPORTED_VERSION, "Unsupported entity type group"),
        ([("user", 0, "a"), ("user", 2, None)], ErrorCode.INVALID_REQUEST, "more than once"),
        ([("user", 0, None)], ErrorCode.INVALID_REQUEST, "set match string to null"),
        ([("user", 1, "a")], ErrorCode.INVALID_REQUEST, "MATCH_TYPE_DEFAULT, but also"),
        ([("user", 2, "a")], ErrorCode.INVALID_REQUEST, "MATCH_TYPE_SPECIFIED, but also"),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST, "Unknown match type 3"),
        ([("user", 2, None), ("ip", 2, None)], ErrorCode.INVALID_REQUEST, "combination"),
    ],
)
def test_filters_that_make_no_sense_are_refused(
    components: Sequence[tuple[str, int, str | None]], code: ErrorCode, why: str
) -> None:
    async def story(broker: AdministeredBroker) -> None:
        answer = await ask_for(broker, *components)
        assert answer.error_code == code
        assert why in answer.error_message
        assert answer.entries is None

    administer(story)


@pytest.mark.parametrize(
    ("entity", "values", "why"),
    [
        ({}, RATE, "Invalid empty client quota entity"),
        ({"group": "a"}, RATE, "Unhandled client quota entity type: group"),
        ({"user": ""}, RATE, "Empty user not supported"),
        ({"user": "a", "ip": "10.0.0.1"}, RATE, "should not be combined"),
        ({"ip": "harbour"}, {"connection_creation_rate": 5.0}, "not a valid IP"),
        (IP, RATE, "Invalid configuration key producer_byte_rate"),
        (USER, {"connection_creation_rate": 5.0}, "Invalid configuration key"),
        (USER, {"bytes": 5.0}, "Invalid configuration key bytes"),
        (USER, {"producer_byte_rate": 0.0}, "must be greater than 0"),
        (USER, {"producer_byte_rate": -5.0}, "must be greater than 0"),
        (USER, {"producer_byte_rate": 5.5}, "cannot be a fractional value"),
    ],
)
def test_a_refused_entity_keeps_its_quotas_and_others_change(
    entity: Entity, values: Mapping[str, float], why: str
) -> None:
    async def story(broker: AdministeredBroker) -> None:
        refused, changed = await alter(broker, entry(entity, values), entry(CLIENT, RATE))
        assert refused[:2] == (dict(entity), ErrorCode.INVALID_REQUEST)
        assert why in str(refused[2])
        assert changed == (dict(CLIENT), 0, None)
        assert await described(broker) == [(CLIENT, RATE)]

    administer(story)


def test_an_entity_or_a_key_that_occurs_twice_is_refused() -> None:
    async def story(broker: AdministeredBroker) -> None:
        ((_, code, why),) = await alter(broker, entry(USER, RATE), entry(USER, RATE))
        assert (code, "duplicate entity" in str(why)) == (ErrorCode.INVALID_REQUEST, True)
        twice = entry(USER, RATE)
        twice.ops *= 2
        ((_, code, why),) = await alter(broker, twice)
        assert (code, "Duplicate quota key" in str(why)) == (ErrorCode.INVALID_REQUEST, True)
        assert await described(broker) == []

    administer(story)


def test_a_validation_finds_faults_and_changes_nothing() -> None:
    async def story(broker: AdministeredBroker) -> None:
        sequence = broker.state.sequence
        found = await alter(
            broker, entry(USER, RATE), entry(CLIENT, {"x": 1.0}), validate_only=True
        )
        assert [code for _, code, _ in found] == [0, ErrorCode.INVALID_REQUEST]
        assert broker.state.sequence == sequence

    administer(story)


def test_one_request_changes_a_limited_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "CHANGES_MAX", 1)

    async def story(broker: AdministeredBroker) -> None:
        found = await alter(broker, entry(USER, RATE), entry(CLIENT, RATE))
        assert [code for _, code, _ in found] == [ErrorCode.POLICY_VIOLATION] * 2
        assert await described(broker) == []
        assert [code for _, code, _ in await alter(broker, entry(USER, RATE))] == [0]

    administer(story)


def test_two_brokers_change_different_keys_of_one_entity() -> None:
    """Each broker starts from the newest quotas, so neither undoes the other's change."""

    async def story() -> None:
        store = MemoryStore(SystemClock())
        first, second = await new_broker(store, 1), await new_broker(store, 2)
        await first.metadata.refresh()
        await asyncio.gather(
            alter(first, entry(USER, RATE)), alter(second, entry(USER, {"consumer_byte_rate": 5.0}))
        )
        wanted = [(USER, {**RATE, "consumer_byte_rate": 5.0})]
        for broker in (first, second):
            assert await described(broker) == wanted
            await broker.metadata.close()

    asyncio.run(story())


def test_while_a_broker_of_an_earlier_release_lives_there_are_no_quotas() -> None:
    async def story(broker: AdministeredBroker) -> None:
        old = replace(registered(2), version=LEVEL_VERSION)
        await broker.metadata.append(None, lambda _: (old,))
        ((_, code, why),) = await alter(broker, entry(USER, RATE))
        assert code == ErrorCode.UNSUPPORTED_VERSION
        assert "cannot read QuotasChanged: 2; upgrade them first" in str(why)
        assert await described(broker) == []

    administer(story)
