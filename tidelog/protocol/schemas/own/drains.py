"""DrainBrokers (20004), Tidelog's own: brokers give all of their partitions away and run on."""

from __future__ import annotations

from tidelog.protocol.fields import array, boolean, int16, int32, string
from tidelog.protocol.message import Request, Response, Struct


class BrokerDrain(Struct):
    """A broker whose drain begins or ends."""

    broker_id: int = int32()
    draining: bool = boolean()


class DrainBrokersRequest(
    Request["DrainBrokersResponse"], api_key=20_004, versions=(0, 0), flexible=0
):
    """Begin or end drains. Any broker answers, once the metadata log has them."""

    brokers: list[BrokerDrain] = array(BrokerDrain)


class BrokerDrainResult(Struct):
    """The result for one broker."""

    broker_id: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class DrainBrokersResponse(Response, api_key=20_004, versions=(0, 0), flexible=0):
    """Results by broker, and all brokers that are being drained now."""

    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    brokers: list[BrokerDrainResult] = array(BrokerDrainResult)
    draining: list[int] = array(int32)
