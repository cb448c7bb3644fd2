"""Builders whose trees are made of what was measured on the rollouts of a store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from markov_spec.arrays import Array, RequestError
from markov_spec.drafting import BUILDERS, Builder, Medusa, Sequoia, StaticFit
from markov_spec.drafting.fit import fit_paths
from markov_spec.drafting.measured import acceptance_of, accuracy_of
from markov_spec.evaluation.contender import Contender
from markov_spec.evaluation.lists import Places, read_places
from markov_spec.store import Store, open_store

LEARNED = ("static", "medusa", "sequoia")
LEARNED_HERE = "the tree is made of what was measured on these rollouts, so its figures are better than on others"


def fit_static_tree(
    store: Store | str | Path,
    drafter: str,
    budget: int,
    *,
    weights: Literal["uniform", "occupancy"] = "uniform",
    depth: int | None = None,
    rollouts: Any = None,
    first_start: int = 0,
) -> StaticFit:
    """Learn a static tree of a drafter from the rollouts of a store.

    Parameters
    ----------
    store : Store or path
    drafter : str
        One whose lists were recorded.
    budget : int
        Nodes, the root not counted; fewer are taken if no others are ever hit.
    weights : {"uniform", "occupancy"}
        ``"uniform"``: the tree of the most accepted drafts over all starts. ``"occupancy"``: the fewest expected rounds
        that were found when each tree's own occupancy weighed the starts of the next.
    depth : int, optional
        Of the tree at most; by default what was recorded.
    rollouts : array of bool, (R,), optional
        Which rollouts to learn from; all by default. Judge the tree on the others.
    first_start : int
        ``s0``, for occupancy.

    Returns
    -------
    StaticFit
        ``"exact"`` for uniform weights, else ``"heuristic"``.

    Raises
    ------
    RequestError
        If the store has no such drafter, or no lists of it, or an argument is not as described.

    Notes
    -----
    ``O(N D)`` for each tree; four bytes of memory for each start and depth.

    Examples
    --------
    >>> import tempfile, numpy as np, markov_spec as ms
    >>> lists = {"ids": np.array([[[5, 6]], [[7, 6]], [[5, 7]]]), "log_q": np.log([[[.6, .3]]] * 3)}
    >>> drafts = ms.Drafts("block", "block", "rejection", np.log([[.6], [.3], [.3]]), parts={"lists": lists})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ms.write_store(f"{folder}/run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.array([5, 6, 7]),
    ...         indptr=[0, 3], log_p=np.log([.5, .9, .4]), drafters={"block": drafts})
    ...     ms.fit_static_tree(store, "block", 1).builder.tree
    ((1,),)
    """
    if weights not in ("uniform", "occupancy"):
        raise RequestError(f"weights: found {weights!r}; allowed: 'uniform', 'occupancy'")
    store = store if isinstance(store, Store) else open_store(store)
    known = read_places(store, Contender(drafter, draft_length=depth), rollouts)
    return fit_paths(
        known.hit,
        known.listed,
        budget,
        indptr=known.indptr if weights == "occupancy" else None,
        first_start=first_start,
    )


def settled(store: Store, contender: Contender, budget: int, rollouts: Array | None = None) -> Contender:
    """Give the contender with a builder instead of its name, measured on some rollouts of the store if need be."""
    if contender.tree is None or isinstance(contender.tree, Builder):
        return contender
    settings: Any = contender.settings
    if contender.tree not in LEARNED:
        return replace(contender, tree=BUILDERS[contender.tree](**settings), settings={})
    known = read_places(store, contender, rollouts)
    return replace(contender, tree=_learned(contender.tree, known, budget, settings), settings={})


def _learned(name: str, known: Places, budget: int, settings: Any) -> Builder:
    weights = np.ones(len(known.hit))
    if name == "static":
        return fit_paths(known.hit, known.listed, budget).builder
    if name == "medusa":
        return Medusa(accuracy_of(known.hit, known.listed, weights))
    return Sequoia(acceptance_of(known.hit, known.listed, weights), **{"depth": known.hit.shape[1], **settings})


def is_learned(contender: Contender) -> bool:
    """Whether the tree is measured on the store that it is evaluated on."""
    return isinstance(contender.tree, str) and contender.tree in LEARNED
