"""Trees of a drafter whose tokens depend on their path: the best nodes among the paths of a recorded beam.

At each depth the beam holds the ``W`` most probable paths among the children of those that it held at the depth before.
The best tree of ``n <= W`` nodes has at most ``n`` in a depth, and they are the best of theirs: so it is among the
beam's paths, and a rank of at most ``W`` is certain. A larger one is if the prefix is worth more than the last path of
every full beam, as no path outside is worth as much. A prefix that a full beam has not has a rank above ``W``. Where a
beam is full, or a depth past the end is not recorded, no more nodes than the beams' own are certain to exist.

Ranks, ties and trees are those of ``best-first``. Source: SpecExec (arXiv 2406.02532) and DDTree (arXiv 2604.12989)
draft the most probable nodes; the beams are those of EAGLE-2 (arXiv 2406.16858) without its re-ranking.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from markov_spec.arrays import Array, as_float, check_integer
from markov_spec.drafting import _beam
from markov_spec.drafting.inputs import check_ids, split_starts
from markov_spec.drafting.ranks import TreeRanks, check_budget
from markov_spec.drafting.tree import DraftTree


def beam_ranks(
    token: Any, parent: Any, log_q: Any, tokens: Any, *, max_budget: int, threads: int | None = None
) -> TreeRanks:
    """Compute where the rollout's next tokens stand in the best-first trees of a beam's paths, for all budgets.

    Parameters
    ----------
    token, parent : array of int, (N, D, W)
        Paths of each depth, best first: the last token, and the path of the depth before that it goes on from, counted
        from 0 (-1 at depth 1). Token -1 is no path. As the store's part ``beam`` holds them.
    log_q : array of float, (N, D, W)
        Log-probability (nats) of the token after the path before it; ``-inf`` where there is no path. Beams past the
        end of a rollout may be NaN if they were not recorded.
    tokens : array of int, (N, D)
        The rollout's next tokens, -1 past its end (``next_tokens``).
    max_budget : int
        Largest number of nodes that is asked about, the root not counted.
    threads : int, optional
        Results are equal for every number.

    Returns
    -------
    TreeRanks

    Raises
    ------
    ValueError
        If shapes disagree, an id or the budget is too large, or an entry is no path of such a beam; the message names
        start, depth and path.

    Notes
    -----
    ``O(D^2 W)`` for each start.

    Examples
    --------
    >>> import numpy as np
    >>> from markov_spec.drafting import beam_ranks
    >>> token, parent, log_q = [[[7, 8], [5, 6]]], [[[-1, -1], [0, 1]]], np.log([[[.7, .2], [.5, .9]]])
    >>> ranks = beam_ranks(token, parent, log_q, [[8, 6]], max_budget=4)
    >>> ranks.rank, ranks.exact_to  # worth .7 .35 .2 .18, and what the beam has not may be worth .18
    (array([[3, 4]], dtype=int32), array([2], dtype=int32))
    """
    check_budget(max_budget, "max_budget")
    ids, above, values = _arrays(token, parent, log_q)
    nexts = check_ids(tokens, "tokens")
    if nexts.shape != ids.shape[:2]:
        raise ValueError(f"tokens: found shape {nexts.shape}; allowed: {ids.shape[:2]}, a token for each depth")
    rows = len(ids)
    rank, reach = np.empty(nexts.shape, np.int32), np.empty(nexts.shape, np.int32)
    sure, nodes = np.empty(rows, np.int32), np.empty(rows, np.int32)
    bad: list[int] = []

    def run(first: int, last: int) -> None:
        found = _beam.beam_ranks(ids, above, values, nexts, int(max_budget), first, last, rank, reach, sure, nodes)
        if found >= 0:
            bad.append(found)

    split_starts(run, rows, threads, values.nbytes)
    if bad:
        raise _wrong(ids, above, values, min(bad))
    return TreeRanks(rank, max_budget=int(max_budget), exact_to=sure, nodes=nodes, reach=reach)


def beam_tree(token: Any, parent: Any, log_q: Any, *, budget: int) -> DraftTree:
    """Build the tree of the best ``budget`` paths of one start's beams.

    Parameters
    ----------
    token, parent, log_q : array, (D, W)
        As in `beam_ranks`; errors too.
    budget : int
        Nodes, the root not counted.

    Returns
    -------
    DraftTree

    Examples
    --------
    >>> import numpy as np
    >>> from markov_spec.drafting import beam_tree
    >>> print(beam_tree([[7, 8], [5, 6]], [[-1, -1], [0, 1]], np.log([[.7, .2], [.5, .9]]), budget=3).to_text())
    root
    +- 7  0.7
    |  +- 5  0.35
    +- 8  0.2
    """
    check_integer(budget, "budget", 0)
    ids, above, values = _arrays(*(np.asarray(given)[None] for given in (token, parent, log_q)))
    beam_ranks(ids, above, values, np.zeros(ids.shape[:2], np.int32), max_budget=0, threads=1)
    known: dict[tuple[int, int], tuple[tuple[int, ...], float]] = {(-1, -1): ((), 0.0)}
    for d, w in np.argwhere(ids[0] >= 0).tolist():
        path, value = known[d - 1 if d else -1, int(above[0, d, w])]
        place = sum(int(above[0, d, other] == above[0, d, w]) for other in range(w))
        known[d, w] = (*path, place), value + float(values[0, d, w])
    del known[-1, -1]
    taken = sorted(known, key=lambda at: (-known[at][1], known[at][0]))[:budget]
    number = {at: i for i, at in enumerate(taken)}
    return DraftTree(
        tokens=np.array([ids[0, d, w] for d, w in taken], np.int32),
        parents=np.array([number.get((d - 1, int(above[0, d, w])), -1) for d, w in taken], np.int32),
        log_values=np.array([known[at][1] for at in taken]),
        rank_path=tuple(known[at][0] for at in taken),
    )


def _arrays(token: Any, parent: Any, log_q: Any) -> tuple[Array, Array, Array]:
    ids, above = check_ids(token, "token"), check_ids(parent, "parent")
    values = as_float(log_q, "log_q")
    for name, given in (("token", ids), ("parent", above)):
        if given.ndim != 3 or 0 in given.shape[1:] or given.shape != values.shape:
            raise ValueError(
                f"{name}: found shape {given.shape}; allowed: that of log_q, (N, D, W), {values.shape}, no axis empty"
            )
    return ids, above, values.astype(np.float64, order="C")


def _wrong(ids: Array, above: Array, values: Array, at: int) -> ValueError:
    s, rest = divmod(at, ids.shape[1] * ids.shape[2])
    d, w = divmod(rest, ids.shape[2])
    return ValueError(
        f"beam: start {s}, depth {d + 1}, path {w + 1}: found token {ids[s, d, w]}, parent {above[s, d, w]}, log_q "
        f"{values[s, d, w]}; allowed: a path that goes on from one of the depth before (-1 at depth 1) and is worth no "
        f"more than the path before it, or token -1 with parent -1 and -inf"
    )
