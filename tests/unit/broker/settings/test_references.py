"""Settings whose values are in the environment or in other files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.broker.settings.loading import load_settings
from tidelog.errors import InvalidConfiguration

LOGIN = "listener.name.brokers.plain.sasl.jaas.config"


def test_values_come_from_variables_and_files(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text("# of the broker\nkey = hush=1 \npartitions=7\n")
    config = tmp_path / "broker.toml"
    config.write_text(
        f'"ssl.key.password" = "${{file:{secrets}:key}}"\n'
        '"sasl.enabled.mechanisms" = ["${env:FIRST}", "PLAIN"]\n'
    )
    found = load_settings(
        file=config,
        environment={
            "FIRST": "SCRAM-SHA-256",
            "PASSWORD": "${env:FIRST}",
            "TIDELOG_LISTENER_NAME_BROKERS_PLAIN_SASL_JAAS_CONFIG": "a ${env:PASSWORD}/${x}",
        },
        flags=[f"num.partitions=${{file:{secrets}:partitions}}"],
    )
    assert found["ssl.key.password"] == "hush=1"
    assert found["sasl.enabled.mechanisms"] == ("SCRAM-SHA-256", "PLAIN")
    assert found["num.partitions"] == 7
    # References within a replaced value stay as they are.
    assert found[LOGIN] == "a ${env:FIRST}/${x}"


def test_a_setting_that_lies_elsewhere_can_be_read_again(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text("key=first\n")
    config = tmp_path / "broker.toml"
    config.write_text('"ssl.key.password" = "${env:HUSH}"\n"num.partitions" = 3\n')
    flag = f"ssl.key.password=${{file:{secrets}:key}}"
    found = load_settings(file=config, environment={"HUSH": "hush"}, flags=[flag]).overridden(
        {}, {}
    )
    secrets.write_text("key=second\n")
    assert found["ssl.key.password"] == "first"
    assert {name: read() for name, read in found.rereads.items()} == {"ssl.key.password": "second"}
    secrets.unlink()
    with pytest.raises(InvalidConfiguration, match=r"ssl.key.password \(flag\): .*cannot be read"):
        found.rereads["ssl.key.password"]()


@pytest.mark.parametrize(
    ("flag", "why"),
    [
        ("ssl.key.password=${env:NONE}", r"ssl.key.password \(flag\): \$\{env:NONE\}: the env"),
        ("ssl.key.password=${file:/nowhere:a}", r"ssl.key.password \(flag\): /nowhere: cannot"),
        ("ssl.key.password=${file:a}", r"ssl.key.password \(flag\): .*write \$\{file:PATH:KEY\}"),
        ("num.partitions=${env:HUSH}", r"num.partitions = '\$\{env:HUSH\}' \(flag\): must be a 32"),
        (
            "ssl.client.auth=${env:HUSH}",
            r"ssl.client.auth = '\$\{env:HUSH\}' \(flag\): must be one",
        ),
    ],
)
def test_errors_name_the_setting_and_never_the_value(flag: str, why: str) -> None:
    with pytest.raises(InvalidConfiguration, match=why) as refused:
        load_settings(environment={"HUSH": "hush"}, flags=[flag])
    assert "hush" not in str(refused.value)


def test_a_file_without_the_key_is_named(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text("a=hush\n")
    with pytest.raises(InvalidConfiguration, match=f"{secrets} has no property b") as refused:
        load_settings(environment={}, flags=[f"ssl.key.password=${{file:{secrets}:b}}"])
    secrets.write_text("hush\n")
    with pytest.raises(InvalidConfiguration, match="line 1 is not name=value") as malformed:
        load_settings(environment={}, flags=[f"ssl.key.password=${{file:{secrets}:b}}"])
    assert "hush" not in f"{refused.value} {malformed.value}"
