"""Clients' use of their quotas in one broker.

Pure: time is an argument. As in Kafka, each broker counts for itself. A new process counts from
zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias
from weakref import WeakValueDictionary

from tidelog.broker.fairness.rates import SampledRate, TokenBucket, Windows
from tidelog.broker.quotas.limits import Quotas, Sharers, limit_of
from tidelog.broker.quotas.metrics import QuotaMetrics
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.coordinator.cluster.records.client_quotas import QuotaKey

_PERCENT: Final = 100.0
_BYTES_UNLIMITED: Final = 2**31 - 1


class _SharedRate(SampledRate):
    """A rate that several clients may share."""

    __slots__ = ("__weakref__",)


class _SharedBucket(TokenBucket):
    """A bucket that several clients may share."""

    __slots__ = ("__weakref__",)


class RateMeter:
    """A client's use of a quota that is measured as a rate."""

    __slots__ = ("_rate", "quota")

    def __init__(self, rate: SampledRate, quota: float) -> None:
        self._rate = rate
        self.quota = quota

    def charge(self, value: float, now: float) -> float:
        """Record a use; return the seconds that the client has to wait."""
        self._rate.record(value, now)
        return self._rate.seconds_over(self.quota, now)

    def refund(self, value: float, now: float) -> None:
        """Take a recorded use back: it did not take place."""
        self._rate.record(-value, now)

    def seconds_over(self, now: float) -> float:
        """The seconds that the client has to wait, without a further use."""
        return self._rate.seconds_over(self.quota, now)


class MutationMeter:
    """A client's use of its controller mutations."""

    __slots__ = ("_bucket", "quota")

    def __init__(self, bucket: TokenBucket, quota: float) -> None:
        self._bucket = bucket
        self.quota = quota

    def charge(self, partitions: int, now: float) -> None:
        """Record created or deleted partitions."""
        self._bucket.record(partitions, self.quota, now)

    def seconds_over(self, now: float) -> float:
        """The seconds that the client has to wait."""
        return self._bucket.seconds_over(self.quota, now)


class QuotaClient:
    """The quotas of the clients with one user and one client id. None: unlimited."""

    __slots__ = (
        "_fetch_bytes_max",
        "_metrics",
        "_seconds_max",
        "consumed",
        "generation",
        "mutations",
        "produced",
        "requests",
    )

    def __init__(self, metrics: QuotaMetrics, windows: Windows, generation: int) -> None:
        self._metrics = metrics
        self._seconds_max = windows.sample_seconds
        self._fetch_bytes_max = _BYTES_UNLIMITED
        self.generation = generation
        self.produced: RateMeter | None = None
        self.consumed: RateMeter | None = None
        self.requests: RateMeter | None = None
        self.mutations: MutationMeter | None = None

    def limit_fetches(self, windows: Windows) -> None:
        """Derive `fetch_bytes_max` from the quota on fetched bytes."""
        if self.consumed is not None:
            bytes_max = self.consumed.quota * windows.whole_seconds
            self._fetch_bytes_max = int(max(1, min(bytes_max, _BYTES_UNLIMITED)))

    @property
    def fetch_bytes_max(self) -> int:
        """The largest answer to a fetch that is not throttled by itself."""
        return self._fetch_bytes_max

    def produce_ms(self, size: int, now: float) -> int:
        """Record a Produce of this size; return the milliseconds that the client has to wait."""
        if self.produced is None:
            return 0
        return self._throttle_ms(QuotaKey.PRODUCER_BYTE_RATE, self.produced.charge(size, now))

    def fetch_ms(self, size: int, now: float) -> tuple[int, bool]:
        """Record the records of a fetch.

        Returns the milliseconds that the client has to wait, and whether the answer has the
        records. If it has none, no use is recorded. A batch larger than the whole window goes to a
        client that was within its quota: otherwise the client would never get it.
        """
        waits_ms, consumed = 0, self.consumed
        if consumed is not None:
            is_too_large = size > self._fetch_bytes_max and not consumed.seconds_over(now)
            waits_ms = self._throttle_ms(QuotaKey.CONSUMER_BYTE_RATE, consumed.charge(size, now))
            if is_too_large:
                return waits_ms, True
        if not waits_ms and self.requests is not None:
            waits_ms = _ms(min(self.requests.seconds_over(now), self._seconds_max))
        if waits_ms and consumed is not None:
            consumed.refund(size, now)
        return waits_ms, not waits_ms

    def request_ms(self, busy_seconds: float, now: float) -> int:
        """Record the broker's time for a request; return the client's wait in milliseconds."""
        if self.requests is None:
            return 0
        self._metrics.busy_seconds += busy_seconds
        seconds = self.requests.charge(busy_seconds * _PERCENT, now)
        return self._throttle_ms(QuotaKey.REQUEST_PERCENTAGE, min(seconds, self._seconds_max))

    def mutation_ms(self, now: float) -> int:
        """The milliseconds that the client has to wait before it may change more partitions."""
        if self.mutations is None:
            return 0
        return self._throttle_ms(
            QuotaKey.CONTROLLER_MUTATION_RATE, self.mutations.seconds_over(now)
        )

    def _throttle_ms(self, key: QuotaKey, seconds: float) -> int:
        waits_ms = _ms(seconds)
        if waits_ms:
            self._metrics.throttled.of(key).value += 1
        return waits_ms


