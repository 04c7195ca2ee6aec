"""The settings that DescribeConfigs adds for a broker, since Kafka's tools look for them.

Facts have Kafka's names: addresses, ids, the location of the data. Settings of functions that
Tidelog lacks appear with Kafka's default, or without a value if that is a class or a mechanism of
Kafka's. None of them can be set: a broker that is given one refuses to start, since an operator who
sets `ssl.keystore.password` expects its keystore.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tidelog.broker.handlers.services import ClusterServices
from tidelog.broker.settings.kinds import Anything, Effect, Setting, SettingType, format_value
from tidelog.broker.settings.listeners import listener_url
from tidelog.broker.settings.settings import ConfigEntry, ConfigSynonym, SettingSource

_ABSENT: Final = (
    (
        "TLS",
        """
        security.providers string
        ssl.allow.dn.changes boolean false
        ssl.allow.san.changes boolean false
        ssl.engine.factory.class class
        ssl.keymanager.algorithm string SunX509
        ssl.keystore.certificate.chain password
        ssl.keystore.key password
        ssl.keystore.password password
        ssl.protocol string TLSv1.3
        ssl.provider string
        ssl.secure.random.implementation string
        ssl.trustmanager.algorithm string PKIX
        ssl.truststore.certificates password
        ssl.truststore.password password
        """,
    ),
    (
        "SASL",
        """
        sasl.client.callback.handler.class class
        sasl.kerberos.kinit.cmd string /usr/bin/kinit
        sasl.kerberos.min.time.before.relogin long 60000
        sasl.kerberos.principal.to.local.rules list DEFAULT
        sasl.kerberos.service.name string
        sasl.kerberos.ticket.renew.jitter double 0.05
        sasl.kerberos.ticket.renew.window.factor double 0.8
        sasl.login.callback.handler.class class
        sasl.login.class class
        sasl.login.connect.timeout.ms int
        sasl.login.read.timeout.ms int
        sasl.login.refresh.buffer.seconds short 300
        sasl.login.refresh.min.period.seconds short 60
        sasl.login.refresh.window.factor double 0.8
        sasl.login.refresh.window.jitter double 0.05
        sasl.login.retry.backoff.max.ms long 10000
        sasl.login.retry.backoff.ms long 100
        sasl.mechanism.controller.protocol string GSSAPI
        sasl.oauthbearer.clock.skew.seconds int 30
        sasl.oauthbearer.expected.audience list
        sasl.oauthbearer.expected.issuer string
        sasl.oauthbearer.jwks.endpoint.refresh.ms long 3600000
        sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000
        sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100
        sasl.oauthbearer.jwks.endpoint.url string
        sasl.oauthbearer.scope.claim.name string scope
        sasl.oauthbearer.sub.claim.name string sub
        sasl.oauthbearer.token.endpoint.url string
        sasl.server.callback.handler.class class
        """,
    ),
    (
        "authorization and delegation tokens",
        """
        alter.config.policy.class.name class
        create.topic.policy.class.name class
        delegation.token.expiry.check.interval.ms long 3600000
        delegation.token.expiry.time.ms long 86400000
        delegation.token.max.lifetime.ms long 604800000
        delegation.token.secret.key password
        principal.builder.class class
        """,
    ),
    (
        "quotas",
        """
        alter.log.dirs.replication.quota.window.num int 11
        alter.log.dirs.replication.quota.window.size.seconds int 1
        client.quota.callback.class class
        remote.log.manager.copy.quota.window.num int 11
        remote.log.manager.copy.quota.window.size.seconds int 1
        remote.log.manager.fetch.quota.window.num int 11
        remote.log.manager.fetch.quota.window.size.seconds int 1
        replication.quota.window.num int 11
        replication.quota.window.size.seconds int 1
        """,
    ),
    (
        "tiered storage",
        """
        remote.fetch.max.wait.ms int 500
        remote.list.offsets.request.timeout.ms long 30000
        remote.log.index.file.cache.total.size.bytes long 1073741824
        remote.log.manager.copier.thread.pool.size int -1
        remote.log.manager.copy.max.bytes.per.second long 9223372036854775807
        remote.log.manager.expiration.thread.pool.size int -1
        remote.log.manager.fetch.max.bytes.per.second long 9223372036854775807
        remote.log.manager.task.interval.ms long 30000
        remote.log.manager.thread.pool.size int 10
        remote.log.metadata.custom.metadata.max.bytes int 128
        remote.log.metadata.manager.class.name string
        remote.log.metadata.manager.class.path string
        remote.log.metadata.manager.impl.prefix string rlmm.config.
        remote.log.metadata.manager.listener.name string
        remote.log.reader.max.pending.tasks int 100
        remote.log.reader.threads int 10
        remote.log.storage.manager.class.name string
        remote.log.storage.manager.class.path string
        remote.log.storage.manager.impl.prefix string rsm.config.
        remote.log.storage.system.enable boolean false
        """,
    ),
    (
        "share groups",
        """
        group.share.delivery.count.limit int 5
        group.share.heartbeat.interval.ms int 5000
        group.share.max.groups short 10
        group.share.max.heartbeat.interval.ms int 15000
        group.share.max.record.lock.duration.ms int 60000
        group.share.max.session.timeout.ms int 60000
        group.share.max.size int 200
        group.share.min.heartbeat.interval.ms int 5000
        group.share.min.record.lock.duration.ms int 15000
        group.share.min.session.timeout.ms int 45000
        group.share.partition.max.record.locks int 200
        group.share.record.lock.duration.ms int 30000
        group.share.session.timeout.ms int 45000
        share.coordinator.append.linger.ms int 10
        share.coordinator.load.buffer.size int 5242880
        share.coordinator.snapshot.update.records.per.snapshot int 500
        share.coordinator.state.topic.compression.codec int 0
        share.coordinator.state.topic.min.isr short 2
        share.coordinator.state.topic.num.partitions int 50
        share.coordinator.state.topic.replication.factor short 3
        share.coordinator.state.topic.segment.bytes int 104857600
        share.coordinator.threads int 1
        share.coordinator.write.timeout.ms int 5000
        share.fetch.purgatory.purge.interval.requests int 1000
        """,
    ),
    (
        "controller quorum",
        """
        controller.listener.names string
        controller.quorum.append.linger.ms int 25
        controller.quorum.bootstrap.servers list
        controller.quorum.election.backoff.max.ms int 1000
        controller.quorum.election.timeout.ms int 1000
        controller.quorum.fetch.timeout.ms int 2000
        controller.quorum.request.timeout.ms int 2000
        controller.quorum.retry.backoff.ms int 20
        controller.quorum.voters list
        controller.socket.timeout.ms int 30000
        early.start.listeners string
        eligible.leader.replicas.enable boolean false
        initial.broker.registration.timeout.ms int 60000
        metadata.log.dir string
        metadata.log.max.record.bytes.between.snapshots long 20971520
        metadata.log.max.snapshot.interval.ms long 3600000
        metadata.log.segment.bytes int 1073741824
        metadata.log.segment.ms long 604800000
        metadata.max.idle.interval.ms int 500
        metadata.max.retention.bytes long 104857600
        metadata.max.retention.ms long 604800000
        """,
    ),
    (
        "metrics reporters and telemetry",
        """
        kafka.metrics.polling.interval.secs int 10
        kafka.metrics.reporters list
        metric.reporters list
        metrics.num.samples int 2
        metrics.recording.level string INFO
        metrics.sample.window.ms long 30000
        telemetry.max.bytes int 1048576
        """,
    ),
    (
        "replication and threads",
        """
        controlled.shutdown.max.retries int 3
        controlled.shutdown.retry.backoff.ms long 5000
        delete.records.purgatory.purge.interval.requests int 1
        fetch.purgatory.purge.interval.requests int 1000
        follower.replication.throttled.rate long 9223372036854775807
        group.coordinator.append.linger.ms int 10
        group.coordinator.threads int 1
        inter.broker.listener.name string
        leader.replication.throttled.rate long 9223372036854775807
        log.dir.failure.timeout.ms long 30000
        log.flush.offset.checkpoint.interval.ms int 60000
        log.flush.start.offset.checkpoint.interval.ms int 60000
        num.replica.alter.log.dirs.threads int
        producer.purgatory.purge.interval.requests int 1000
        replica.alter.log.dirs.io.max.bytes.per.second long 9223372036854775807
        replica.selector.class string
        socket.connection.setup.timeout.max.ms long 30000
        transaction.state.log.load.buffer.size int 5242880
        """,
    ),
)
"""By function: names, types and defaults."""


def described_settings(broker: ClusterServices) -> list[ConfigEntry]:
    """All added settings, with this broker's values."""
    return [*_facts(broker), *_ABSENT_ENTRIES]


