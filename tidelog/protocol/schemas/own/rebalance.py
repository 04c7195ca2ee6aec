"""RebalanceBrokers (20005), Tidelog's own: brokers give away partitions above their fair share."""

from __future__ import annotations

from tidelog.protocol.fields import array, boolean, int16, int32, string
from tidelog.protocol.message import Request, Response, Struct


class RebalanceBrokersRequest(
    Request["RebalanceBrokersResponse"], api_key=20_005, versions=(0, 0), flexible=0
):
    """Give partitions away, a bounded number of them.

    `is_forwarded`: the receiver alone, which does not ask the others.
    """

    is_forwarded: bool = boolean(default=False)


class BrokerRebalance(Struct):
    """The result of one broker."""

    broker_id: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    given: int = int32()


class RebalanceBrokersResponse(Response, api_key=20_005, versions=(0, 0), flexible=0):
    """Results by broker. All brokers have their fair share if none gave anything."""

    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    brokers: list[BrokerRebalance] = array(BrokerRebalance)
