"""The servers of the security benchmarks, and loads against them."""

from __future__ import annotations

from pathlib import Path

from benchmarks.security import servers
from tests.kept_secrets import keep
from tests.unit.broker.authentication.certificates import Authority

RECORDS = 100


def test_users_log_in_and_no_process_has_the_password_in_its_arguments(tmp_path: Path) -> None:
    # The test fails if the secret is in an argument of a started process (tests.secret_watch).
    keep(servers.PASSWORD, "the password of the benchmark")
    authority = Authority.create(tmp_path / "authority")
    certificates = servers.Certificates(authority.trusted, authority.issue("server"))
    options = {"partitions": 1, "record_bytes": 100, "batch_bytes": 1000}
    with servers.tidelog("Tidelog", tmp_path / "tidelog", certificates, {}) as listeners:
        users = listeners.users
        users.create_topic("orders", 1)
        for kind in ("produce", "consume"):
            found = users.load(kind, "orders", records=RECORDS, **options)
            assert found["records"] == RECORDS
        assert servers.PASSWORD not in str(users.client)
