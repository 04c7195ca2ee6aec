"""The cost of 10,000 access control rules: one load with and without an authorizer, in turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, stdev

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from benchmarks.broker.throughput import KIB, Shape, measure
from benchmarks.harness.targets import Target
from benchmarks.security.servers import USER, Listeners

RULES = 10_000
ROUNDS = 12
SHAPE = Shape(KIB, 16, 16 * KIB, 200_000_000, idempotent=False)
"""Small batches: a request of few bytes pays most for its permission."""
_REQUEST_RULES_MAX = 1000


@dataclass(frozen=True, slots=True)
class RulesCost:
    """CPU seconds a GB: in each round without an authorizer, and with the rules."""

    without: tuple[float, ...]
    with_rules: tuple[float, ...]

    @property
    def share(self) -> float:
        """The authorizer's CPU as a share of the CPU without it: mean of the rounds."""
        return fmean(self._shares())

    @property
    def standard_error(self) -> float:
        """The standard error of `share`: how far chance may have moved it."""
        shares = self._shares()
        return stdev(shares) / len(shares) ** 0.5

    def _shares(self) -> list[float]:
        pairs = zip(self.without, self.with_rules, strict=True)
        return [with_rules / without - 1 for without, with_rules in pairs]


def measure_rules(without: Listeners, with_rules: Listeners, share: float) -> dict[str, RulesCost]:
    """Measure two new servers in turns, one of them with an authorizer and rules; by direction."""
    add_rules(with_rules.plain)
    shape = SHAPE.share(share)
    found: dict[str, list[tuple[float, float]]] = {"produce": [], "consume": []}
    for number in range(ROUNDS + 1):
        targets = [without.users, with_rules.users]
        # Each goes first as often as the other, so both share the machine's other work.
        round_ = measure(targets if number % 2 else targets[::-1], shape, run=100 + number)
        if number > 0:
            for direction, pairs in found.items():
                ours, theirs = (round_[target.name][direction] for target in targets)
                pairs.append((ours.cpu_seconds_a_gb, theirs.cpu_seconds_a_gb))
    return {direction: RulesCost(*zip(*pairs, strict=True)) for direction, pairs in found.items()}


def add_rules(target: Target) -> None:
    """Create RULES rules; some of them allow the load."""
    admin = AdminClient({"bootstrap.servers": target.bootstrap, "log_level": 0})
    every = list(rules())
    for start in range(0, len(every), _REQUEST_RULES_MAX):
        created = admin.create_acls(every[start : start + _REQUEST_RULES_MAX], request_timeout=60)
        for future in created.values():
            future.result(60)


def rules() -> Iterator[AclBinding]:
    """Permissions and denials: of other users for other topics, for prefixes, for the load's own
    topics, and for groups."""
    all_, literal, prefixed = (
        AclOperation.ALL,
        ResourcePatternType.LITERAL,
        ResourcePatternType.PREFIXED,
    )
    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    yield _rule(topic, "bench.", prefixed, USER, all_)
    yield _rule(group, "benchmark", literal, USER, all_)
    yield AclBinding(
        ResourceType.BROKER,
        "kafka-cluster",
        literal,
        f"User:{USER}",
        "*",
        AclOperation.IDEMPOTENT_WRITE,
        AclPermissionType.ALLOW,
    )
    for number in range(RULES - 3):
        user = f"user-{number % 1000}"
        match number % 4:
            case 0:
                yield _rule(topic, f"topic-{number}", literal, user, AclOperation.READ)
            case 1:
                yield _rule(topic, f"bench.1{number}-", prefixed, user, AclOperation.WRITE)
            case 2:
                yield _rule(topic, "bench.", prefixed, f"other-{number}", AclOperation.READ)
            case _:
                yield _rule(group, f"group-{number}", literal, user, AclOperation.READ)


def _rule(
    resource: ResourceType,
    name: str,
    pattern: ResourcePatternType,
    user: str,
    operation: AclOperation,
) -> AclBinding:
    return AclBinding(
        resource, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW
    )
