"""Rates of new connections (KIP-612): of each address, of the broker, of its listeners. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidelog.broker.fairness.rates import SampledRate
from tidelog.broker.quotas.client_quotas import client_windows
from tidelog.broker.quotas.limits import Quotas
from tidelog.broker.settings.kinds import INT_MAX
from tidelog.broker.settings.settings import LISTENER_PREFIX, BrokerSettings
from tidelog.coordinator.cluster.records.client_quotas import DEFAULT_NAME, QuotaKey, address

MAX_RATE: Final = "max.connection.creation.rate"


class ConnectionRates:
    """The rates of new connections of addresses with a quota, their own or the default one."""

    def __init__(self, settings: Callable[[], BrokerSettings]) -> None:
        """`settings` returns the current settings."""
        self._settings = settings
        self._quotas: dict[str, float] = {}
        """By address; the default quota has the empty name."""
        self._rates: dict[str, SampledRate] = {}
        """In the order of the last connections."""

    def renew(self, quotas: Quotas) -> None:
        """Apply these quotas from now on. Connections opened so far count against them."""
        key = QuotaKey.CONNECTION_CREATION_RATE
        self._quotas = {
            address(entity.ip) or DEFAULT_NAME: values[key]
            for entity, values in quotas.items()
            if entity.ip is not None and key in values
        }
        if not self._quotas:
            self._rates.clear()

    def accepts(self, host: str, now: float) -> bool:
        """Count a new connection from an address; False if its quota forbids it.

        A refused connection does not count. So a client that keeps trying is accepted at the rate
        of its quota.
        """
        if not self._quotas:
            return True
        host = address(host) or host
        quota = self._quotas.get(host, self._quotas.get(DEFAULT_NAME))
        if quota is None:
            return True
        settings = self._settings()
        rate = self._rates.pop(host, None)
        if rate is None:
            rate = SampledRate(client_windows(settings))
            if len(self._rates) >= settings.integer("quota.clients.max"):
                del self._rates[next(iter(self._rates))]
        self._rates[host] = rate
        rate.record(1.0, now)
        if not rate.seconds_over(quota, now):
            return True
        rate.record(-1.0, now)
        return False


class AcceptRates:
    """The rates at which the broker and its listeners accept connections."""

    def __init__(self, settings: Callable[[], BrokerSettings], inter_broker: str | None) -> None:
        """`settings` returns the current settings.

        `inter_broker`: a listener for brokers alone, which the broker's rate does not delay.
        """
        self._settings = settings
        self._inter_broker = inter_broker
        self._rates: dict[str, SampledRate] = {}
        """By the setting that limits them."""

    def delay(self, listener: str, now: float) -> float:
        """Count an accepted connection; the seconds until it may begin.

        As in Kafka the delay is at most one sample.
        """
        settings = self._settings()
        names = [f"{LISTENER_PREFIX}{listener.lower()}.{MAX_RATE}"]
        if listener != self._inter_broker:
            names.append(MAX_RATE)
        windows = client_windows(settings)
        seconds = 0.0
        for name in names:
            if name not in settings or (rate_max := settings.integer(name)) == INT_MAX:
                self._rates.pop(name, None)
                continue
            rate = self._rates.setdefault(name, SampledRate(windows))
            rate.record(1.0, now)
            over = rate.seconds_over(rate_max, now) if rate_max else windows.sample_seconds
            seconds = max(seconds, min(over, windows.sample_seconds))
        return seconds
