"""The login of a broker: Kafka's grammar, and errors that repeat no secret."""

from __future__ import annotations

import pytest

from tidelog.broker.authentication.jaas import parse_login
from tidelog.broker.settings.loading import load_settings
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.client.security import Login
from tidelog.errors import InvalidConfiguration

SETTING = "listener.name.brokers.scram-sha-512.sasl.jaas.config"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "mechanism", "login"),
    [
        (f'{SCRAM} required username="b" password="hush";', "SCRAM-SHA-256", Login("b", "hush")),
        (f"{PLAIN} REQUIRED password='hu\"sh' username=b-1_x ;", "PLAIN", Login("b-1_x", 'hu"sh')),
        (
            f'/* two\nlines */ {SCRAM}\n  required // all of it\n username = "b;="\n'
            r'password="a\"b\\c\td\101";',
            "SCRAM-SHA-512",
            Login("b;=", 'a"b\\c\tdA'),
        ),
        (f'{SCRAM} required username="é" password="/* no // comment";', "SCRAM-SHA-512",
            Login("é", "/* no // comment")),
    ],
)  # fmt: skip
def test_kafkas_grammar_is_read(text: str, mechanism: str, login: Login) -> None:
    assert parse_login(SETTING, text, mechanism) == login


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "does not begin with a login module"),
        (SCRAM, "does not begin with a login module"),
        (f'{SCRAM} always username="b" password="hush";', "does not begin with a login module"),
        (f'{PLAIN} required username="b" password="hush";', "is not that of the mechanism"),
        (f'{SCRAM} required username="b" password="hush"', "does not end with a semicolon"),
        (f'{SCRAM} required username="b" password=;', 'is not NAME="value"'),
        (f'{SCRAM} required username="b" "hush";', 'is not NAME="value"'),
        (f'{SCRAM} required username="b" password="hush', "a quotation mark is not closed"),
        (f'{SCRAM} required username="b" password=hu%sh;', "is out of place"),
        (f'{SCRAM} required username="b";', "it has no password"),
        (f'{SCRAM} required password="hush" username="";', "it has no username"),
        (f'{SCRAM} required username="b" user_b="hush" password="hush";', "has options other than"),
        (f'{SCRAM} required username="b" password="hush"; {SCRAM} required;', "more than one"),
    ],
)
def test_a_malformed_login_is_refused_without_its_secret(text: str, why: str) -> None:
    with pytest.raises(InvalidConfiguration, match=why) as refused:
        parse_login(SETTING, text, "SCRAM-SHA-512")
    assert SETTING in str(refused.value)
    assert "hush" not in str(refused.value)
    assert "hush" not in repr(Login("b", "hush"))


def test_the_login_belongs_to_a_listener_and_a_mechanism() -> None:
    assert BrokerSettings.of(**{SETTING: "text"})[SETTING] == "text"
    told = load_settings(
        environment={"TIDELOG_LISTENER_NAME_BROKERS_SCRAM_SHA_512_SASL_JAAS_CONFIG": "text"}
    )
    assert told[SETTING] == "text"
    for name in ("sasl.jaas.config", "listener.name.brokers.sasl.jaas.config"):
        with pytest.raises(InvalidConfiguration, match="unknown setting"):
            load_settings(environment={}, flags=[f"{name}=hush"])
    with pytest.raises(InvalidConfiguration, match="unknown setting"):
        load_settings(environment={}, flags=[f"{SETTING.replace('512', '1')}=hush"])
