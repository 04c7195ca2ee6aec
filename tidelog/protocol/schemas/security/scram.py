"""DescribeUserScramCredentials (50), AlterUserScramCredentials (51): how users authenticate."""

from __future__ import annotations

from tidelog.protocol.fields import array, binary, int8, int16, int32, string
from tidelog.protocol.message import Request, Response, Struct
from tidelog.protocol.wire import Buffer


class UserName(Struct):
    name: str = string()


class DescribeUserScramCredentialsRequest(
    Request["DescribeUserScramCredentialsResponse"], api_key=50, versions=(0, 0), flexible=0
):
    """List the credentials of some users, or of all."""

    users: list[UserName] | None = array(UserName, nullable="0+")


class CredentialInfo(Struct):
    """A mechanism that a user can authenticate by."""

    mechanism: int = int8()
    iterations: int = int32()


class DescribeUserScramCredentialsResult(Struct):
    """The credentials of one user."""

    user: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    credential_infos: list[CredentialInfo] = array(CredentialInfo)


class DescribeUserScramCredentialsResponse(Response, api_key=50, versions=(0, 0), flexible=0):
    """The credentials by user."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = array(DescribeUserScramCredentialsResult)


class ScramCredentialDeletion(Struct):
    """A credential to delete."""

    name: str = string()
    mechanism: int = int8()


class ScramCredentialUpsertion(Struct):
    """A credential to add or to replace. The client has salted the password."""

    name: str = string()
    mechanism: int = int8()
    iterations: int = int32()
    salt: Buffer = binary()
    salted_password: Buffer = binary()


class AlterUserScramCredentialsRequest(
    Request["AlterUserScramCredentialsResponse"], api_key=51, versions=(0, 0), flexible=0
):
    """Change credentials."""

    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion)


class AlterUserScramCredentialsResult(Struct):
    """The outcome of one user's changes."""

    user: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class AlterUserScramCredentialsResponse(Response, api_key=51, versions=(0, 0), flexible=0):
    """The outcomes by user."""

    throttle_time_ms: int = int32()
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult)
