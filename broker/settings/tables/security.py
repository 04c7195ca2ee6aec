"""The settings of TLS and authentication, with Kafka's names, types, defaults and rules.

Each may be given for one listener, as `listener.name.NAME.SETTING`.
"""

from __future__ import annotations

import re

from tidelog.broker.settings.kinds import AtLeast, ListOf, Matching, OneOf, Setting, SettingType
from tidelog.broker.settings.tables.columns import ANY, INT, LIST, LONG, NONE, STRING

PASSWORD = SettingType.PASSWORD
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

_ATTRIBUTE = re.compile(r"CN|OU|O|L|ST|C|STREET|DC|UID|[0-9]+(\.[0-9]+)+", re.IGNORECASE)

# fmt: off
TLS_SETTINGS: tuple[Setting, ...] = (
    Setting("ssl.keystore.type", STRING, "PEM", OneOf(("PEM",)),
        "The form of ssl.keystore.location.", kafka_default="JKS", effect=NONE),
    Setting("ssl.keystore.location", STRING, None, ANY,
        "A file with the listener's private key and its certificate chain, the listener's own"
        " certificate first. The broker reads it again when it changes, and on SIGHUP.",
        per_listener=True),
    Setting("ssl.key.password", PASSWORD, None, ANY,
        "The password of the private key, if it is encrypted.", per_listener=True),
    Setting("ssl.truststore.type", STRING, "PEM", OneOf(("PEM",)),
        "The form of ssl.truststore.location.", kafka_default="JKS", effect=NONE),
    Setting("ssl.truststore.location", STRING, None, ANY,
        "A file with the certificates of the authorities that sign the certificates of clients and"
        " of other brokers.", per_listener=True),
    Setting("ssl.endpoint.identification.algorithm", STRING, "https", OneOf(("https", "")),
        "https: a broker that connects to another one compares the host with the names in its"
        " certificate. Empty: it does not.", per_listener=True),
    Setting("ssl.client.auth", STRING, "none", OneOf(("none", "requested", "required")),
        "Whether clients present certificates.", per_listener=True),
    Setting("ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"), ListOf(("TLSv1.2", "TLSv1.3")),
        "The versions of TLS.", per_listener=True),
    Setting("ssl.cipher.suites", LIST, (), ANY,
        "The cipher suites of TLS 1.2, by their standard names, the preferred one first. Empty:"
        " the safe ones of the platform. Those of TLS 1.3 cannot be chosen.", per_listener=True),
    Setting("ssl.principal.mapping.rules", STRING, "DEFAULT", ANY,
        "How the name in a client's certificate becomes a principal: RULE:pattern/replacement/[LU]"
        " or DEFAULT (the whole name), separated by commas; the first that matches counts.",
        per_listener=True),
    Setting("ssl.principal.groups.attribute", STRING, None,
        Matching(_ATTRIBUTE, "unset, or the short name or the number of an attribute"),
        "The attribute of the name in a client's certificate that names its groups, as OU. Each of"
        " its values is a group. Access control rules name them Group:VALUE. Unset: no groups."
        " Tidelog's own.", per_listener=True),
)

