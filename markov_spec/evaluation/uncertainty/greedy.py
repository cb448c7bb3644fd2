"""What is not known of greedy decoding: drafts that no certificate promises, and ties of the target.

A greedy target emits its likeliest token, so an accepted draft is the rollout's own ``x`` if and only if ``x`` is that
token, and these intervals are of acceptances of ``x``:

    certificates    [1, 1] where the divergence of the two models certifies the draft and ``x`` is the target's only
                    best token, else [0, 1]: what the record says of the draft itself is set aside
    ties            [0, 1] where the draft is ``x`` and the target's two best tokens are equal: 0 for an engine that
                    counts a tie as a rejection, 1 for one that does not. A draft of the other token, which it may
                    accept too, is none of this rollout: 0

A lossy rule's certificate is of acceptance at a context of the rollout, which the accepted draft may leave: it bounds
no rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from markov_spec.arrays import Array, RequestError, cells_inside
from markov_spec.evaluation.certify import certify_range
from markov_spec.evaluation.laws import Plan
from markov_spec.evaluation.lists import ranges
from markov_spec.evaluation.uncertainty.interval import Interval, by_draft, cut, hits
from markov_spec.evaluation.uncertainty.rounded import check_nats

CELL_VALUES = 96  # of 8 bytes for each draft: its lists, and what is made of them


@dataclass(frozen=True)
class Certified:
    """Drafts are known to be accepted where the divergence of target and drafter certifies it, and not else.

    ``kl`` bounds KL(p||q) at every position, in nats, in place of what is recorded, which may be ``tolerance``
    nats too small. ``m`` drafts at each depth are the drafter's best ones.
    """

    kl: float | None = None
    m: int = 1
    tolerance: float = 0.0

    name: ClassVar[str] = "certificates"

    def __post_init__(self) -> None:
        check_nats(self.tolerance, "tolerance")
        if self.kl is not None:
            check_nats(self.kl, "kl")
        if not isinstance(self.m, int) or self.m < 1:
            raise RequestError(f"bounds: found m={self.m!r}; allowed: an integer >= 1, drafts at each depth")

    def __str__(self) -> str:
        known = "recorded KL" if self.kl is None else f"an assumed KL up to {self.kl:g}"
        known += f" and {self.tolerance:g} more" if self.tolerance else ""
        several = f", the drafter's {self.m} best at each depth" if self.m > 1 else ""
        return f"drafts that {known} does not certify{several}"

    def interval(self, plan: Plan) -> Interval:
        """See ``Uncertainty``."""
        _check_greedy(plan)
        sure = self._sure(plan)
        rank = plan.drafts.rank
        hit = hits(plan) if self.m == 1 else None if rank is None else cut(plan, rank) <= self.m
        if hit is not None:
            wrong = sure & ~hit
            if wrong.ndim == 2:
                wrong &= cells_inside(plan.rollouts.indptr, plan.draft_length, plan.lengths(slice(None)))
            self._refuse(plan, int(wrong.sum()))
        return Interval(sure.astype(np.float32), np.ones(sure.shape, np.float32), False, True, self.m == 1)

    def _sure(self, plan: Plan) -> Array:
        """Tell which drafts are certain to be the rollout's tokens."""
        wanted = replace(plan.contender, rule=None, settings={}, draft_length=plan.draft_length)
        options: dict[str, Any] = {"rule": "strict"} if self.m == 1 else {"rule": "tree", "m": self.m}
        parts = [
            certify_range(batch, wanted, kl=self.kl, tolerance=self.tolerance, **options).promised
            for batch in ranges(plan.store, CELL_VALUES * plan.draft_length)
        ]
        sure: Array = np.concatenate(parts)
        return sure if plan.drafts.log_q.ndim == 2 else sure[:, 0]

    def _refuse(self, plan: Plan, wrong: int) -> None:
        if wrong:
            raise RequestError(
                f"contender {plan.contender}: found {wrong} drafts that are certified and were rejected; allowed: "
                f"{'lists and divergences of one pass' if self.kl is None else 'a kl that bounds every divergence'}"
            )


@dataclass(frozen=True)
class Ties:
    """Whether a match counts where the target's two best tokens are equal, or within ``nats``."""

    nats: float = 0.0

    name: ClassVar[str] = "ties"

    def __post_init__(self) -> None:
        check_nats(self.nats)

    def __str__(self) -> str:
        near = f" to {self.nats:g} nats" if self.nats else ""
        return f"matches where the target's two best tokens are equal{near}"

    def interval(self, plan: Plan) -> Interval:
        """See ``Uncertainty``."""
        _check_greedy(plan)
        store = plan.store
        if "lists" not in store.parts or store._target.sizes("lists")["ids"][0] < 2:
            raise RequestError(f"{store.path}: ties need part 'lists' of the target, of 2 tokens or more")
        log_p = store.part("lists", complete=True)["log_p"].astype(np.float64)
        tied = by_draft(plan, log_p[:, 0] - log_p[:, 1] <= self.nats)
        hit = hits(plan)
        # One position of the target stands in many cells, so these do not vary by themselves.
        ends = ((hit & ~tied).astype(np.float64), hit.astype(np.float64))
        return Interval(*ends, False, hit.ndim == 1, True)


def _check_greedy(plan: Plan) -> None:
    sampling = plan.store.metadata.get("sampling") or {}
    if sampling.get("temperature") != 0:
        raise RequestError(
            f"contender {plan.contender}: found rollouts drawn with {sampling or 'a sampling that is not known'}; "
            "allowed: those of a greedy target (temperature 0), whose own tokens are its likeliest"
        )
    if plan.rule != "match":
        raise RequestError(
            f"contender {plan.contender}: found rule {plan.rule!r}; allowed: match, drafts that are the drafter's "
            "likeliest tokens"
        )
