"""The content of an atomic snapshot over topics: views, and the transactions that they leave out.

`atomic` takes the snapshot, with the coordinators' code. Spark's tasks get the result and need not
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
    """Views of some topics that show each transaction with all of its rows or with none.

    A partition's rows are all rows of its segments, and the rows of its tail that `keep` selects.
    """

    view: BucketView
    excluded: frozenset[TransactionName]
    """Transactions in the tails whose rows are left out. A tail's own markers exclude others."""

    def keep(self, batches: TailBatches, ordinals: Integers) -> Booleans:
        """True for each batch of a tail that the snapshot shows; for `TailReader.rows`."""
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
