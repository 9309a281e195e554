"""A sequence of the naive scheduler: what it knows, what is computed of it, where it stands."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from support.naive_table import NaiveTable

if TYPE_CHECKING:
    from octavo import Reason
    from support.naive_request import NaiveRequest


@dataclass(eq=False)
class NaiveSequence(NaiveTable):
    family: NaiveRequest
    index: int  # among the sequences of its request
    handle: int
    known: list[int]  # prompt and accepted output
    queued_with: int  # the tokens it knew when it was last put into the queue
    emitted: int = 0
    computed: int = 0  # by plans that were committed
    scheduled: int = 0  # and by those that are out
    high_water: int = 0  # the most tokens that it ever had computed
    row: int | None = None  # while it runs, or follows a leader that does
    num_told: int = 0  # the entries of its table that plans have told
    epoch: int | None = field(default=None)  # it publishes while this is the scheduler's
    was_told: bool = False  # to run: by an admission, the fork, or a hand-over
    reason: Reason | None = None  # once it has ended
    is_reported: bool = False
    is_forgotten: bool = False

    def class_under(self, policy: str) -> float:
        family = self.family
        if family.own_key is not None:
            return family.own_key
        if policy == "priority":
            return family.priority
        if policy == "sjf":
            return self.queued_with
        if policy == "edf":
            return math.inf if family.deadline is None else family.deadline
        return 0

    def take_over(self, other: NaiveSequence) -> None:
        """Stands where `other` stood, and leaves it its own reserved row."""
        for name in _HANDED_OVER:
            mine, its = getattr(self, name), getattr(other, name)
            setattr(self, name, its)
            setattr(other, name, mine)

    def join(self, leader: NaiveSequence) -> None:
        """Goes on from where its leader is: the request's prompt is complete."""
        for name in ("computed", "scheduled", "high_water", "queued_with", "epoch"):
            setattr(self, name, getattr(leader, name))


_HANDED_OVER = (
    *("table", "twins", "computed", "scheduled", "high_water", "row", "num_told"),
    *("epoch", "queued_with"),
)
