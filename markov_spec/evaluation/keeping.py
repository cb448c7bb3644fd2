"""Keep where rollouts stand in a drafter's trees, so that its lists need not be kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from markov_spec.arrays import Drafts, RequestError, check_integer
from markov_spec.drafting import BestFirst
from markov_spec.evaluation.contender import Contender
from markov_spec.evaluation.lists import recorded
from markov_spec.evaluation.ranked import BEAM, KEPT, RANKS, kept_ranks, ranked
from markov_spec.store import Store, add_drafter, open_store


def keep_tree_ranks(
    store: Store | str | Path, drafter: str, *, max_budget: int, drop: bool = False, overwrite: bool = False
) -> Store:
    """Add the part ``tree-rank`` to a drafter: ranks of its best-first trees of all budgets, from its lists or beams.

    Parameters
    ----------
    store : Store or path
    drafter : str
        One whose lists or beams were recorded: the longer, the larger the budgets that are certain.
    max_budget : int
        Largest number of nodes, the root not counted.
    drop : bool
        Whether to leave out the lists or beams from then on. They take ``M`` times as much as the ranks; other trees,
        and rules that read the drafter's probabilities, need them.
    overwrite : bool
        Whether ranks that are kept already may be replaced: they may come from longer lists.

    Returns
    -------
    Store
        Opened anew.

    Raises
    ------
    RequestError
        If the store has no such drafter, nothing to rank it by, or keeps ranks.
    ValueError
        If the store is damaged, or ``max_budget`` is no integer of 1 or more.

    Notes
    -----
    The drafter is written again beside the old one and takes its place whole, or not at all.

    Examples
    --------
    >>> import tempfile, numpy as np, markov_spec as ms
    >>> lists = {"ids": np.array([[[5, 6]], [[7, 6]], [[5, 7]]]), "log_q": np.log([[[.6, .3]]] * 3)}
    >>> drafts = ms.Drafts("block", "block", "rejection", np.log([[.6], [.3], [.3]]), parts={"lists": lists})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ms.write_store(f"{folder}/run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.array([5, 6, 7]),
    ...         indptr=[0, 3], log_p=np.log([.5, .9, .4]), drafters={"block": drafts})
    ...     store = ms.keep_tree_ranks(store, "block", max_budget=2, drop=True)
    ...     store.drafter_parts("block"), ms.evaluate(store, "block:tree=best-first,budget=1").rounds
    (('law', 'tree-rank'), array([2.]))
    """
    check_integer(max_budget, "max_budget", 1)
    opened = store if isinstance(store, Store) else open_store(store)
    most = kept_ranks(opened, Contender(drafter, tree=BestFirst()))
    if most and not overwrite:
        raise RequestError(
            f"{opened.path}: drafter {drafter!r} keeps ranks up to {most} nodes, perhaps of longer lists than "
            "those that are there now; pass overwrite=True (--overwrite) to replace them"
        )
    return add_drafter(opened.path, _with_ranks(opened, drafter, int(max_budget), drop), overwrite=True)


def _with_ranks(store: Store, name: str, max_budget: int, drop: bool) -> Iterator[Drafts]:
    wanted = Contender(name, tree=BestFirst())
    parts = [part for part in recorded(store, wanted)["parts"] if part not in ("law", RANKS)]
    kept = [part for part in parts if not (drop and part in ("lists", BEAM))]
    first = 0
    for some in ranked(store, wanted, max_budget, fresh=True):
        last = first + len(some.rollouts)
        own = store.batch(first, last)
        told = {"tree": BestFirst.name, "max_budget": max_budget, "depth": some.depth}
        ranks: dict[str, Any] = {"rank": some.ranks.rank, "exact_to": some.ranks.exact_to, "nodes": some.ranks.nodes}
        ranks["reach"] = some.ranks.reach
        drafts = own.drafter(name)
        yield replace(
            drafts,
            parts={
                **{part: own.drafter_part(name, part) for part in kept},
                RANKS: {k: np.asarray(v) for k, v in ranks.items()},
            },
            metadata={**drafts.metadata, KEPT: told},
        )
        first = last
