"""Principals in Kafka's form."""

from tidelog.broker.handlers.request_context import RequestContext
from tidelog.security.principal import ANONYMOUS, Principal


def test_a_principal_is_written_in_kafkas_form() -> None:
    assert str(Principal("alice", ("ops",))) == "User:alice"
    assert str(Principal("ops", kind="Group")) == "Group:ops"


def test_a_request_is_anonymous_unless_its_connection_authenticated() -> None:
    assert RequestContext(1, 1, None, "127.0.0.1", 1).principal == ANONYMOUS
    assert str(ANONYMOUS) == "User:ANONYMOUS"
