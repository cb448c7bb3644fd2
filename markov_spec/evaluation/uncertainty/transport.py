"""What optimal transport of several drafts accepts of a given token: between two recorded ends (A10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from markov_spec.arrays import Array, RequestError
from markov_spec.evaluation.laws import Plan
from markov_spec.evaluation.uncertainty.interval import Interval, cut
from markov_spec.store.schema import MULTI_DRAFTS


@dataclass(frozen=True)
class Transport:
    """What optimal transport of ``m`` drafts at each depth accepts, which depends on the solver (A10)."""

    m: int

    name: ClassVar[str] = "transport"

    def __str__(self) -> str:
        return f"any optimal transport of {self.m} drafts at each depth"

    def interval(self, plan: Plan) -> Interval:
        """See ``Uncertainty``."""
        store, name = plan.store, plan.drafts.name
        columns: Mapping[str, Array] = {}
        if "multi" in store.drafter_parts(name):
            columns = store.drafter_part(name, "multi")
        ends = [f"transport_{self.m}_{end}" for end in ("low", "high")]
        if self.m not in MULTI_DRAFTS:
            raise RequestError(f"bounds: found m={self.m!r}; allowed: {', '.join(map(str, MULTI_DRAFTS))}")
        if not columns.keys() >= set(ends) or plan.drafts.rule == "match":
            raise RequestError(
                f"contender {plan.contender}: needs transport_{self.m}_low and _high in part 'multi' of drafter "
                f"{name!r}, which was not recorded; markov-spec record --scalars records m = 2, 4, 8"
            )
        if plan.contender.rule is not None:
            raise RequestError(f"contender {plan.contender}: found a rule; allowed: none, as transport decides")
        low, high = (np.clip(cut(plan, columns[end].astype(np.float64)), 0, 1) for end in ends)
        return Interval(low, np.maximum(low, high), False, True, False)
