"""Every API with every kind of rule, in all common versions: Tidelog answers as Apache Kafka does.

The requests and rules are those of `permission_cases.py`. Each question has a principal of its own,
so all rules hold at the same time.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import pytest

from tests.compat.conftest import CACHE
from tests.compat.security.questions import (
    Question,
    outcome,
    questions,
    questions_of_single_resources,
)
from tests.compat.security.two_brokers import ADMIN, NOT_YET, Judge, two_brokers
from tests.unit.broker.dispatch.permission_cases import BEGINNINGS, FINDS, TOPIC, with_topic_id
from tests.unit.broker.guarded import codes
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.metadata import MetadataRequest
from tidelog.protocol.schemas.cluster.topics import DeleteTopicsRequest
from tidelog.protocol.schemas.group_offsets import OffsetCommitRequest
from tidelog.protocol.schemas.groups import DeleteGroupsRequest

pytestmark = pytest.mark.compat
SECONDS_MAX = 60


class Difference(NamedTuple):
    """A field of an API's answers in which Tidelog differs from Kafka, and why."""

    api: str
    field: str
    why: str


DIFFERENCES: Final = (
    Difference(
        "CreateTopics",
        "topic_id",
        "With validate_only Kafka tells a random id that no topic gets.",
    ),
    Difference(
        "ListConfigResources",
        "config_resources",
        "Kafka lists the loggers of a broker, whose levels Tidelog does not change at run time.",
    ),
    Difference(
        "DescribeUserScramCredentials",
        "user",
        "Kafka's refusal has a result for each user that was asked for, without the user's name.",
    ),
    Difference(
        "DescribeQuorum",
        "listeners",
        "Kafka names the listeners of controllers, Tidelog those of brokers.",
    ),
)


@dataclass
class Side:
    """One of the two brokers, with its topics, groups and rules."""

    judge: Judge
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    versions: Mapping[int, range] = field(default_factory=dict)
    rule_codes: list[int] = field(default_factory=list)

    async def prepare(self, asked: Sequence[Question]) -> None:
        """Topics, groups, a transactional id, and the rules of all questions."""
        judge = self.judge
        self.topic_ids[TOPIC] = await judge.create_topic(TOPIC)
        for request, version in (*FINDS, *BEGINNINGS):
            await judge.ask_until_served(request, version)
        for question in asked:
            if isinstance(question.request, DeleteTopicsRequest) and question.topic != TOPIC:
                self.topic_ids[question.topic] = await judge.create_topic(question.topic)
            if isinstance(question.request, DeleteGroupsRequest):
                await self._create_group(question.group)
        async with judge.client(ADMIN) as client:
            self.versions = await client.versions()

    async def _create_group(self, name: str) -> None:
        """A group with a committed offset."""
        for request, version in BEGINNINGS:
            if isinstance(request, OffsetCommitRequest):
                commit = OffsetCommitRequest(group_id=name, topics=request.topics)
                await self.judge.ask_until_served(commit, version)

    async def answers(self, question: Question, versions: Sequence[int]) -> list[Any]:
        """The answers in these versions. Questions are repeated while an answer has a passing
        error."""
        topic_id = self.topic_ids.get(question.topic, self.topic_ids[TOPIC])
        request = with_topic_id(question.request, topic_id)
        passing = set(NOT_YET)
        if question.topic != TOPIC and isinstance(request, MetadataRequest):
            # Kafka answers before it has created the topic.
            passing.add(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        async with self.judge.client(question.principal) as client, asyncio.timeout(SECONDS_MAX):
            while True:
                answers = await client.ask_all([(request, version) for version in versions])
                if not any(codes(answer) & passing for answer in answers):
                    return answers


class Comparison:
    """The differences between two brokers."""

    def __init__(self, ours: Side, theirs: Side) -> None:
        self._sides = ours, theirs
        self.found: defaultdict[str, list[str]] = defaultdict(list)
        """By case, one text for each version and kind of rule."""
        self.met: set[Difference] = set()
        """The listed differences that showed."""

    async def ask(self, question: Question) -> None:
        """Compare the answers to a question in all common versions."""
        key = question.request.API_KEY
        api = type(question.request).__name__.removesuffix("Request")
        listed = [each for each in DIFFERENCES if each.api == api]
        left_out = frozenset(each.field for each in listed)
        versions = [
            version
            for version in question.versions
            if all(version in side.versions.get(key, ()) for side in self._sides)
        ]
        assert versions, f"no common version of {question.case}"
        both = await asyncio.gather(*(side.answers(question, versions) for side in self._sides))
        for version, got, expected in zip(versions, *both, strict=True):
            one, other = outcome(got, left_out), outcome(expected, left_out)
            if one != other:
                self.found[question.case].append(
                    f"version {version}, {question.kind}:\n   Tidelog {one}\n   Kafka   {other}"
                )
            elif listed and outcome(got) != outcome(expected):
                self.met.update(listed)


def report(found: Mapping[str, Sequence[str]]) -> str:
    return "\n".join(
        f"== {case}: {len(texts)} differences, such as {texts[0]}" for case, texts in found.items()
    )


@pytest.mark.timeout(1800)
def test_every_api_with_every_kind_of_rule_answers_as_kafka_does(
    tmp_path: Path, kafka_lib: Path
) -> None:
    async def story(judges: tuple[Judge, Judge]) -> None:
        asked = [*questions(), *questions_of_single_resources()]
        ours, theirs = sides = [Side(judge) for judge in judges]
        for side in sides:
            await side.prepare(asked)
        comparison = Comparison(ours, theirs)
        # Rules for all principals are made last, since they bind the principals of all questions.
        for is_about_everyone in (False, True):
            phase = [each for each in asked if each.is_about_everyone == is_about_everyone]
            rules = list(dict.fromkeys(rule for question in phase for rule in question.rules))
            taken = [await side.judge.create_rules(rules) for side in sides]
            assert taken[0] == taken[1]
            for question in phase:
                await comparison.ask(question)
        assert not comparison.found, report(comparison.found)
        # A listed difference that no longer shows must leave the list.
        assert comparison.met == set(DIFFERENCES)

    with two_brokers(tmp_path, CACHE) as judges:
        asyncio.run(story(judges))
