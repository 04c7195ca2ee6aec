"""Conversion of obstore's exceptions into the store's errors.

obstore raises one class for several HTTP statuses (AlreadyExistsError for 409 and 412) and one
class for all else. So the status, S3's error code and the stage of a broken connection come from
the exception's text. Unrecognised text counts as an unknown outcome. The tests run each case
against a scripted server and so detect a changed text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from obstore.exceptions import InvalidPathError, UnauthenticatedError

from tidelog.storage.object_store import (
    AccessDenied,
    Condition,
    IfMatch,
    ObjectNotFound,
    PreconditionFailed,
    StoreError,
    StoreMisconfigured,
    StoreNotApplied,
    StoreOutcomeUnknown,
)

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>|\(code: (\w{1,100})\)")
"""In the body of an error, or of one key in a DeleteObjects response with status 200."""
_MESSAGE = re.compile(r"<Message>([^<]{1,300})</Message>")
_CONNECT = re.compile(r"Error\(\s*Connect,|HttpError \{\s*kind: Connect,")
_CAUSE = re.compile(r'(?:message|error): "([^"]{1,200})"')
_TIMED_OUT = re.compile(r"kind: Timeout,|TimedOut")
_DEBUG = "\n\nDebug source:"

_CREDENTIAL_CODES = frozenset(
    {
        "AccessDenied",
        "AllAccessDisabled",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
_PASSING_STATUSES = frozenset({408, 409, 429})
_PASSING_CODES = frozenset({"RequestTimeout", "TooManyRequests"})
_CREDENTIALS_REMEDY = (
    "check the credentials (AWS_ACCESS_KEY_ID, AWS_PROFILE or the URL's options) and the policy"
)


class StoreOperation(Enum):
    GET = "get"
    HEAD = "head"
    PUT = "put"
    LIST = "list"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The contents of an exception's text: HTTP status, S3's code and message.

    `status` is None if the store did not answer.
    """

    status: int | None
    code: str
    message: str
    connected: bool
    timed_out: bool

    @classmethod
    def of(cls, error: BaseException) -> HttpAnswer:
        text, _, debug = str(error).partition(_DEBUG)
        status, code, message = _STATUS.search(text), _CODE.search(text), _MESSAGE.search(text)
        if status is None and (cause := _CAUSE.search(debug)) is not None:
            message = cause
        return cls(
            status=int(status[1]) if status else None,
            code=(code[1] or code[2]) if code else "",
            message=message[1] if message else text.splitlines()[0][:300],
            connected=_CONNECT.search(debug) is None,
            timed_out=_TIMED_OUT.search(debug) is not None,
        )

    def __str__(self) -> str:
        if self.status is None:
            return "no answer in time" if self.timed_out else self.message
        words = [str(self.status), self.code, self.message]
        return " ".join(word for word in words if word)


def store_error(
    error: BaseException,
    key: str,
    bucket: str,
    operation: StoreOperation,
    condition: Condition | None = None,
) -> StoreError:
    """The store's error for an obstore exception.

    Reads never have an unknown outcome: they change nothing. A 5xx on a put never counts as not
    applied, whatever its code says.
    """
    if isinstance(error, InvalidPathError):
        return StoreMisconfigured(
            key,
            f"bucket {bucket} holds a key that is not Tidelog's: {HttpAnswer.of(error).message}",
        )
    answer = HttpAnswer.of(error)
    if answer.status is None:
        return _without_answer(error, answer, key, operation)
    if answer.code == "NoSuchBucket":
        return StoreMisconfigured(
            key, f"bucket {bucket} does not exist; create it with: tidelog bucket create URL"
        )
    if answer.code in _CREDENTIAL_CODES or answer.status in {401, 403}:
        return AccessDenied(key, f"{operation.value} is refused ({answer}); {_CREDENTIALS_REMEDY}")
    if answer.status == 404:
        return _absent(answer, key, bucket, operation, condition)
    if answer.status == 412 and condition is not None:
        return PreconditionFailed(key, _broken_condition(condition))
    is_refusal = answer.status < 500
    if answer.status in _PASSING_STATUSES or (is_refusal and answer.code in _PASSING_CODES):
        return StoreNotApplied(key, f"{operation.value} was put off by the store ({answer})")
    if answer.status == 501:
        return StoreMisconfigured(key, f"the store cannot do this {operation.value} ({answer})")
    if answer.status >= 500:
        return _interrupted(key, operation, str(answer))
    return StoreMisconfigured(
        key, f"{operation.value} is refused ({answer}); check the URL, endpoint and region"
    )


def _without_answer(
    error: BaseException, answer: HttpAnswer, key: str, operation: StoreOperation
) -> StoreError:
    if answer.code in _CREDENTIAL_CODES:
        return AccessDenied(key, f"{operation.value} is refused ({answer}); {_CREDENTIALS_REMEDY}")
    if isinstance(error, UnauthenticatedError):
        return AccessDenied(key, f"no credentials ({answer}); {_CREDENTIALS_REMEDY}")
    if "incorrectly configured region" in answer.message:
        return StoreMisconfigured(key, f"{answer}; set region in the URL or AWS_REGION")
    if "ETag Header missing" in answer.message:
        return StoreMisconfigured(
            key, "the store answers without an ETag, so versions cannot be compared"
        )
    if not answer.connected:
        return StoreNotApplied(key, f"the store cannot be reached ({answer})")
    return _interrupted(key, operation, str(answer))


def _interrupted(key: str, operation: StoreOperation, why: str) -> StoreError:
    if operation in {StoreOperation.PUT, StoreOperation.DELETE}:
        return StoreOutcomeUnknown(key, f"{operation.value} may or may not be applied ({why})")
    return StoreNotApplied(key, f"{operation.value} failed ({why})")


def _absent(
    answer: HttpAnswer,
    key: str,
    bucket: str,
    operation: StoreOperation,
    condition: Condition | None,
) -> StoreError:
    if operation in {StoreOperation.GET, StoreOperation.HEAD}:
        return ObjectNotFound(key, "no such object")
    if isinstance(condition, IfMatch):
        return PreconditionFailed(key, _broken_condition(condition))
    return StoreMisconfigured(
        key, f"{operation.value} in bucket {bucket} found nothing ({answer}); check the URL"
    )


def _broken_condition(condition: Condition) -> str:
    if isinstance(condition, IfMatch):
        return "the object is not the expected version"
    return "an object is there already"
