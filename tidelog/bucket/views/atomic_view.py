"""What an atomic snapshot over topics shows: some views, and which transactions are not in them.

`atomic` takes the snapshot, with the coordinators' code. Spark's tasks get the result, and need not
load that code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidelog.bucket.views.reading import BucketView
from tidelog.bucket.views.tail_rows import TailBatches
from tidelog.identifiers import TransactionName
from tidelog.records.batch import TRANSACTIONAL_FLAG
from tidelog.records.parse.varints import Booleans, Integers


@dataclass(frozen=True, slots=True)
class AtomicView:
    """Some topics, such that each transaction is in with all of its rows or with none.

    A partition's rows are those of its segments, and those of its tail that `keep` keeps.
    """

    view: BucketView
    excluded: frozenset[TransactionName]
    """The transactions in the tails that are not in, besides those that a marker there aborts."""

    def keep(self, batches: TailBatches, ordinals: Integers) -> Booleans:
        """Which of some batches of a tail are in; for `TailReader.rows`."""
        kept = np.ones(len(ordinals), np.bool_)
        if not self.excluded:
            return kept
        headers = batches.headers
        transactional = np.flatnonzero((headers["attributes"] & TRANSACTIONAL_FLAG) != 0)
        if not len(transactional):
            return kept
        names = np.stack(
            [headers["producer_id"][transactional].astype(np.int64), ordinals[transactional]], 1
        )
        distinct, numbers = np.unique(names, axis=0, return_inverse=True)
        is_out = [TransactionName(*name) in self.excluded for name in distinct.tolist()]
        kept[transactional] = ~np.array(is_out, np.bool_)[numbers.ravel()]
        return kept
