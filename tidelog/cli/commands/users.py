"""`tidelog users`: the users of a cluster, who authenticate by SCRAM or PLAIN."""

from __future__ import annotations

import json
import sys

import click

from tidelog.cli.broker_client import bootstrap_option, json_option, with_client
from tidelog.cli.scram_options import NewCredential, new_salt
from tidelog.client.errors import check, check_read
from tidelog.client.pool import Client
from tidelog.protocol.schemas.security.scram import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tidelog.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism, salted_password

mechanism_option = click.option(
    "--mechanism",
    type=click.Choice([each.title for each in ScramMechanism]),
    default=ScramMechanism.SCRAM_SHA_512.title,
    show_default=True,
)


@click.group()
def users() -> None:
    """List, add and remove the users of a cluster."""


@users.command(name="list")
@bootstrap_option
@json_option
def list_users(bootstrap: tuple[str, int], as_json: bool) -> None:
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
    for row in found:
        print(f"{row['user']}  {row['mechanism']}  {row['iterations']} iterations")


@users.command()
@click.argument("name")
@mechanism_option
@click.option(
    "--iterations",
    type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
    default=ITERATIONS_MIN,
    show_default=True,
)
@bootstrap_option
def add(name: str, mechanism: str, iterations: int, bootstrap: tuple[str, int]) -> None:
    """Add a user, or replace the password of one. The password is read from the terminal or stdin.

    An argument would show it to every process of the machine.
    """
    password = _password()
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
@mechanism_option
@bootstrap_option
def remove(name: str, mechanism: str, bootstrap: tuple[str, int]) -> None:
    """Remove a user's credential. Connections of the user stay until they authenticate again."""
    deletion = ScramCredentialDeletion(name=name, mechanism=ScramMechanism.named(mechanism))
    _alter(bootstrap, AlterUserScramCredentialsRequest(deletions=[deletion]))
    print(f"user {name} does not authenticate by {mechanism} any more")


def _password() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise click.UsageError("the password's line on stdin is empty")
    return password


def _alter(bootstrap: tuple[str, int], request: AlterUserScramCredentialsRequest) -> None:
    async def altered(client: Client) -> None:
        answer = await client.request_any(request)
        for each in answer.results:
            check(f"user {each.user}", each.error_code, each.error_message)

    with_client(bootstrap, altered)
