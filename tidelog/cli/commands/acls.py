"""`tidelog acls`: lists, adds and removes access control rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple, TypeVar

import click

from tidelog.cli.address import Bootstrap
from tidelog.cli.broker_client import bootstrap_option, json_option, with_client
from tidelog.cli.table import shown_table
from tidelog.client.admin.acls import Acl, AclSelection, create_acls, delete_acls, describe_acls
from tidelog.security.acl_codes import (
    CLUSTER_NAME,
    OPERATIONS,
    WILDCARD,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)

F = TypeVar("F", bound=Callable[..., Any])
_TYPES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.CLUSTER,
}


def _word(code: AclOperation | ResourceType) -> str:
    return code.name.lower().replace("_", "-")


_OPERATIONS = {
    _word(each): each
    for each in (AclOperation.ALL, *sorted({each for some in OPERATIONS.values() for each in some}))
}


class GuardedResource(NamedTuple):
    """The resource that the options name."""

    type: ResourceType
    name: str


def _resource_options(command: F) -> F:
    options = (
        click.option("--topic", metavar="NAME", help="A topic; '*' for all."),
        click.option("--group", metavar="NAME", help="A consumer group; '*' for all."),
        click.option("--transactional-id", metavar="NAME", help="A transactional id; '*' for all."),
        click.option("--cluster", is_flag=True, help="The cluster."),
        click.option("--prefixed", is_flag=True, help="NAME is a prefix."),
    )
    return reduce(lambda found, option: option(found), reversed(options), command)


def _selecting(command: F) -> F:
    options = (
        click.option("--principal", metavar="KIND:NAME", help="Rules of one principal."),
        click.option("--operation", type=click.Choice(list(_OPERATIONS)), help="Of one operation."),
        click.option("--host", metavar="ADDRESS", help="Rules of one host."),
    )
    return reduce(
        lambda found, option: option(found), reversed(options), _resource_options(command)
    )


def _resource(named: dict[str, Any]) -> GuardedResource | None:
    """The only resource that the options name; None if they name none."""
    found = [
        GuardedResource(kind, CLUSTER_NAME if kind is ResourceType.CLUSTER else value)
        for option, kind in _TYPES.items()
        if (value := named[option.replace("-", "_")]) not in (None, False)
    ]
    if len(found) > 1:
        raise click.UsageError("Name one resource: --topic, --group, --transactional-id, --cluster")
    if found and not found[0].name:
        # Without it, the other options would select, and remove, more rules.
        raise click.UsageError("The resource's name is empty; '*' stands for all")
    return found[0] if found else None


def _selection(
    principal: str | None, operation: str | None, host: str | None, named: dict[str, Any]
) -> AclSelection:
    resource = _resource(named)
    if named["prefixed"] and resource is None:
        raise click.UsageError("--prefixed needs a resource, such as --topic NAME")
    pattern = PatternType.PREFIXED if named["prefixed"] else PatternType.LITERAL
    return AclSelection(
        ResourceType.ANY if resource is None else resource.type,
        PatternType.ANY if resource is None else pattern,
        None if resource is None else resource.name,
        principal,
        host,
        AclOperation.ANY if operation is None else _OPERATIONS[operation],
    )


@click.group()
def acls() -> None:
    """List, add and remove access control rules."""


@acls.command("list")
@_selecting
@bootstrap_option
@json_option
def list_(
    principal: str | None,
    operation: str | None,
    host: str | None,
    bootstrap: Bootstrap,
    as_json: bool,
    **named: Any,
) -> None:
    """List the rules, all or some."""
    chosen = _selection(principal, operation, host, named)
    _show(with_client(bootstrap, partial(describe_acls, chosen=chosen)), as_json)


@acls.command()
@click.argument("principal", metavar="KIND:NAME")
@click.argument("operations", nargs=-1, required=True, type=click.Choice(list(_OPERATIONS)))
@_resource_options
@click.option("--host", metavar="ADDRESS", default=WILDCARD, help="Default: all hosts.")
@click.option("--deny", is_flag=True, help="Deny the operations, whatever other rules allow.")
@bootstrap_option
@json_option
def add(
    principal: str,
    operations: tuple[str, ...],
    host: str,
    deny: bool,
    bootstrap: Bootstrap,
    as_json: bool,
    **named: Any,
) -> None:
    """Allow, or deny, User:NAME or Group:NAME some operations."""
    resource = _resource(named)
    if resource is None:
        raise click.UsageError("Name a resource: --topic, --group, --transactional-id or --cluster")
    pattern = PatternType.PREFIXED if named["prefixed"] else PatternType.LITERAL
    permission = PermissionType.DENY if deny else PermissionType.ALLOW
    rules = [
        Acl(
            resource.type,
            pattern,
            resource.name,
            principal,
            host,
            _OPERATIONS[each],
            permission,
        )
        for each in dict.fromkeys(operations)
    ]
    with_client(bootstrap, partial(create_acls, acls=rules))
    _show(rules, as_json)


@acls.command()
@_selecting
@click.option("--all", "is_all", is_flag=True, help="Remove every rule.")
@bootstrap_option
@json_option
def remove(
    principal: str | None,
    operation: str | None,
    host: str | None,
    is_all: bool,
    bootstrap: Bootstrap,
    as_json: bool,
    **named: Any,
) -> None:
    """Remove the selected rules."""
    chosen = _selection(principal, operation, host, named)
    if is_all != (chosen == AclSelection()):
        raise click.UsageError("Select rules by options, or remove every rule by --all alone")
    _show(with_client(bootstrap, partial(delete_acls, chosen=chosen)), as_json)


def _show(rules: list[Acl], as_json: bool) -> None:
    facts = [_facts(rule) for rule in rules]
    if as_json:
        print(json.dumps(facts))
        return
    headers = ("permission", "principal", "operation", "resource", "pattern", "name", "host")
    print(shown_table(headers, [list(each.values()) for each in facts]))


def _facts(rule: Acl) -> dict[str, str]:
    return {
        "permission": rule.permission.name.lower(),
        "principal": rule.principal,
        "operation": _word(rule.operation),
        "resource_type": _word(rule.resource_type),
        "pattern": rule.pattern.name.lower(),
        "name": rule.name,
        "host": rule.host,
    }
