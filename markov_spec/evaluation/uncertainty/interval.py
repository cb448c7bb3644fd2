"""Intervals of acceptance, and how those of a ratio give them.

With ``r = q/p`` the realised token's ratio, a product rule's acceptance is a function that rises with ``r``, or with
``q`` (``independent``), so an interval of these is one of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from markov_spec.arrays import Array, RequestError, cells_inside
from markov_spec.evaluation.laws import Plan


@dataclass(frozen=True, eq=False)
class Interval:
    """Ends of every acceptance, or of every log-ratio if ``block``, (N, K) or (N,).

    ``independent`` tells whether each may lie anywhere in its interval whatever the others are, ``known`` whether the
    record has the acceptances themselves.
    """

    low: Array
    high: Array
    block: bool
    independent: bool
    known: bool

    def uncertain(self, indptr: Array, lengths: int | Array) -> Array:
        """Count the drafts inside each rollout whose acceptance is not known, and all: (R, 2).

        Of cells, those that are proposed count: at most ``lengths`` from each start.
        """
        cells = self.low.ndim == 2
        inside = cells_inside(indptr, self.low.shape[1], lengths) if cells else np.ones(self.low.shape, dtype=bool)
        low, high = (np.minimum(end, 0) for end in (self.low, self.high)) if self.block else (self.low, self.high)
        with np.errstate(invalid="ignore"):
            counts = [(values if cells else values[:, None]).sum(axis=1) for values in ((high > low) & inside, inside)]
        at = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
        return np.stack([np.bincount(at, own, minlength=indptr.size - 1) for own in counts], axis=1)


class Uncertainty(Protocol):
    """What is not known: an entry of ``UNCERTAIN``, with its settings."""

    name: ClassVar[str]

    def interval(self, plan: Plan) -> Interval:
        """Give the intervals of a range of rollouts.

        Raises
        ------
        RequestError
            If the rule has none of this kind, or the store lacks what they need.
        """


def by_cell(values: Array, depth: int) -> Array:
    """Give the value of the position of each cell, (N, K), from (N,)."""
    at = np.arange(values.size)[:, None] + np.arange(depth)
    cells: Array = values[np.minimum(at, max(values.size - 1, 0))]
    return cells


def by_draft(plan: Plan, values: Array) -> Array:
    """Give the value of each draft's position, in the shape of ``log_q`` as it is evaluated, from (N,)."""
    return values if plan.drafts.log_q.ndim == 1 else by_cell(values, plan.draft_length)


def cut(plan: Plan, values: Array) -> Array:
    """Keep the depths that are evaluated."""
    return values if values.ndim == 1 else values[:, : plan.draft_length]


def log_p_of(plan: Plan) -> Array:
    """Give log p of each draft's token."""
    return by_draft(plan, plan.rollouts.log_p.astype(np.float64))


def unrecorded(plan: Plan) -> int:
    """Count the drafts whose log q was not recorded, as of tokens outside the drafter's lists."""
    none = np.isnan(cut(plan, plan.drafts.log_q))
    if none.ndim == 2:
        none &= cells_inside(plan.rollouts.indptr, none.shape[1], plan.lengths(slice(None)))
    return int(none.sum())


def log_q_of(plan: Plan) -> Array:
    """Give log q of each draft's token.

    Raises
    ------
    RequestError
        If some were not recorded.
    """
    if missing := unrecorded(plan):
        raise RequestError(
            f"contender {plan.contender}: log_q of {missing} drafts was not recorded; allowed: bounds by lists, or by "
            "lists+target-lists"
        )
    return cut(plan, plan.drafts.log_q).astype(np.float64)


def of_ratios(plan: Plan, low: Array, high: Array, *, independent: bool) -> Interval:
    """Make intervals of acceptance from those of log q - log p."""
    if plan.rule == "block":
        return Interval(low, high, True, independent, True)
    if plan.rule == "rejection":
        return Interval(np.exp(np.minimum(low, 0)), np.exp(np.minimum(high, 0)), False, independent, True)
    raise RequestError(f"contender {plan.contender}: found rule {plan.rule!r}; allowed: rejection, block, match")


def hits(plan: Plan) -> Array:
    """Tell which drafts that are fixed beforehand are the rollout's tokens."""
    rank = plan.drafts.rank
    hit: Array = log_q_of(plan) == 0 if rank is None else cut(plan, rank) == 1
    return hit


def matched(plan: Plan) -> Interval | None:
    """Give the known acceptances of a draft that is fixed beforehand; None of others."""
    if plan.rule != "match":
        return None
    hit = hits(plan).astype(np.float64)
    return Interval(hit, hit, False, True, True)
