"""The ownership of a partition by an incarnation."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.identifiers import Incarnation, LeaderEpoch


@dataclass(frozen=True, slots=True)
class Tenure:
    """A partition's ownership by one incarnation, from the metadata log (rule C1).

    `handover` is the key of the image that the previous owner left (C3). It is None if there was no
    previous owner, or if it was fenced (C4).
    """

    leader_epoch: LeaderEpoch
    incarnation: Incarnation
    handover: str | None
