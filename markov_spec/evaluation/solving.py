"""What a range of rollouts contributes to an evaluation: vectors with an entry for each rollout."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from markov_spec.arrays import Array, RoundLaw
from markov_spec.chain import end_accepted, expected_ratio, solve
from markov_spec.evaluation.laws import Plan
from markov_spec.evaluation.trees import TreePlan
from markov_spec.evaluation.workload import repeated_share
from markov_spec.latency import Price
from markov_spec.metrics import CONVENTIONS, RolloutCounts

SOLVED = ("committed", "expected", "variance", "expected_inverse", "drafted", "price", "price_variance")


def solve_range(
    plan: Plan | TreePlan, *, first_start: int, convention: str | None, price: Price | None
) -> dict[str, Array]:
    """Solve the rollouts of a plan.

    Parameters
    ----------
    plan : Plan or TreePlan
    first_start : int
    convention : str, optional
        Whose figure will be asked for: what it needs is computed as well.
    price : Price, optional

    Returns
    -------
    dict of str to ndarray, (R,) or (R, K)
        Fields of ``Rollouts`` and ``Rounds``, ``repeated``, and what the convention needs of ``RolloutCounts``.
    """
    rollouts = plan.rollouts
    parts = [_solved(plan, *span, first_start, convention, price) for span in plan.chunks()]
    text = {"ids": rollouts.ids, "prompt_ids": rollouts.prompt_ids, "benchmarks": rollouts.benchmarks}
    text["finish"] = rollouts.finish_reasons or ()
    return {
        **{name: np.concatenate([part[name] for part in parts]) for name in parts[0]},
        **{name: np.array(values, dtype=object) for name, values in text.items()},
        "tokens": np.diff(rollouts.indptr),
        "repeated": repeated_share(rollouts.tokens, rollouts.indptr),
    }


def _solved(
    plan: Plan | TreePlan, first: int, last: int, first_start: int, convention: str | None, price: Price | None
) -> dict[str, Array]:
    law, depth = plan.law(first, last), plan.draft_length
    prices = None if price is None else plan.prices(price, law, first, last)
    rounds = solve(law, first_start=first_start, price=prices, inverse=True)
    solved = {name: getattr(rounds, name) for name in SOLVED if getattr(rounds, name) is not None}
    # A chunk whose starts all draft less has fewer depths.
    solved["accepted_histogram"] = _widened(rounds.accepted_histogram, depth + 1)
    solved["tested"] = _widened(rounds.tested, depth)
    solved["depths"] = solved["drafted"]
    if isinstance(plan, TreePlan):
        solved |= plan.counted(rounds.occupancy)
    if convention is not None:
        solved |= _counted(law, rounds.occupancy, rounds.committed, convention, first_start)
        solved["drafted_rounds"] = rounds.tested[:, 0] if law.depth else np.zeros(last - first)
    return solved


def _widened(values: Array, width: int) -> Array:
    return np.pad(values, ((0, 0), (0, width - values.shape[1])))


def _counted(law: RoundLaw, occupancy: Array, committed: Array, convention: str, first_start: int) -> dict[str, Array]:
    # Past the end a round that accepts the end token counts one token at least, and all its other drafts at most.
    left = np.repeat(law.indptr[1:], np.diff(law.indptr)) - np.arange(law.indptr[-1])  # tokens to go, T - s
    most = np.maximum(np.asarray(law.draft_length) + 1 - left, 0).astype(np.float64)
    least = (most > 0).astype(np.float64)
    ends = end_accepted(law, occupancy)
    counted = {}
    for name, surplus in (("surplus_least", least), ("surplus_most", most)):
        counted[name] = np.sum(ends * _before_end(surplus, law.indptr, law.depth), axis=1)
    if "ratio_low" in CONVENTIONS[convention].needs:
        for name, surplus in (("ratio_low", least), ("ratio_high", most)):
            counted[name] = expected_ratio(law, tokens=committed, surplus=surplus, first_start=first_start)
    return counted


def _before_end(values: Array, indptr: Array, depth: int) -> Array:
    """Give ``values`` (N,) of the starts ``T-1, ..., T-K`` of each rollout, (R, K); 0 before a rollout."""
    rows = indptr[1:, None] - 1 - np.arange(depth)
    inside = rows >= indptr[:-1, None]
    found: Array = np.zeros(rows.shape)
    found[inside] = values[rows[inside]]
    return found


def rollout_counts(solved: Mapping[str, Array], first_start: int) -> RolloutCounts:
    """Gather what the conventions read."""
    names = ("drafted_rounds", "surplus_least", "surplus_most", "ratio_low", "ratio_high")
    return RolloutCounts(
        solved["tokens"],
        solved["expected"],
        first_start=first_start,
        finish=solved["finish"].tolist(),
        inverse=solved["expected_inverse"],
        **{name: solved[name] for name in names if name in solved},
    )
