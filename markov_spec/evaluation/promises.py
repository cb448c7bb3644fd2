"""What a drafter's own probabilities promise of its trees, beside what the rollouts of a store keep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from markov_spec.arrays import RequestError
from markov_spec.drafting import BestFirst, Builder, Calibration, surrogate_calibration
from markov_spec.evaluation.contender import Contender, as_contender
from markov_spec.evaluation.learned import settled
from markov_spec.evaluation.lists import held_out, read_lists
from markov_spec.store import Store, open_store


def tree_calibration(
    store: Store | str | Path,
    contender: Contender | str,
    *,
    budgets: Iterable[int],
    holdout: float = 0.0,
    seed: int = 0,
    first_start: int = 0,
) -> Calibration:
    """Compare the accepted drafts that a drafter's own probabilities promise with those of the rollouts.

    Parameters
    ----------
    store : Store or path
    contender : Contender or str
        A drafter whose lists were recorded, ``"block"`` (best-first) or ``"block:tree=eagle2"``; no budget.
    budgets : iterable of int
        Nodes, the root not counted.
    holdout : float
        Share of the prompts that are judged, with the drafter's marginals and with marginals that are re-estimated on
        the others by depth, rank and confidence. 0 judges all, with the drafter's alone.
    seed : int
        Of the split.
    first_start : int
        0 when the first token is drafted too, 1 when the prefill emits it.

    Returns
    -------
    Calibration
        By budget, and by budget and depth: see ``drafting.surrogate_calibration``.

    Raises
    ------
    RequestError, ValueError
        As `budget_curve` and ``drafting.surrogate_calibration``.

    Notes
    -----
    Reads all lists at once, and builds every tree: for stores of some ten thousand starts.

    Examples
    --------
    >>> import markov_spec as ms
    >>> found = ms.tree_calibration("data/demo", "block", budgets=[4])
    >>> promised, kept = found.by_budget.select("expected_occupied", "realised_occupied").row(0)
    >>> bool(promised > kept)  # the drafter is too sure of itself
    True
    """
    opened, given = store if isinstance(store, Store) else open_store(store), as_contender(contender)
    if given.budget is not None:
        raise RequestError(f"contender {given}: found budget={given.budget}; allowed: none, as budgets tells them")
    sizes = sorted(set(budgets))
    train = ~held_out(opened, holdout, seed)
    wanted = given if given.tree is not None else replace(given, tree=BestFirst.name)
    made = settled(opened, wanted, max(sizes, default=0), train if holdout else None)
    assert isinstance(made.tree, Builder)  # settled
    found = list(read_lists(opened, made))
    ids, log_q, tokens = (np.concatenate([getattr(own, name) for own in found]) for name in ("ids", "log_q", "tokens"))
    lengths = np.concatenate([np.diff(own.rollouts.indptr) for own in found])
    return surrogate_calibration(
        ids,
        log_q,
        tokens,
        np.concatenate([[0], np.cumsum(lengths)]),
        budgets=sizes,
        builder=made.tree,
        train=train if holdout else None,
        first_start=first_start,
        complete=all(own.complete for own in found),
    )