def _facts(broker: ClusterServices) -> Iterator[ConfigEntry]:
    broker_id = str(broker.incarnation.broker_id)
    advertised = ",".join(listener_url(each.name, each.advertised) for each in broker.listeners)
    listening = ",".join(listener_url(each.name, each.listening) for each in broker.listeners)
    for name, kind, value, doc in (
        ("advertised.listeners", SettingType.STRING, advertised, "--advertise"),
        ("listeners", SettingType.STRING, listening, "--listen"),
        ("broker.id", SettingType.INT, broker_id, "--broker-id"),
        ("node.id", SettingType.INT, broker_id, "--broker-id"),
        ("log.dir", SettingType.STRING, broker.store.url, "--store"),
        ("log.dirs", SettingType.STRING, broker.store.url, "--store"),
    ):
        setting = _setting(name, kind, None, f"Set by {doc} of `tidelog server`.")
        yield _entry(setting, value, SettingSource.STATIC_BROKER)
    roles = "broker,controller"
    setting = _setting("process.roles", SettingType.LIST, roles, "Always so.")
    yield _entry(setting, roles, SettingSource.DEFAULT)


def _absent() -> Iterator[ConfigEntry]:
    for function, table in _ABSENT:
        for row in table.strip().splitlines():
            name, kind, *default = row.split()
            value = default[0] if default else None
            doc = f"Part of Kafka's {function}, which Tidelog does not have."
            setting = _setting(name, SettingType[kind.upper()], value, doc)
            yield _entry(setting, value, SettingSource.DEFAULT)


def _setting(name: str, kind: SettingType, default: str | None, doc: str) -> Setting:
    return Setting(name, kind, default, Anything(), doc, effect=Effect.NONE)


def _entry(setting: Setting, value: str | None, source: SettingSource) -> ConfigEntry:
    text = format_value(value)
    synonyms = () if text is None else (ConfigSynonym(setting.name, text, source),)
    return ConfigEntry(setting, text, source, True, synonyms)


_ABSENT_ENTRIES: Final = tuple(_absent())
