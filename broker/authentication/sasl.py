"""The terms of each listener with SASL, from its settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from tidelog.broker.authentication.attempt import SaslTerms
from tidelog.broker.authentication.mechanisms import (
    PLAIN,
    Exchange,
    PlainExchange,
    ReadCredentials,
    ScramExchange,
)
from tidelog.broker.authentication.oauthbearer import (
    OAuthBearerExchange,
    token_terms,
)
from tidelog.broker.authentication.signing_keys import SigningKeys
from tidelog.broker.settings.settings import TypedValues
from tidelog.broker.settings.tables.security import SASL_MECHANISMS
from tidelog.client.security import OAUTHBEARER
from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.credential_files import read_credentials
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.records.credentials import Credentials
from tidelog.entropy import Entropy
from tidelog.errors import InvalidConfiguration
from tidelog.security.scram import ScramMechanism
from tidelog.storage.object_store import ObjectStore
from tidelog.workers.offload import Offload

ENABLED: Final = "sasl.enabled.mechanisms"


class PresentCredentials:
    """The verifiers that the metadata log names, read once after each change."""

    def __init__(self, log: MetadataLog, store: ObjectStore) -> None:
        self._log = log
        self._store = store
        self._key: str | None = None
        self._credentials = Credentials()
        self._reading = asyncio.Lock()

    async def __call__(self) -> Credentials:
        """See ReadCredentials."""
        if self._log.state.credentials != self._key:
            async with self._reading:
                if self._log.state.credentials != self._key:
                    self._key, self._credentials = await read_credentials(self._log, self._store)
        return self._credentials


def sasl_terms(
    listener: str,
    values: TypedValues,
    credentials: ReadCredentials,
    offload: Offload,
    clock: Clock,
    entropy: Entropy,
    keys: SigningKeys | None = None,
) -> SaslTerms:
    """The terms of a listener, from its settings. Raises InvalidConfiguration.

    `keys`: those that verify tokens, if OAUTHBEARER is enabled.
    """
    known: dict[str, Callable[[], Exchange]] = {
        PLAIN: partial(PlainExchange, credentials, offload),
        **{
            each.title: partial(ScramExchange, each, credentials, entropy)
            for each in ScramMechanism
        },
    }
    if keys is not None:
        known[OAUTHBEARER] = partial(OAuthBearerExchange, keys, token_terms(values), clock)
    enabled = values.items_of(ENABLED)
    if not enabled:
        raise InvalidConfiguration(
            f"listener {listener} has no mechanism: set sasl.enabled.mechanisms, or"
            f" listener.name.{listener.lower()}.sasl.enabled.mechanisms, to some of"
            f" {', '.join(SASL_MECHANISMS)}"
        )
    return SaslTerms(
        {name: known[name] for name in enabled},
        values.integer("connections.max.reauth.ms"),
        values.integer("connection.failed.authentication.delay.ms") / 1000,
        values.integer("sasl.server.max.receive.size"),
        clock,
    )
