"""Errors of a transactional producer, with their effect on its transaction."""

from __future__ import annotations

from tidelog.client.errors import RequestOutcome
from tidelog.errors import Refused, TidelogError


class MustAbort(Refused):
    """The transaction cannot be committed and will never be visible. `cause` is the reason."""

    def __init__(self, what: str, cause: TidelogError | None) -> None:
        why = f": {cause}" if cause is not None else ""
        super().__init__(f"{what}{why}; abort the transaction and begin it again")
        self.cause = cause


class ProducerFenced(Refused):
    """Another instance took the transactional id over, or the transaction timed out.

    `outcome` tells whether the open transaction may have been committed. If not, it never will be.
    """

    def __init__(
        self, transactional_id: str, why: TidelogError | None, outcome: RequestOutcome
    ) -> None:
        cause = f" ({why})" if why is not None else ""
        super().__init__(
            f"producer {transactional_id} was fenced by another instance, or its transaction has"
            f" timed out{cause}; of its commit {outcome.value}; start a new producer"
        )
        self.outcome = outcome


class WrongCall(Refused):
    """The producer's state does not allow this call. Nothing was sent."""
