"""docs/formats/metadata.md agrees with the code."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from tests.unit.coordinator.cluster.samples import RETIRED, after, fenced
from tidelog.broker.collect.mark_file import decode_marks, encode_marks
from tidelog.broker.collect.survey_file import decode_survey, encode_survey
from tidelog.bucket.copy.record import decode_copy_record, encode_copy_record
from tidelog.coordinator.cluster.log.leases import decode_lease, encode_lease, lease_key
from tidelog.coordinator.cluster.records.bucket_format import (
    FORMAT_VERSION,
    READER_VERSION,
    WRITER_VERSION,
)
from tidelog.coordinator.cluster.records.credentials import (
    decode_credentials,
    encode_credentials,
)
from tidelog.coordinator.cluster.records.records import RECORD_TYPES, decode_entry, encode_entry
from tidelog.coordinator.cluster.records.settings import ClusterSettings
from tidelog.coordinator.cluster.state.state_snapshot import decode_snapshot, encode_snapshot
from tidelog.identifiers import BrokerId

PAGE = (Path(__file__).parents[5] / "docs/formats/metadata.md").read_text()
PROSE = " ".join(PAGE.split())
EXAMPLES = [text.encode() for text in re.findall(r"```json\n(.*?\n)```", PAGE)]


def test_the_code_writes_the_examples_of_the_page() -> None:
    entry, snapshot, credentials, lease, marks, survey, copied = EXAMPLES
    assert encode_credentials(decode_credentials("k", credentials)) == credentials
    assert encode_entry(decode_entry("k", entry)) == entry
    assert encode_lease(decode_lease(lease_key(BrokerId(1)), lease)) == lease
    assert encode_snapshot(decode_snapshot("k", snapshot), 1_700_000_000_123) == snapshot
    assert decode_snapshot("k", snapshot) == after(fenced(), 2, RETIRED)
    assert encode_marks(*decode_marks("k", marks)) == marks
    assert encode_survey(decode_survey("k", survey)) == survey
    assert encode_copy_record(decode_copy_record("k", copied)) == copied


def test_every_record_and_every_member_is_explained() -> None:
    rows = {
        match[1]: match[0] for match in re.finditer(r"^\| `([A-Z]\w+)` \|.*$", PAGE, re.MULTILINE)
    }
    assert rows.keys() == RECORD_TYPES.keys()
    for name, kind in RECORD_TYPES.items():
        for field in dataclasses.fields(kind):
            assert f"`{field.name}`" in rows[name], f"{name}.{field.name}"


def test_the_numbers_are_those_of_the_code() -> None:
    settings = ClusterSettings()
    versions = f"format {FORMAT_VERSION} and has reader version {READER_VERSION} and writer version"
    assert f"{versions} {WRITER_VERSION}." in PROSE
    assert f"a multiple of {settings.snapshot_interval_entries} writes" in PROSE
    assert f"{settings.delete_grace_ms // 60_000} minutes" in PROSE
    assert f"every {settings.heartbeat_interval_ms // 1000} seconds" in PROSE
    assert f"a margin of {settings.lease_margin_ms // 1000} seconds" in PROSE
    assert f"`session_timeout_ms` ({settings.session_timeout_ms})" in PROSE