_TOKEN_SETTINGS: tuple[Setting, ...] = (
    Setting("sasl.oauthbearer.jwks.endpoint.url", STRING, None, ANY,
        "Where the keys are that verify the tokens of OAUTHBEARER: a JSON Web Key Set, as"
        " https://HOST/PATH, http://HOST/PATH or file:///PATH.", per_listener=True),
    Setting("sasl.oauthbearer.expected.issuer", STRING, None, ANY,
        "The claim `iss` that tokens must have. Unset: any.", per_listener=True),
    Setting("sasl.oauthbearer.expected.audience", LIST, (), ANY,
        "Tokens must have one of these in their claim `aud`. Empty: any.",
        kafka_default="unset", per_listener=True),
    Setting("sasl.oauthbearer.clock.skew.seconds", INT, 30, AtLeast(0),
        "By how much the clocks of the issuer and the broker may differ.", per_listener=True),
    Setting("sasl.oauthbearer.sub.claim.name", STRING, "sub", ANY,
        "The claim of a token that names the principal.", per_listener=True),
    Setting("sasl.oauthbearer.scope.claim.name", STRING, "scope", ANY,
        "The claim of a token that lists its scopes. A token with a blank scope, or with one"
        " twice, is refused.", per_listener=True),
    Setting("sasl.oauthbearer.groups.claim.name", STRING, None, ANY,
        "The claim of a token that names the principal's groups: a text or a list of texts."
        " Access control rules name them Group:NAME. Unset: no groups. Tidelog's own.",
        per_listener=True),
    Setting("sasl.oauthbearer.jwks.endpoint.refresh.ms", LONG, 3_600_000, AtLeast(1),
        "How often the broker reads the key set again.", per_listener=True),
    Setting("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", LONG, 100, AtLeast(1),
        "The pause after the key set could not be read. Each further failure doubles it.",
        per_listener=True),
    Setting("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", LONG, 10_000, AtLeast(1),
        "The longest pause after the key set could not be read.", per_listener=True),
    Setting("sasl.oauthbearer.jwks.endpoint.unknown.key.refresh.ms", LONG, 10_000, AtLeast(1),
        "How often, at most, a token with an unknown key makes the broker read the key set again."
        " Tidelog's own.", per_listener=True),
    Setting("sasl.oauthbearer.jwks.endpoint.keys.max.age.ms", LONG, 86_400_000, AtLeast(1),
        "How long the keys stay in force while the key set cannot be read. Tidelog's own.",
        per_listener=True),
    Setting("sasl.oauthbearer.jwks.endpoint.timeout.ms", INT, 5_000, AtLeast(1),
        "How long the broker waits for the whole key set. Tidelog's own.", per_listener=True),
    Setting("sasl.oauthbearer.jwks.endpoint.response.max.bytes", INT, 262_144, AtLeast(1),
        "The largest key set that is read. Tidelog's own.", per_listener=True),
    Setting("sasl.oauthbearer.token.endpoint.url", STRING, None, ANY,
        "The file with the broker's own token, as file:///PATH, if brokers authenticate with each"
        " other by OAUTHBEARER. The broker reads it for each authentication.", per_listener=True),
)

AUTHENTICATION_SETTINGS: tuple[Setting, ...] = (
    Setting("sasl.enabled.mechanisms", LIST, (),
        ListOf(SASL_MECHANISMS),
        "The mechanisms by which clients authenticate.", kafka_default="GSSAPI",
        per_listener=True),
    Setting("sasl.mechanism.inter.broker.protocol", STRING, None, OneOf((None, *SASL_MECHANISMS)),
        "The mechanism by which brokers authenticate with each other, if their listener has SASL."
        " It is one of the listener's sasl.enabled.mechanisms.", kafka_default="GSSAPI"),
    Setting("sasl.jaas.config", PASSWORD, None, ANY,
        "The name and the password of the broker at the other brokers: `MODULE required"
        " username=\"...\" password=\"...\";`, with Kafka's login module of the mechanism. It is"
        " given as `listener.name.NAME.scram-sha-512.sasl.jaas.config`. As `${file:PATH:KEY}` the"
        " broker reads it again for each authentication.", per_mechanism=True),
    Setting("sasl.server.max.receive.size", INT, 524288, AtLeast(1),
        "The largest request before and during authentication.", per_listener=True),
    Setting("connection.failed.authentication.delay.ms", INT, 100, AtLeast(0),
        "How long the broker waits before it answers a failed authentication and closes the"
        " connection.", per_listener=True),
    Setting("connections.max.reauth.ms", LONG, 0, AtLeast(0),
        "How long an authentication holds. Then the client authenticates again (KIP-368), or its"
        " connection is closed at its next request. 0: as long as the client's credentials.",
        per_listener=True),
    *_TOKEN_SETTINGS,
    Setting("authentication.timeout.ms", INT, 10_000, AtLeast(1),
        "How long a client may take for its TLS handshake, and again for its authentication by"
        " SASL. Tidelog's own."),
    Setting("ssl.files.check.interval.ms", INT, 5_000, AtLeast(1),
        "How often the broker looks whether the files of keys and certificates have changed."
        " Tidelog's own."),
)
# fmt: on
