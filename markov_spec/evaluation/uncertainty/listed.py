"""Probabilities that are known among the likeliest tokens of a distribution alone: the drafter's, the target's, both.

lists           q(x) of a token outside the drafter's list lies in [max(0, missing - (V-M-1) last), min(last, missing)]
target-lists    p(x) of a token outside the target's list alike

see ``acceptance.truncated``. The ratio of a token that neither list has lies in ``[q_lo / p_hi, q_hi / p_lo]``; as the
two distributions are unknown apart, both ends are attained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from markov_spec.acceptance.truncated import list_bounds
from markov_spec.arrays import Array, RequestError
from markov_spec.evaluation.laws import Plan
from markov_spec.evaluation.uncertainty.interval import (
    Interval,
    Uncertainty,
    by_cell,
    by_draft,
    log_p_of,
    log_q_of,
    matched,
    of_ratios,
)
from markov_spec.store.metadata import drawn_as_recorded


@dataclass(frozen=True)
class Lists:
    """The drafter's probability of a token is known only among its ``top`` likeliest; by default all listed."""

    top: int | None = None

    name: ClassVar[str] = "lists"

    def __str__(self) -> str:
        return "q known in its lists alone" if self.top is None else f"q known in its top {self.top} alone"

    def interval(self, plan: Plan) -> Interval:
        """See ``Uncertainty``."""
        return _bounded(plan, self, None)

    def logs(self, plan: Plan) -> tuple[Array, Array]:
        """Give the ends of log q of each draft's token."""
        name = plan.drafts.name
        _check(
            plan,
            "drafts are",
            plan.drafts.metadata.get("sampling") or plan.store.metadata.get("sampling"),
            plan.store.drafter_parts(name),
            "part 'lists'",
        )
        part = plan.store.drafter_part(name, "lists", complete=True)
        ids, log_q = part["ids"], part["log_q"]
        if plan.drafts.log_q.ndim == 2:
            ids, log_q = ids[:, : plan.draft_length], log_q[:, : plan.draft_length]
        tokens = plan.rollouts.tokens
        return _ends(plan, ids, log_q, tokens if ids.ndim == 2 else by_cell(tokens, plan.draft_length), self.top)


@dataclass(frozen=True)
class TargetLists:
    """The target's probability of a token is known only among its ``top`` likeliest; by default all listed."""

    top: int | None = None

    name: ClassVar[str] = "target-lists"

    def __str__(self) -> str:
        return "p known in its lists alone" if self.top is None else f"p known in its top {self.top} alone"

    def interval(self, plan: Plan) -> Interval:
        """See ``Uncertainty``."""
        return _bounded(plan, None, self)

    def logs(self, plan: Plan) -> tuple[Array, Array]:
        """Give the ends of log p of each draft's token."""
        store = plan.store
        _check(plan, "tokens are", store.metadata.get("sampling"), store.parts, "part 'lists' of the target")
        part, tokens = store.part("lists", complete=True), plan.rollouts.tokens
        low, high = _ends(plan, part["ids"], part["log_p"], tokens, self.top)
        # The pass that drew the tokens is the one that counts where both know a token.
        known = (part["ids"][:, : self.top] == tokens[:, None]).any(axis=1)
        low, high = (np.where(known, plan.rollouts.log_p, end) for end in (low, high))
        high = np.where(high == -np.inf, 0, high)  # it was drawn, whatever its list rounds to
        return by_draft(plan, low), by_draft(plan, high)


@dataclass(frozen=True)
class BothLists:
    """Drafter and target are known only among their likeliest tokens; made by ``lists+target-lists``."""

    drafter: Lists
    target: TargetLists

    name: ClassVar[str] = "lists+target-lists"

    def __str__(self) -> str:
        return f"{self.drafter}, {self.target}"

    def interval(self, plan: Plan) -> Interval:
        """See ``Uncertainty``."""
        return _bounded(plan, self.drafter, self.target)


def combined(sources: Sequence[Uncertainty]) -> Uncertainty:
    """Combine what is not known.

    Raises
    ------
    RequestError
        If it is not one of the drafter's lists and one of the target's.
    """
    by_kind: Mapping[str, Any] = {source.name: source for source in sources}
    if len(sources) != 2 or by_kind.keys() != {Lists.name, TargetLists.name}:
        found = "+".join(source.name for source in sources)
        raise RequestError(f"bounds: found {found}; allowed: lists+target-lists alone, which are unknown apart")
    return BothLists(by_kind[Lists.name], by_kind[TargetLists.name])


def _bounded(plan: Plan, drafter: Lists | None, target: TargetLists | None) -> Interval:
    if (known := matched(plan)) is not None:
        return known
    q_low, q_high = (log_q_of(plan),) * 2 if drafter is None else drafter.logs(plan)
    if plan.rule == "independent":
        m = int(plan.settings["m"])
        low, high = (1 - (1 - np.exp(end)) ** m for end in (q_low, q_high))
        return Interval(low, high, False, True, True)
    p_low, p_high = (log_p_of(plan),) * 2 if target is None else target.logs(plan)
    # One position of the target stands in many cells, so these do not vary by themselves.
    return of_ratios(plan, _ratio(q_low, p_high), _ratio(q_high, p_low), independent=target is None or q_low.ndim == 1)


def _ratio(log_q: Array, log_p: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.where(log_q == -np.inf, -np.inf, log_q - log_p)


def _check(plan: Plan, what: str, drawn: Mapping[str, Any] | None, parts: Sequence[str], needed: str) -> None:
    """Refuse a store whose lists are not there, or are of another distribution."""
    if not drawn_as_recorded({}, drawn):
        raise RequestError(
            f"contender {plan.contender}: {what} drawn with {drawn}; allowed: temperature 1 and no filter, as lists "
            "are of the plain softmax"
        )
    vocabulary = plan.store.metadata.get("vocab_size")
    if "lists" not in parts or vocabulary is None:
        lacks = needed if vocabulary is not None else "metadata vocab_size"
        raise RequestError(f"contender {plan.contender}: bounds by lists need {lacks}, which was not recorded")


def _ends(plan: Plan, ids: Array, logs: Array, tokens: Array, top: int | None) -> tuple[Array, Array]:
    width = ids.shape[-1] if top is None else top
    if not isinstance(width, int) or not 1 <= width <= ids.shape[-1]:
        raise RequestError(f"bounds: found top={width}; allowed: 1 to {ids.shape[-1]}, the tokens of each list")
    ends = list_bounds(ids[..., :width], logs[..., :width], tokens, vocab_size=plan.store.metadata["vocab_size"])
    with np.errstate(divide="ignore"):
        low, high = (np.log(end) for end in ends)
    return low, high
