"""The registry of builders, and the two verbs that take any of them: ranks for all budgets, and one tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from markov_spec.arrays import RequestError, check_integer
from markov_spec.drafting.all_children import AllChildren
from markov_spec.drafting.best_first import BestFirst
from markov_spec.drafting.chain import Chain
from markov_spec.drafting.eagle2 import Eagle2
from markov_spec.drafting.inputs import Builder, Lists
from markov_spec.drafting.medusa import Medusa
from markov_spec.drafting.ranks import TreeRanks, check_budget
from markov_spec.drafting.sequoia import Sequoia
from markov_spec.drafting.static import Static
from markov_spec.drafting.tree import DraftTree

BUILDERS: Mapping[str, type[Builder]] = {
    entry.name: entry for entry in (BestFirst, Chain, Eagle2, AllChildren, Static, Medusa, Sequoia)
}


def tree_ranks(
    top_ids: Any,
    top_log_q: Any,
    tokens: Any,
    *,
    max_budget: int,
    builder: str | Builder = "best-first",
    complete: bool = False,
    threads: int | None = None,
) -> TreeRanks:
    """Compute where the rollout's next tokens stand in the trees of a builder, from every start, for all budgets.

    Parameters
    ----------
    top_ids : array of int, (N, D, M)
        The drafter's ``M`` likeliest tokens for each start and depth, best first; -1 where there are no more.
    top_log_q : array of float, (N, D, M)
        Their log-probabilities (nats), ``-inf`` where there is no token: such nodes are never drafted. Lists past the
        end of a rollout may be NaN if they were not recorded.
    tokens : array of int, (N, D)
        The rollout's next tokens, -1 past its end (``next_tokens``).
    max_budget : int
        Largest number of nodes that is asked about, the root not counted.
    builder : str or Builder
        A name in ``BUILDERS``, or a builder with settings: ``"best-first"``, ``"chain"``, ``Eagle2(beam=8)``.
    complete : bool
        Whether the lists hold all that is ever drafted, as those of a lookup or of a drafter cut to ``M`` candidates.
    threads : int, optional
        None means the cores that this process may use. Results are equal for every number.

    Returns
    -------
    TreeRanks
        For all budgets up to ``max_budget``; ``Sequoia``'s for this one only.

    Raises
    ------
    RequestError
        If the builder is unknown or needs settings.
    ValueError
        If shapes disagree, a list rises, has a value above 0 (beyond 1e-6) or NaN inside its rollout, or is too short
        for the builder; the message names start and depth.

    Notes
    -----
    Best-first: time of the order of the ranks' sum for each start, at most ``O(D max_budget)``; no heap and no tree. An
    id that a list holds twice is found at its first place.

    Examples
    --------
    >>> import numpy as np
    >>> from markov_spec.drafting import tree_ranks
    >>> ids, log_q = [[[7, 8], [5, 6]]], np.log([[[.7, .2], [.5, .4]]])
    >>> ranks = tree_ranks(ids, log_q, [[8, 5]], max_budget=8)
    >>> ranks.rank, ranks.exact_to  # the nodes are worth .7 .35 .28 .2 .1 .08, the first unlisted one up to .28
    (array([[4, 5]], dtype=int32), array([3], dtype=int32))
    >>> tree_ranks(ids, log_q, [[8, 5]], max_budget=8, builder="chain").rank
    array([[2147483647, 2147483647]], dtype=int32)
    """
    chosen = resolve(builder)
    check_budget(max_budget, "max_budget")
    lists = Lists.read(top_ids, top_log_q, tokens, complete=complete, threads=threads)
    return chosen.ranks(lists, int(max_budget))


def build_tree(top_ids: Any, top_log_q: Any, *, budget: int, builder: str | Builder = "best-first") -> DraftTree:
    """Build the tree that one round drafts.

    Parameters
    ----------
    top_ids : array of int, (D, M)
        The drafter's likeliest tokens for each depth, best first; -1 where there are no more.
    top_log_q : array of float, (D, M)
        Their log-probabilities (nats), ``-inf`` where there is no token.
    budget : int
        Nodes, the root not counted; the tree has fewer if no more exist.
    builder : str or Builder
        As in ``tree_ranks``.

    Returns
    -------
    DraftTree
        Nodes in the builder's order, of listed tokens only.

    Raises
    ------
    RequestError
        If the builder is unknown or needs settings.
    ValueError
        If a list is not as described, or the builder's tree is deeper than the lists.

    Examples
    --------
    >>> import numpy as np
    >>> from markov_spec.drafting import build_tree
    >>> tree = build_tree([[7, 8], [5, 6]], np.log([[.7, .2], [.5, .4]]), budget=4)
    >>> tree.rank_path
    ((0,), (0, 0), (0, 1), (1,))
    >>> print(tree.to_text())
    root
    +- 7  0.7
    |  +- 5  0.35
    |  +- 6  0.28
    +- 8  0.2
    """
    chosen = resolve(builder)
    check_integer(budget, "budget", 0)
    ids, given = np.asarray(top_ids), np.asarray(top_log_q)
    nothing = np.zeros((1, *ids.shape[:1]), np.int32)
    lists = Lists.read(ids[None], given[None], nothing, complete=False, threads=1)
    log_q = lists.log_q[0].astype(np.float64)
    paths = chosen.paths(log_q, int(budget))
    number = {path: i for i, path in enumerate(paths)}
    values: dict[tuple[int, ...], float] = {(): 0.0}
    for path in paths:
        values[path] = values[path[:-1]] + log_q[len(path) - 1, path[-1]]
    return DraftTree(
        tokens=np.array([ids[len(path) - 1, path[-1]] for path in paths], np.int32),
        parents=np.array([number.get(path[:-1], -1) for path in paths], np.int32),
        log_values=np.array([values[path] for path in paths]),
        rank_path=tuple(paths),
    )


def resolve(builder: str | Builder) -> Builder:
    """Give a builder that may be named.

    Raises
    ------
    RequestError
        If it is unknown or needs settings.
    """
    if not isinstance(builder, str) and isinstance(builder, Builder):
        return builder
    if not isinstance(builder, str) or builder not in BUILDERS:
        raise RequestError(f"builder: found {builder!r}; allowed: a Builder, {', '.join(BUILDERS)}")
    entry: Any = BUILDERS[builder]
    needs = [field.name for field in fields(entry) if field.default is MISSING]
    if needs:
        raise RequestError(f"builder {builder!r}: needs {', '.join(needs)}; pass {entry.__name__}(...)")
    made: Builder = entry()
    return made
