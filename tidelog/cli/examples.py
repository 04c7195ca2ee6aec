"""Examples below the help of each command."""

from __future__ import annotations

from typing import Final

import click

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "acls add": (
        "tidelog acls add User:alice read write --topic orders",
        "tidelog acls add User:alice read --group billing- --prefixed",
    ),
    "acls list": ("tidelog acls list --principal User:alice",),
    "acls remove": ("tidelog acls remove --principal User:alice --topic orders",),
    "bench consume": ("tidelog bench consume flights --records 100000",),
    "bench produce": (
        "tidelog bench produce flights --records 100000 --size 200",
        "tidelog bench produce flights --throughput 1000 --set linger.ms=50",
    ),
    "bucket check": ("tidelog bucket check s3://my-bucket/prefix",),
    "bucket copy": (
        "tidelog bucket copy s3://my-bucket/prefix s3://other-bucket/copy-1 --dry-run",
        "tidelog bucket copy s3://my-bucket/prefix s3://other-bucket/copy-1",
    ),
    "bucket create": (
        "tidelog bucket create s3://my-bucket/prefix",
        "tidelog bucket create s3://my-bucket/prefix"
        " --add-scram 'SCRAM-SHA-512=[name=admin,password=${env:PASSWORD}]'",
    ),
    "bucket policy": ("tidelog bucket policy s3://my-bucket/prefix --role broker",),
    "bucket repair": (
        "tidelog bucket repair s3://my-bucket/prefix",
        "tidelog bucket repair s3://my-bucket/prefix --accept-loss flights-0",
    ),
    "cluster describe": ("tidelog cluster describe --bootstrap 127.0.0.1:9092,127.0.0.1:9093",),
    "cluster drain": (
        "tidelog cluster drain 2 --timeout 600",
        "tidelog cluster drain 2 --undo",
    ),
    "cluster features describe": ("tidelog cluster features describe",),
    "cluster features upgrade": ("tidelog cluster features upgrade",),
    "cluster move": ("tidelog cluster move flights 0 2",),
    "cluster rebalance": ("tidelog cluster rebalance",),
    "completion": (
        "tidelog completion bash > ~/.local/share/bash-completion/completions/tidelog",
        "tidelog completion fish > ~/.config/fish/completions/tidelog.fish",
    ),
    "configs alter": (
        "tidelog configs alter max.connections.per.ip=100 --brokers",
        "tidelog configs alter --topic flights --unset retention.ms",
    ),
    "configs list": (
        "tidelog configs list --topic flights",
        "tidelog configs list --broker 0 --all",
    ),
    "consume": (
        "tidelog consume flights --until-end",
        "tidelog consume flights --from end --format json",
        "tidelog consume flights --group planes --max 10",
    ),
    "dev": (
        "tidelog dev",
        "tidelog dev --brokers 3 --store moto --set auto.create.topics.enable=false",
        "tidelog dev --folder ./data --console",
    ),
    "doctor": ("tidelog doctor s3://my-bucket/prefix --bootstrap 127.0.0.1:9092",),
    "fsck": ("tidelog fsck --store s3://my-bucket/prefix --shallow",),
    "groups delete": ("tidelog groups delete planes",),
    "groups describe": ("tidelog groups describe planes",),
    "groups list": ("tidelog groups list",),
    "groups reset-offsets": (
        "tidelog groups reset-offsets planes --topic flights --to beginning --dry-run",
        "tidelog groups reset-offsets planes --topic flights --to @1767225600000",
    ),
    "inspect": (
        "tidelog inspect wal wal/0-217/00000000000000000044.wal --store s3://my-bucket/prefix",
    ),
    "produce": (
        "echo 'EWR to IAH' | tidelog produce flights",
        """echo '{"key": "N1", "value": "EWR to IAH"}' | tidelog produce flights --format json""",
    ),
    "quotas list": ("tidelog quotas list --user alice",),
    "quotas remove": ("tidelog quotas remove producer_byte_rate --user alice",),
    "quotas set": (
        "tidelog quotas set producer_byte_rate=1048576 --user alice",
        "tidelog quotas set request_percentage=50 --client-id '<default>'",
    ),
    "server": (
        "tidelog server --store file://$PWD/bucket --listen 127.0.0.1:9092 --http 127.0.0.1:9093",
        "tidelog server --store s3://my-bucket/prefix --listen 0.0.0.0:9092"
        " --advertise broker.example.com:9092 --set num.partitions=6",
    ),
    "topics add-partitions": ("tidelog topics add-partitions flights 8",),
    "topics alter": ("tidelog topics alter flights retention.ms=86400000 --unset segment.ms",),
    "topics create": (
        "tidelog topics create flights --partitions 4",
        "tidelog topics create planes --config cleanup.policy=compact",
    ),
    "topics delete": ("tidelog topics delete flights planes",),
    "topics describe": ("tidelog topics describe flights",),
    "topics flush": ("tidelog topics flush flights",),
    "topics list": ("tidelog topics list --json",),
    "transactions abort": (
        "tidelog transactions abort --topic flights --partition 0 --start-offset 1041",
    ),
    "transactions describe": ("tidelog transactions describe etl-1",),
    "transactions find-hanging": ("tidelog transactions find-hanging --topic flights",),
    "transactions list": ("tidelog transactions list --state Ongoing --longer-than-ms 60000",),
    "users add": ("tidelog users add alice --mechanism SCRAM-SHA-512",),
    "users list": ("tidelog users list --command-config admin.properties",),
    "users remove": ("tidelog users remove alice",),
    "version": ("tidelog version --json",),
}
"""Lines to type, by the command's words behind `tidelog`."""


def add_examples(command: click.Command, words: str) -> None:
    """Put examples below the help of a command. A group shows one of each of its commands."""
    shown = EXAMPLES.get(words, ())
    if isinstance(command, click.Group):
        for name, part in command.commands.items():
            add_examples(part, f"{words} {name}")
        shown = tuple(
            lines[0] for other, lines in EXAMPLES.items() if other.startswith(f"{words} ")
        )
    if shown:
        # \b: click breaks none of these lines.
        command.epilog = "\n".join(["\b", "Examples:", *(f"  {line}" for line in shown)])
