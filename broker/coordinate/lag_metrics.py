"""Prometheus families of committed offsets, of partitions' ends, and of the lag between them.

A group's coordinator and a partition's leader may be different brokers. Each reports what it knows;
a broker that is both reports the lag. Nothing is counted between two scrapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidelog.coordinator.group.state.committed_offsets import CommittedOffsets, Place
from tidelog.coordinator.internal_topics import GROUP_TOPIC

GROUP_LAG: Final = "tidelog_group_lag"
COMMITTED_OFFSET: Final = "tidelog_group_committed_offset"
END_OFFSET: Final = "tidelog_partition_end_offset"
LEFT_OUT: Final = "tidelog_offsets_left_out"
SERIES_MAX: Final = "metrics.offsets.max"
"""The setting of how many series each family has at most."""


class LagCollector(Collector):
    """The offsets that one broker knows."""

    def __init__(
        self,
        committed: Callable[[], Iterable[CommittedOffsets]],
        ends: Callable[[], dict[Place, int]],
        series_max: int,
    ) -> None:
        """`committed`: of the groups that this broker coordinates; `ends`: the high watermarks of
        the partitions that it leads. Both must be callable from any thread."""
        self._committed = committed
        self._ends = ends
        self._series_max = series_max

    def collect(self) -> Iterator[Metric]:
        """The families."""
        offsets = GaugeMetricFamily(
            COMMITTED_OFFSET,
            "The committed offsets of groups that this broker coordinates.",
            labels=["group", "topic", "partition"],
        )
        lags = GaugeMetricFamily(
            GROUP_LAG,
            "Offsets from a group's committed one to the partition's end, if this broker"
            " coordinates the group and leads the partition. For other partitions subtract"
            f" {COMMITTED_OFFSET} from the {END_OFFSET} of their leaders.",
            labels=["group", "topic", "partition"],
        )
        ends = GaugeMetricFamily(
            END_OFFSET,
            "The high watermarks of partitions that this broker leads and has used.",
            labels=["topic", "partition"],
        )
        known = self._ends()
        # A sink's group keeps the number of its last batch as an offset of the groups' topic.
        found = (
            each
            for each in chain.from_iterable(each.all() for each in self._committed())
            if each[1][0] != GROUP_TOPIC
        )
        for group, place, offset in islice(found, self._series_max):
            topic, partition = place
            labels = [group, topic, str(partition)]
            offsets.add_metric(labels, offset)
            if place in known:
                # The log may have grown since, never the commit before it.
                lags.add_metric(labels, max(0, known[place] - offset))
        for (topic, partition), end in islice(known.items(), self._series_max):
            ends.add_metric([topic, str(partition)], end)
        left_out = sum(1 for _ in found) + max(0, len(known) - self._series_max)
        yield from (offsets, lags, ends)
        yield GaugeMetricFamily(
            LEFT_OUT,
            f"Committed offsets and ends that these families leave out, for {SERIES_MAX}.",
            value=left_out,
        )

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance."""
        return ()
