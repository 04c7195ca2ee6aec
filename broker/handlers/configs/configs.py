"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from tidelog.broker.handlers.configs.described_settings import described_settings
from tidelog.broker.handlers.metadata_change import ChangeFailed, change_metadata
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import ClusterServices
from tidelog.broker.settings.config_changes import (
    Change,
    ConfigRefused,
    ConfigResourceType,
    ConfiguredResource,
    find_resource,
    incremented,
    replaced,
    topic_id_of,
)
from tidelog.broker.settings.group_config import GroupConfig
from tidelog.broker.settings.kinds import SettingType
from tidelog.broker.settings.settings import ConfigEntry
from tidelog.coordinator.cluster.records.records import ConfigsChanged, ConfigScope, Record
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.made_list import made_list
from tidelog.protocol.schemas.cluster.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)


class NamedResource(Protocol):
    """The fields that all requests about settings have."""

    resource_type: int
    resource_name: str


R = TypeVar("R", bound=NamedResource)
A = TypeVar("A")

SLICE_DESCRIBED = 4
"""Resources that a slice describes: each has dozens of settings."""
PART_ALTERED = 64
"""Resources that a slice alters."""


async def describe_configs(
    broker: ClusterServices, request: DescribeConfigsRequest, _context: RequestContext
) -> DescribeConfigsResponse:
    """The effective settings of topics, groups and this broker, with their sources.

    A resource named more than once is answered once.
    """
    asked = {(each.resource_type, each.resource_name): each for each in request.resources}
    described = (_describe(broker, request, each) for each in asked.values())
    return DescribeConfigsResponse(results=await broker.turns.list_of(described, SLICE_DESCRIBED))


def _describe(
    broker: ClusterServices, request: DescribeConfigsRequest, asked: DescribeConfigsResource
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        error_message=None, resource_type=asked.resource_type, resource_name=asked.resource_name
    )
    try:
        resource = find_resource(
            broker.metadata.state,
            asked.resource_type,
            asked.resource_name,
            broker.incarnation.broker_id,
        )
        entries = _entries(broker, resource, asked.configuration_keys)
    except ConfigRefused as error:
        result.error_code = error.code
        result.error_message = str(error)
    else:
        result.configs = [_described(entry, request) for entry in entries]
    return result


def _entries(
    broker: ClusterServices, resource: ConfiguredResource, keys: Sequence[str] | None
) -> Iterable[ConfigEntry]:
    """The settings of these names, or all without names; unknown names are ignored."""
    wanted = set(keys or ())
    if resource.scope is ConfigScope.CLUSTER:
        entries = broker.settings.default_entries()
        return [entry for entry in entries if not wanted or entry.setting.name in wanted]
    names = [name for name in resource.table if not wanted or name in wanted]
    if resource.scope is ConfigScope.TOPIC:
        config = broker.topic_config(topic_id_of(resource))
        return [config.entry(name) for name in names]
    if resource.scope is ConfigScope.GROUP:
        overrides = broker.metadata.state.configs(resource.scope, resource.name)
        group = GroupConfig(overrides, broker.settings)
        return [group.entry(name) for name in names]
    told = [
        each for each in described_settings(broker) if not wanted or each.setting.name in wanted
    ]
    facts = {each.setting.name for each in told}
    return [*(broker.settings.entry(name) for name in names if name not in facts), *told]


def _described(
    entry: ConfigEntry, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    setting = entry.setting
    is_secret = setting.kind is SettingType.PASSWORD
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=None if is_secret else entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=is_secret,
        synonyms=[
            DescribeConfigsSynonym(
                name=each.name, value=None if is_secret else each.value, source=each.source
            )
            for each in entry.synonyms
        ]
        if request.include_synonyms
        else [],
        config_type=setting.kind,
        documentation=setting.doc if request.include_documentation else None,
    )


RESOURCE_TYPES_FROM = 1
"""The version of ListConfigResources with other types than client metrics."""


async def list_config_resources(
    broker: ClusterServices, request: ListConfigResourcesRequest, context: RequestContext
) -> ListConfigResourcesResponse:
    """The resources with settings: all topics, all brokers, groups with settings of their own.

    Kafka also lists loggers and client metrics subscriptions; Tidelog has none.
    """
    types: Sequence[int] = (ConfigResourceType.CLIENT_METRICS,)
    if context.api_version >= RESOURCE_TYPES_FROM:
        types = list(dict.fromkeys(request.resource_types)) or list(ConfigResourceType)
    if not set(types) <= set(ConfigResourceType):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    names = [(name, each) for each in types for name in _names(broker.metadata.state, each)]
    return ListConfigResourcesResponse(
        config_resources=made_list(
            names, lambda named: ConfigResource(resource_name=named[0], resource_type=named[1])
        )
    )


