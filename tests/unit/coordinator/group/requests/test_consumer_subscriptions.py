"""Subscriptions of consumer groups, and topics that are created, grow and are deleted."""

from __future__ import annotations

from tests.unit.coordinator.group.consumer_world import ConsumerWorld
from tidelog.coordinator.group.settings import GroupSettings


def test_a_member_subscribes_to_something_else(world: ConsumerWorld) -> None:
    client = world.consumer("m")
    client.hear(world.beat("m", 1, owned=client.owned, names=["u", "u"]))
    assert client.epoch == 1
    assert client.owned == {}
    client.beat()
    assert (client.epoch, client.has("u")) == (2, [0, 1])


def test_topics_come_grow_and_go(world: ConsumerWorld) -> None:
    client = world.consumer("m", names=["t", "later"])
    world.create(later=1)
    world.settle(client)
    assert (client.epoch, client.has("t"), client.has("later")) == (2, [0, 1, 2, 3], [0])
    world.grow("t", 6)
    world.settle(client)
    assert (client.epoch, client.has("t")) == (3, [0, 1, 2, 3, 4, 5])
    world.drop("later")
    world.settle(client)
    assert client.epoch == 4
    assert client.owned == world.place(t=range(6))


def test_a_topic_that_was_created_again_is_another_topic(world: ConsumerWorld) -> None:
    client = world.consumer("m")
    old = world.id_of("t")
    world.create(t=4)
    world.settle(client)
    assert client.has() == [0, 1, 2, 3]
    assert old not in client.owned


def test_topics_without_subscribers_do_not_matter(world: ConsumerWorld) -> None:
    client = world.consumer("m")
    before = len(world.log)
    world.create(other=3)
    client.beat()
    assert (client.epoch, len(world.log)) == (1, before)


def test_an_expression_names_topics_that_are_and_will_be(world: ConsumerWorld) -> None:
    world.create(flights_a=1, flights_b=1)
    client = world.consumer("m", regex="flights_.*")
    assert set(client.owned) == {world.id_of("flights_a"), world.id_of("flights_b")}
    world.create(flights_c=1, not_flights_d=1)
    world.settle(client)
    assert (client.epoch, client.has("flights_c"), client.has("not_flights_d")) == (2, [0], [])
    world.drop("flights_a")
    world.settle(client)
    assert set(client.owned) == {world.id_of("flights_b"), world.id_of("flights_c")}


def test_an_expression_and_names_add_up(world: ConsumerWorld) -> None:
    client = world.consumer("m", regex="u", names=["t"])
    assert (client.has("t"), client.has("u")) == ([0, 1, 2, 3], [0, 1])
    client.hear(world.beat("m", 1, owned=client.owned, regex=""))
    world.settle(client)
    assert (client.has("t"), client.has("u")) == ([0, 1, 2, 3], [])
    assert world.member("m").subscription.topic_regex is None


def test_members_vote_for_the_assignor(world: ConsumerWorld) -> None:
    first = world.consumer("a", assignor="range", names=["t", "u"])
    second = world.consumer("b", assignor="range", names=["t", "u"])
    world.settle(first, second)
    assert world.describe_consumers().assignor == "range"
    assert (first.has("t"), first.has("u")) == ([0, 1], [0])
    assert (second.has("t"), second.has("u")) == ([2, 3], [1])


def test_the_first_assignor_is_the_default() -> None:
    world = ConsumerWorld(GroupSettings(consumer_assignors=("range", "uniform")))
    world.consumer("a")
    assert world.describe_consumers().assignor == "range"
