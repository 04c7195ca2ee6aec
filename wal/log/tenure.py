"""Who owns a partition, and since when."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.identifiers import Incarnation, LeaderEpoch


@dataclass(frozen=True, slots=True)
class Tenure:
    """A partition's ownership by one incarnation, as the metadata log says (rule C1).

    `handover` is the key of the image that the owner before left (C3), or None where there was no
    owner before or it was fenced (C4).
    """

    leader_epoch: LeaderEpoch
    incarnation: Incarnation
    handover: str | None