def _ms(seconds: float) -> int:
    """Milliseconds as Kafka's protocol has them: at most 24 days."""
    return min(round(seconds * 1000), 2**31 - 1)


_Shared: TypeAlias = tuple[QuotaKey, Sharers]


class ClientQuotas:
    """The clients with quotas that this broker has served lately."""

    def __init__(self, settings: Callable[[], BrokerSettings], metrics: QuotaMetrics) -> None:
        """`settings` returns the current settings."""
        self._settings = settings
        self.metrics = metrics
        self.active = False
        """Whether a user or a client id has a quota."""
        self._quotas: Quotas = {}
        self._generation = 0
        self._clients: dict[tuple[str, str | None], QuotaClient] = {}
        """In the order of their last requests."""
        # A rate lives as long as one of its clients is known. So when a quota changes, the use
        # measured so far counts against its new value.
        self._rates: WeakValueDictionary[_Shared, _SharedRate] = WeakValueDictionary()
        self._buckets: WeakValueDictionary[_Shared, _SharedBucket] = WeakValueDictionary()

    def renew(self, quotas: Quotas) -> None:
        """Apply these quotas from now on, in place of all earlier ones."""
        self._quotas = quotas
        self._generation += 1
        self.active = any(entity.ip is None for entity in quotas)
        if not self.active:
            self._clients.clear()

    def of(self, user: str, client_id: str | None) -> QuotaClient:
        """The quotas of a client.

        Above `quota.clients.max` clients, the broker drops the one whose last request is oldest.
        """
        key = user, client_id
        known = self._clients.pop(key, None)
        if known is None or known.generation != self._generation:
            known = self._resolved(user, client_id or "")
            if len(self._clients) >= self._settings().integer("quota.clients.max"):
                del self._clients[next(iter(self._clients))]
        self._clients[key] = known
        return known

    def _resolved(self, user: str, client_id: str) -> QuotaClient:
        settings = self._settings()
        windows = client_windows(settings)
        found = QuotaClient(self.metrics, windows, self._generation)
        found.produced = self._meter(QuotaKey.PRODUCER_BYTE_RATE, user, client_id, windows)
        found.consumed = self._meter(QuotaKey.CONSUMER_BYTE_RATE, user, client_id, windows)
        found.requests = self._meter(QuotaKey.REQUEST_PERCENTAGE, user, client_id, windows)
        found.limit_fetches(windows)
        key = QuotaKey.CONTROLLER_MUTATION_RATE
        limit = limit_of(self._quotas, key, user, client_id)
        if limit is not None:
            windows = _controller_windows(settings)
            shared = key, limit.sharers
            bucket = self._buckets.get(shared)
            if bucket is None:
                bucket = self._buckets[shared] = _SharedBucket(windows)
            found.mutations = MutationMeter(bucket, limit.value)
        return found

    def _meter(
        self, key: QuotaKey, user: str, client_id: str, windows: Windows
    ) -> RateMeter | None:
        limit = limit_of(self._quotas, key, user, client_id)
        if limit is None:
            return None
        shared = key, limit.sharers
        rate = self._rates.get(shared)
        if rate is None:
            rate = self._rates[shared] = _SharedRate(windows)
        return RateMeter(rate, limit.value)


def client_windows(settings: BrokerSettings) -> Windows:
    """The time over which rates of clients and of connections are measured."""
    return Windows(
        settings.integer("quota.window.num"), settings.integer("quota.window.size.seconds")
    )


def _controller_windows(settings: BrokerSettings) -> Windows:
    return Windows(
        settings.integer("controller.quota.window.num"),
        settings.integer("controller.quota.window.size.seconds"),
    )
