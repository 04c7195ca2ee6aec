"""The transaction of each batch of an extent, found by the index or by the extent."""

from __future__ import annotations

import numpy as np
import pytest

from tidelog.errors import CorruptObject
from tidelog.records.batch import TRANSACTIONAL_FLAG
from tidelog.wal.log.entries import NO_ORDINAL
from tidelog.wal.log.extents import Extent
from tidelog.wal.read.ordinals import OrdinalColumns, Ordinals, extent_ordinals

KEY = "wal/0-1/00000000000000000002.wal"
EXTENT = Extent(10, 12, 0, KEY, 100, 300)
PLACES = np.array([0, 100, 200])
"""Positions of the extent's batches in its bytes."""
KNOWN = Ordinals(np.array([0, 100, 200, 300]), np.array([1, 7, 8, 9]))
"""Ordinals of the object's batches. The first batch belongs to another partition."""
IN_TRANSACTION = np.full(3, TRANSACTIONAL_FLAG)


def test_the_index_of_the_object_says_the_ordinals() -> None:
    assert extent_ordinals(EXTENT, PLACES, IN_TRANSACTION, KNOWN).tolist() == [7, 8, 9]


def test_a_batch_outside_of_transactions_has_no_ordinal_despite_the_index() -> None:
    attributes = np.array([TRANSACTIONAL_FLAG, 0, TRANSACTIONAL_FLAG])
    found = extent_ordinals(EXTENT, PLACES, attributes, KNOWN).tolist()
    assert found == [7, NO_ORDINAL, 9]


def test_without_an_index_no_batch_has_an_ordinal() -> None:
    assert extent_ordinals(EXTENT, PLACES, np.zeros(3), None).tolist() == [NO_ORDINAL] * 3


@pytest.mark.parametrize("place", [50, 300])
def test_a_batch_that_the_index_does_not_list_names_the_object(place: int) -> None:
    places = np.array([0, 100, place])
    with pytest.raises(CorruptObject, match=f"{KEY} is corrupt: its index does not list"):
        extent_ordinals(EXTENT, places, IN_TRANSACTION, KNOWN)


def test_ordinals_of_many_objects_come_apart_as_they_were() -> None:
    other = Ordinals(np.array([64]), np.array([5]))
    apart = OrdinalColumns.of({"a": KNOWN, "b": other}).apart()
    assert {key: [each.tolist() for each in found] for key, found in apart.items()} == {
        "a": [[0, 100, 200, 300], [1, 7, 8, 9]],
        "b": [[64], [5]],
    }
