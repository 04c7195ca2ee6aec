"""Decides which records change the quotas of clients. Pure.

A change may be repeated: quotas that are as wanted are not written again. So a client whose answer
was lost asks again.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.coordinator.cluster.records.client_quotas import QuotaEntity
from tidelog.coordinator.cluster.records.records import QuotasChanged
from tidelog.coordinator.cluster.state.state import ClusterState


def altering(
    state: ClusterState, wanted: Mapping[QuotaEntity, Mapping[str, float | None]]
) -> tuple[QuotasChanged, ...]:
    """The records that set quotas, or remove them (None); one for each entity that changes."""
    changes = []
    for entity, values in wanted.items():
        present = state.quotas.get(entity, {})
        quotas = {key: value for key, value in {**present, **values}.items() if value is not None}
        if quotas != present:
            changes.append(QuotasChanged(entity, quotas))
    return tuple(changes)
