"""`tidelog users`: the users of a cluster, who authenticate by SCRAM or PLAIN."""

from __future__ import annotations

import json
import sys

import click

from tidelog.cli.address import Bootstrap
from tidelog.cli.broker_client import bootstrap_option, json_option, with_client
from tidelog.cli.scram_options import NewCredential, new_salt
from tidelog.cli.table import shown_table
from tidelog.client.admin.administration import broker_holder, describe_cluster, holder_configs
from tidelog.client.errors import RequestRefused, check, check_read
from tidelog.client.pool import Client
from tidelog.protocol.schemas.security.scram import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from tidelog.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism, salted_password

_MECHANISM = click.Choice([each.title for each in ScramMechanism])
_ENABLED = "sasl.enabled.mechanisms"
_PLAIN = "PLAIN"
"""Takes the verifiers of every mechanism."""


@click.group()
def users() -> None:
    """List, add and remove the users of a cluster."""


@users.command(name="list")
@bootstrap_option
@json_option
def list_users(bootstrap: Bootstrap, as_json: bool) -> None:
    """List the users and the mechanisms of their credentials."""

    async def described(client: Client) -> list[DescribeUserScramCredentialsResult]:
        answer = await client.request_any(DescribeUserScramCredentialsRequest(users=None))
        check_read("users", answer.error_code, answer.error_message)
        return answer.results

    found = [
        {
            "user": each.user,
            "mechanism": ScramMechanism(info.mechanism).title,
            "iterations": info.iterations,
        }
        for each in with_client(bootstrap, described)
        for info in each.credential_infos
    ]
    if as_json:
        print(json.dumps(found))
        return
    headers = ["user", "mechanism", "iterations"]
    print(shown_table(headers, [[row[name] for name in headers] for row in found]))


@users.command()
@click.argument("name")
@click.option(
    "--mechanism",
    type=_MECHANISM,
    help="By default the strongest one that the broker enables.",
)
@click.option(
    "--iterations",
    type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
    default=ITERATIONS_MIN,
    show_default=True,
)
@bootstrap_option
def add(name: str, mechanism: str | None, iterations: int, bootstrap: Bootstrap) -> None:
    """Add a user, or replace the password of one. The password is read from the terminal or stdin.

    An argument would show it to every process of the machine.
    """
    password = _password()
    mechanism = _usable(mechanism, with_client(bootstrap, _enabled))
    wanted = NewCredential(name, ScramMechanism.named(mechanism), password, iterations)
    salt = new_salt()
    salted = salted_password(wanted.mechanism, wanted.password, salt, wanted.iterations)
    upsertion = ScramCredentialUpsertion(
        name=name,
        mechanism=wanted.mechanism,
        iterations=iterations,
        salt=salt,
        salted_password=salted,
    )
    _alter(bootstrap, AlterUserScramCredentialsRequest(upsertions=[upsertion]))
    print(f"user {name} authenticates by {mechanism}")


@users.command()
@click.argument("name")
@click.option("--mechanism", type=_MECHANISM, help="By default all that the user has.")
@bootstrap_option
def remove(name: str, mechanism: str | None, bootstrap: Bootstrap) -> None:
    """Remove a user's credentials. Connections of the user stay until they authenticate again."""

    async def owned(client: Client) -> list[ScramMechanism]:
        wanted = UserName(name=name)
        answer = await client.request_any(DescribeUserScramCredentialsRequest(users=[wanted]))
        check_read("users", answer.error_code, answer.error_message)
        for each in answer.results:
            check(f"user {name}", each.error_code, each.error_message)
        infos = [info for each in answer.results for info in each.credential_infos]
        return [ScramMechanism(info.mechanism) for info in infos]

    if mechanism is None:
        removed = with_client(bootstrap, owned)
    else:
        removed = [ScramMechanism.named(mechanism)]
    deletions = [ScramCredentialDeletion(name=name, mechanism=each) for each in removed]
    _alter(bootstrap, AlterUserScramCredentialsRequest(deletions=deletions))
    for each in removed:
        print(f"user {name} does not authenticate by {each.title} any more")


async def _enabled(client: Client) -> frozenset[str]:
    """The mechanisms that a broker enables; none if it does not tell."""
    try:
        brokers = (await describe_cluster(client)).brokers
        configs = await holder_configs(client, broker_holder(brokers[0].broker_id))
    except RequestRefused:
        return frozenset()
    return frozenset(
        [
            name
            for each in configs
            if each.name == _ENABLED
            for name in (each.value or "").split(",")
        ]
    ) - {""}


def _usable(mechanism: str | None, enabled: frozenset[str]) -> str:
    """The mechanism of a new credential: the asked one, else one that the broker enables."""
    titles = [each.title for each in reversed(ScramMechanism)]
    chosen = mechanism or next((each for each in titles if each in enabled), titles[0])
    if not enabled:
        click.echo(
            f"warning: the broker does not tell {_ENABLED}, for all its listeners: the user can"
            f" log in only at listeners with {chosen} or {_PLAIN}",
            err=True,
        )
    elif enabled.isdisjoint((chosen, _PLAIN)):
        click.echo(
            f"warning: {_ENABLED} of the broker is {','.join(sorted(enabled))}: the user can log in"
            f" only at listeners that enable {chosen} or {_PLAIN}",
            err=True,
        )
    return chosen


def _password() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise click.UsageError("the password's line on stdin is empty")
    return password


def _alter(bootstrap: Bootstrap, request: AlterUserScramCredentialsRequest) -> None:
    async def altered(client: Client) -> None:
        answer = await client.request_any(request)
        for each in answer.results:
            check(f"user {each.user}", each.error_code, each.error_message)

    with_client(bootstrap, altered)
