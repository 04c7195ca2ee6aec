"""Applies the metadata records of overrides, access control rules, quotas and credentials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from tidelog.coordinator.cluster.records.credentials import CREDENTIALS_PREFIX
from tidelog.coordinator.cluster.records.records import (
    AclsChanged,
    ConfigsChanged,
    ConfigScope,
    CredentialsChanged,
    QuotasChanged,
    Record,
)
from tidelog.coordinator.cluster.state.acl_table import ACL_RULES_MAX
from tidelog.coordinator.cluster.state.draft import Draft, InvalidRecord
from tidelog.coordinator.cluster.state.incarnations import BROKER_ID_MAX

OVERRIDES_MAX = 100_000
"""Brokers and groups with overrides."""
QUOTA_ENTITIES_MAX = 100_000
"""Users, client ids and addresses with quotas."""
GROUP_NAME_BYTES_MAX = 1024
"""The name of a group with overrides, in UTF-8: it bounds state and snapshots."""


def _configs_changed(draft: Draft, record: ConfigsChanged) -> None:
    if record.scope is ConfigScope.TOPIC:
        try:
            topic_id = UUID(record.name)
        except ValueError as error:
            raise InvalidRecord(record, f"{record.name!r} is not a topic id") from error
        topic = draft.topic(topic_id, record)
        draft.topics.put(topic.topic_id, replace(topic, configs=dict(record.overrides)))
        return
    if record.scope is ConfigScope.CLUSTER and record.name != "":
        raise InvalidRecord(record, f"the cluster's default has no name, not {record.name!r}")
    if record.scope is ConfigScope.BROKER and not (
        record.name.isascii()
        and record.name.isdigit()
        and record.name == str(int(record.name))
        and int(record.name) <= BROKER_ID_MAX
    ):
        raise InvalidRecord(record, f"{record.name!r} is not a broker id")
    if record.scope is ConfigScope.GROUP:
        size = len(record.name.encode())
        if not 0 < size <= GROUP_NAME_BYTES_MAX:
            raise InvalidRecord(
                record, f"a group's name has 1 to {GROUP_NAME_BYTES_MAX} bytes, not {size}"
            )
    place = (record.scope, record.name)
    known = draft.overrides.view
    if record.overrides and place not in known and len(known) >= OVERRIDES_MAX:
        raise InvalidRecord(
            record, f"{OVERRIDES_MAX} brokers and groups have settings of their own already"
        )
    if record.overrides:
        draft.overrides.put(place, dict(record.overrides))
    elif place in known:
        draft.overrides.drop(place)


def _acls_changed(draft: Draft, record: AclsChanged) -> None:
    known = draft.acls
    for rule in record.deleted:
        if rule not in known:
            raise InvalidRecord(record, f"there is no rule {rule}")
    for rule in record.created:
        if fault := rule.fault():
            raise InvalidRecord(record, fault)
        if rule in known:
            raise InvalidRecord(record, f"there is a rule {rule} already")
    for rules in (record.created, record.deleted):
        if len(set(rules)) != len(rules):
            raise InvalidRecord(record, "it names a rule twice")
    if known.count + len(record.created) > ACL_RULES_MAX:
        raise InvalidRecord(
            record,
            f"the cluster has {known.count} rules and takes at most {ACL_RULES_MAX}; delete some,"
            " or use prefixes and groups",
        )
    draft.acls = known.changed(record.created, record.deleted)


def _quotas_changed(draft: Draft, record: QuotasChanged) -> None:
    fault = record.entity.fault()
    for key, value in record.quotas.items():
        fault = fault or record.entity.value_fault(key, value)
    if fault is not None:
        raise InvalidRecord(record, fault)
    known = draft.quotas.view
    if record.quotas:
        if record.entity not in known and len(known) >= QUOTA_ENTITIES_MAX:
            raise InvalidRecord(
                record, f"{QUOTA_ENTITIES_MAX} users, client ids and addresses have quotas already"
            )
        draft.quotas.put(record.entity, dict(record.quotas))
    elif record.entity in known:
        draft.quotas.drop(record.entity)
    else:
        raise InvalidRecord(record, f"there are no quotas of {record.entity}")


def _credentials_changed(draft: Draft, record: CredentialsChanged) -> None:
    if not record.key.startswith(CREDENTIALS_PREFIX):
        raise InvalidRecord(record, f"{record.key!r} is not below {CREDENTIALS_PREFIX}")
    if record.previous != draft.credentials:
        raise InvalidRecord(
            record, f"the credentials are {draft.credentials}, and it replaces {record.previous}"
        )
    draft.credentials = record.key


SETTING_TRANSITIONS: Mapping[type[Record], Callable[[Draft, Any], None]] = {
    ConfigsChanged: _configs_changed,
    AclsChanged: _acls_changed,
    QuotasChanged: _quotas_changed,
    CredentialsChanged: _credentials_changed,
}
