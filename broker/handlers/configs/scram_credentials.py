"""DescribeUserScramCredentials and AlterUserScramCredentials: users and how they authenticate."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import ClusterServices
from tidelog.coordinator.cluster.log.credential_files import change_credentials, read_credentials
from tidelog.coordinator.cluster.records.credentials import (
    CREDENTIALS_MAX,
    Credentials,
    UserKey,
)
from tidelog.errors import Refused, TidelogError
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.security.scram import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ScramCredentialUpsertion,
)
from tidelog.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES_MIN,
    ScramMechanism,
    Verifier,
    verifier,
)

logger = logging.getLogger(__name__)

USER_NAME_MAX: Final = 255


class _Fault(Refused):
    """One user's changes get this error."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


async def describe_user_scram_credentials(
    broker: ClusterServices, request: DescribeUserScramCredentialsRequest, _context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """The mechanisms and iterations of users; nothing secret."""
    try:
        await broker.metadata.refresh()
        _, credentials = await read_credentials(broker.metadata, broker.store)
    except TidelogError as error:
        logger.warning("credentials cannot be read", extra={"why": str(error)})
        return DescribeUserScramCredentialsResponse(
            error_code=ErrorCode.REQUEST_TIMED_OUT, error_message="the credentials cannot be read"
        )
    by_user: dict[str, list[CredentialInfo]] = {}
    for (user, mechanism), each in sorted(credentials.verifiers.items()):
        info = CredentialInfo(mechanism=mechanism, iterations=each.iterations)
        by_user.setdefault(user, []).append(info)
    asked = Counter(each.name for each in request.users or ())
    results = [
        _described(user, by_user.get(user), asked[user]) for user in (list(asked) or by_user)
    ]
    return DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _described(
    user: str, infos: list[CredentialInfo] | None, asked: int
) -> DescribeUserScramCredentialsResult:
    result = DescribeUserScramCredentialsResult(user=user, error_message=None)
    if asked > 1:
        result.error_code = ErrorCode.DUPLICATE_RESOURCE
        result.error_message = (
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        )
    elif infos is None:
        result.error_code = ErrorCode.RESOURCE_NOT_FOUND
        result.error_message = f"Attempt to describe a user credential that does not exist: {user}"
    else:
        result.credential_infos = infos
    return result


async def alter_user_scram_credentials(
    broker: ClusterServices, request: AlterUserScramCredentialsRequest, _context: RequestContext
) -> AlterUserScramCredentialsResponse:
    """Make the valid changes, all of them together. They are durable when this returns."""
    change = _Change(request)
    try:
        if change.is_wanted:
            await change_credentials(
                broker.metadata,
                broker.store,
                broker.clock,
                broker.entropy,
                broker.incarnation.epoch,
                change.apply,
            )
    except TidelogError as error:
        logger.warning("credentials were not changed", extra={"why": str(error)})
        change.refuse_all(ErrorCode.REQUEST_TIMED_OUT, "the credentials cannot be changed now")
    except _NothingLeft:
        pass
    return AlterUserScramCredentialsResponse(results=change.results())


class _NothingLeft(Exception):
    """No change of the request is valid."""


class _Change:
    """The changes of one request, by user."""

    def __init__(self, request: AlterUserScramCredentialsRequest) -> None:
        self._faults: dict[str, _Fault | None] = {}
        self._late_faults: dict[str, _Fault] = {}
        self._deleted: list[UserKey] = []
        self._added: dict[UserKey, Verifier] = {}
        seen: Counter[tuple[str, int]] = Counter()
        for name, mechanism in (
            *((each.name, each.mechanism) for each in request.deletions),
            *((each.name, each.mechanism) for each in request.upsertions),
        ):
            seen[name, mechanism] += 1
            self._faults.setdefault(name, None)
        for (user, _), count in seen.items():
            if count > 1:
                self._faults[user] = _Fault(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
        for deletion in request.deletions:
            self._try(deletion.name, partial(self._delete, deletion.name, deletion.mechanism))
        for upsertion in request.upsertions:
            self._try(upsertion.name, partial(self._add, upsertion))

    @property
    def is_wanted(self) -> bool:
        """Whether any change is valid as far as the request tells."""
        return any(fault is None for fault in self._faults.values())

    def apply(self, present: Credentials) -> Credentials:
        """The credentials after the valid changes. Raises _NothingLeft."""
        self._late_faults = {}
        for user, mechanism in self._deleted:
            if (user, mechanism) not in present.verifiers:
                self._late_faults[user] = _Fault(
                    ErrorCode.RESOURCE_NOT_FOUND,
                    "Attempt to delete a user credential that does not exist",
                )
        deleted = [each for each in self._deleted if self._is_valid(each[0])]
        added = {key: each for key, each in self._added.items() if self._is_valid(key[0])}
        if not deleted and not added:
            raise _NothingLeft
        changed = present.changed(deleted, added)
        if len(changed.verifiers) > CREDENTIALS_MAX:
            self.refuse_all(
                ErrorCode.POLICY_VIOLATION, f"a cluster has at most {CREDENTIALS_MAX} credentials"
            )
            raise _NothingLeft
        return changed

    def refuse_all(self, code: ErrorCode, message: str) -> None:
        """No change was made, or it is unknown."""
        for user in self._faults:
            if self._is_valid(user):
                self._late_faults[user] = _Fault(code, message)

    def results(self) -> list[AlterUserScramCredentialsResult]:
        """One for each user."""
        return [self._result(user) for user in self._faults]

    def _result(self, user: str) -> AlterUserScramCredentialsResult:
        fault = self._faults[user] or self._late_faults.get(user)
        if fault is None:
            return AlterUserScramCredentialsResult(user=user, error_message=None)
        return AlterUserScramCredentialsResult(
            user=user, error_code=fault.code, error_message=str(fault)
        )

    def _is_valid(self, user: str) -> bool:
        return self._faults[user] is None and user not in self._late_faults

    def _try(self, user: str, act: Callable[[], None]) -> None:
        try:
            _check_name(user)
            act()
        except _Fault as fault:
            self._faults[user] = self._faults[user] or fault

    def _delete(self, user: str, mechanism: int) -> None:
        self._deleted.append((user, _mechanism(mechanism)))

    def _add(self, wanted: ScramCredentialUpsertion) -> None:
        mechanism = _mechanism(wanted.mechanism)
        if wanted.iterations < ITERATIONS_MIN:
            raise _Fault(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
        if wanted.iterations > ITERATIONS_MAX:
            raise _Fault(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
        salt, salted = bytes(wanted.salt), bytes(wanted.salted_password)
        if len(salt) < SALT_BYTES_MIN:
            raise _Fault(
                ErrorCode.UNACCEPTABLE_CREDENTIAL, f"the salt has less than {SALT_BYTES_MIN} bytes"
            )
        if not salted:
            raise _Fault(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the salted password is empty")
        self._added[wanted.name, mechanism] = verifier(mechanism, salted, salt, wanted.iterations)


def _check_name(user: str) -> None:
    if not user:
        raise _Fault(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if len(user) > USER_NAME_MAX:
        raise _Fault(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"a user's name has at most {USER_NAME_MAX} letters"
        )


def _mechanism(number: int) -> ScramMechanism:
    try:
        return ScramMechanism(number)
    except ValueError:
        raise _Fault(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism") from None
