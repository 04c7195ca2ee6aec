"""ssl.principal.mapping.rules, as Apache Kafka reads them."""

from __future__ import annotations

import pytest

from tidelog.broker.authentication.principal_rules import NoRuleMatches, PrincipalRules
from tidelog.errors import InvalidConfiguration

NAME = "CN=Kafka.Admin,OU=ops,O=Harbour\\, Inc,C=PT"


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ("DEFAULT", NAME, NAME),
        ("", NAME, NAME),
        (r"RULE:^CN=(.*?),.*$/$1/", NAME, "Kafka.Admin"),
        (r"RULE:^CN=(.*?),.*$/$1/L", NAME, "kafka.admin"),
        (r"RULE:^CN=(.*?),OU=(.*?),.*$/$2-$1/U", NAME, "OPS-KAFKA.ADMIN"),
        (
            r"RULE:^CN=nobody.*$/x/, RULE:^CN=(.*?),.*$/$1@example/L ,DEFAULT",
            NAME,
            "kafka.admin@example",
        ),
        (r"RULE:^CN=nobody.*$/x/,DEFAULT", NAME, NAME),
        (r"RULE:^CN=(.*?)\/ops$/$1\/x/", "CN=a/ops", "a/x"),
    ],
)
def test_the_first_rule_that_matches_makes_the_principal(
    rules: str, name: str, principal: str
) -> None:
    assert PrincipalRules(rules).principal(name) == principal


def test_a_name_that_no_rule_matches_is_refused() -> None:
    with pytest.raises(NoRuleMatches, match=r"no rule of ssl.principal.mapping.rules matches"):
        PrincipalRules(r"RULE:^CN=nobody$/x/").principal(NAME)


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ("RULE:^a$", "does not begin with RULE"),
        ("RULE:^a$/b/X", "does not begin with RULE"),
        ("rule:^a$/b/", "does not begin with RULE"),
        ("RULE:^(a$/b/", "is no pattern"),
        ("RULE:^a$/$1/", "names group 1, and the pattern has 0"),
    ],
)
def test_bad_rules_are_refused(rules: str, why: str) -> None:
    with pytest.raises(InvalidConfiguration, match=why):
        PrincipalRules(rules)