def _names(state: ClusterState, resource_type: int) -> list[str]:
    match resource_type:
        case ConfigResourceType.TOPIC:
            return sorted(topic.name for topic in state.topics.values())
        case ConfigResourceType.BROKER:
            return [str(info.broker_id) for info in state.live_brokers()]
        case ConfigResourceType.GROUP:
            return sorted(name for scope, name in state.overrides if scope is ConfigScope.GROUP)
        case _:
            return []


async def alter_configs(
    broker: ClusterServices, request: AlterConfigsRequest, _context: RequestContext
) -> AlterConfigsResponse:
    """Replace each resource's settings by the named ones."""

    def change(
        state: ClusterState, resource: ConfiguredResource, asked: AlterConfigsResource
    ) -> ConfigsChanged:
        configs = [(config.name, config.value) for config in asked.configs]
        return replaced(state, resource, configs, broker.settings)

    return AlterConfigsResponse(
        responses=await _alter(
            broker, request.resources, change, request.validate_only, AlterConfigsResourceResponse
        )
    )


async def incremental_alter_configs(
    broker: ClusterServices, request: IncrementalAlterConfigsRequest, _context: RequestContext
) -> IncrementalAlterConfigsResponse:
    """Change single settings of each resource."""

    def change(
        state: ClusterState, resource: ConfiguredResource, asked: IncrementalAlterConfigsResource
    ) -> ConfigsChanged:
        changes = [
            Change(config.name, config.config_operation, config.value) for config in asked.configs
        ]
        return incremented(state, resource, changes, broker.settings)

    return IncrementalAlterConfigsResponse(
        responses=await _alter(
            broker,
            request.resources,
            change,
            request.validate_only,
            IncrementalAlterConfigsResourceResponse,
        )
    )


Outcome = tuple[ErrorCode, str | None]
_DONE: Outcome = (ErrorCode.NONE, None)


async def _alter(
    broker: ClusterServices,
    resources: Sequence[R],
    change: Callable[[ClusterState, ConfiguredResource, R], ConfigsChanged],
    validate_only: bool,
    answer: Callable[..., A],
) -> list[A]:
    """Change each resource that can be changed; return an answer for each."""
    named = ((each.resource_type, each.resource_name) for each in resources)
    altering = _Altering(broker, await broker.turns.counted(named))
    outcomes: list[Outcome] = []
    parts = range(0, len(resources), PART_ALTERED)
    async for begin in broker.turns.over(parts, 1):
        part = resources[begin : begin + PART_ALTERED]
        outcomes += await altering.alter(part, change, validate_only)
    return [
        answer(
            error_code=code,
            error_message=message,
            resource_type=each.resource_type,
            resource_name=each.resource_name,
        )
        for each, (code, message) in zip(resources, outcomes, strict=True)
    ]


class _Altering:
    """One request's changes, with an entry of the metadata log for each part."""

    def __init__(self, broker: ClusterServices, times: Mapping[tuple[int, str], int]) -> None:
        """`times`: how often the request names each resource."""
        self._broker = broker
        self._times = times

    async def alter(
        self,
        resources: Sequence[R],
        change: Callable[[ClusterState, ConfiguredResource, R], ConfigsChanged],
        validate_only: bool,
    ) -> list[Outcome]:
        """Change the resources of a part, in one entry."""
        outcomes: list[Outcome] = []

        def build(state: ClusterState) -> Sequence[Record]:
            nonlocal outcomes
            outcomes, records = self._planned(state, resources, change)
            return records

        if validate_only:
            build(self._broker.metadata.state)
            return outcomes
        try:
            await change_metadata(self._broker, build)
        except ChangeFailed as error:
            failure = (error.code, str(error))
            known = outcomes or [_DONE] * len(resources)
            return [failure if outcome == _DONE else outcome for outcome in known]
        return outcomes

    def _planned(
        self,
        state: ClusterState,
        resources: Sequence[R],
        change: Callable[[ClusterState, ConfiguredResource, R], ConfigsChanged],
    ) -> tuple[list[Outcome], list[Record]]:
        outcomes: list[Outcome] = []
        records: list[Record] = []
        broker_id = self._broker.incarnation.broker_id
        for asked in resources:
            try:
                if self._times[asked.resource_type, asked.resource_name] > 1:
                    raise ConfigRefused(
                        ErrorCode.INVALID_REQUEST, "the request names the resource twice"
                    )
                resource = find_resource(state, asked.resource_type, asked.resource_name, broker_id)
                record = change(state, resource, asked)
            except ConfigRefused as error:
                outcomes.append((error.code, str(error)))
                continue
            outcomes.append(_DONE)
            if record.overrides != state.configs(resource.scope, resource.name):
                records.append(record)
        return outcomes, records
