"""How many nodes a round drafts: the cheapest choice from every start, and rules that know the drafter alone.

With a price ``c(n)`` of a round of ``n`` nodes, the root not counted, and ``N[s,n]`` the drafts that it accepts (T2)::

    (C*)     C*[T] = 0,  C*[s] = min_n c(n) + C*[min(s+1+N[s,n], T)]
    (Phi)    Phi(n) = v_1 + ... + v_n          accepted drafts that the drafter expects of nodes of probabilities v
    (theta)  theta(n) = (1 + Phi(n)) / c(n)    tokens per unit of the price that it expects of this round

A price is a table: it need not rise with ``n``, nor be convex, as kernels make stairs. "No speculation", ``n = 0``, is
always among the choices, and ties go to fewer nodes.

*Clairvoyant.* ``C*`` is the least price of any choice of ``n`` by the start, a shortest path; acceptance is 0 or 1
given the rollout. Every rule here chooses by the start, so none is cheaper. To accept most in each round, or most per
unit, is none of its kind: an acceptance may end on a worse start.

*Rules.* Those of ``BUDGET_RULES`` read the probabilities ``v`` of one start's nodes in the order in which they are
taken, and the prices. For positive prices ``theta(n) > theta(n-1)`` if and only if ``v_n > theta(n-1) (c(n) -
c(n-1))``, so ``first-drop`` is ``marginal`` with the throughput so far in the place of a fixed one. If ``v`` never
rises and ``c`` is convex, theta has one peak: then ``first-drop`` is ``full-scan``, and so is ``marginal`` with the
throughput of that peak, ties aside. On a stair ``first-drop`` stops where the scan goes on. Rules look at one round:
how far they are from ``C*`` is what a record tells. Each is a function and an entry of ``BUDGET_RULES``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from markov_spec._jit import split_rollouts
from markov_spec.arrays import (
    LOG_TOLERANCE,
    Array,
    RequestError,
    as_float,
    check_first_start,
    check_indptr,
    check_integer,
)
from markov_spec.chain import Control
from markov_spec.drafting import _values
from markov_spec.drafting.inputs import check_cells, split_starts
from markov_spec.drafting.ranks import TreeRanks

Floats = npt.NDArray[np.float64]
Budgets = npt.NDArray[np.int64]


def clairvoyant_budgets(
    ranks: TreeRanks, indptr: Any, *, budgets: Any, prices: Any, first_start: int = 0, threads: int | None = None
) -> Control:
    """Compute the least price of every rollout if each round drafts as many nodes as are best from its start.

    Parameters
    ----------
    ranks : TreeRanks
    indptr : array of int, (R+1,)
        Rollout ``i`` owns rows ``indptr[i]:indptr[i+1]``.
    budgets : array of int, (B,)
        Nodes to choose from, the root not counted: 0 first, for no speculation, then rising within what the ranks tell
        of.
    prices : array of float, (B,) or (N, B)
        Price of a round by its budget, or by start and budget; any unit. A tree that runs out of nodes is paid as its
        budget unless the prices by start say otherwise (``ranks.drafted``).
    first_start : int
        ``s0``: 0 when the first token is drafted too, 1 when the prefill emits it.
    threads : int, optional
        None means the cores that this process may use. Results are bit-equal for every number.

    Returns
    -------
    Control
        ``choice`` holds indices into ``budgets``; of equally cheap ones the smaller. ``"bound"`` if the largest budget
        is above ``exact_to`` at any start, with which the price may err to either side.

    Raises
    ------
    RequestError
        If the budgets do not begin with 0 or rise, the ranks do not tell of one, or one is 2**28 or larger.
    ValueError
        If the offsets do not cover the starts, or prices have another shape or are not finite.

    Notes
    -----
    With prices by budget ``O(N D + B log B)``, whatever the budgets; with prices by start ``O(N (D + B))``. It knows
    the rollout: a yardstick for rules, not a rule (see the module).

    Examples
    --------
    >>> import numpy as np
    >>> from markov_spec.drafting import TreeRanks, clairvoyant_budgets
    >>> ranks = TreeRanks([[1, 4], [2, 3], [1, 2], [9, 10]], max_budget=16)
    >>> budgets = np.array([0, 1, 4, 16])
    >>> best = clairvoyant_budgets(ranks, [0, 4], budgets=budgets, prices=[1, 1.25, 1.5, 3])
    >>> best.value, budgets[best.choice]  # one token without speculation, then 4 nodes
    (array([2.5]), array([0, 4, 1, 0]))
    """
    rows = len(ranks.rank)
    offsets, start = check_indptr(indptr, rows), check_first_start(first_start, rows)
    sizes = _check_budgets(budgets, ranks)
    price = _finite(prices, "prices", ((sizes.size,), (rows, sizes.size)), least=-np.inf)
    place = np.searchsorted(sizes, np.arange(sizes[-1] + 2)).astype(np.int32)
    height = np.array([max(n, 1).bit_length() - 1 for n in range(sizes.size + 1)])
    levels = _range_minima(price) if price.ndim == 1 else np.empty((0, 0), np.int32)
    value, choice = np.empty(offsets.size - 1), np.empty(rows, np.int32)
    common = place, price.reshape(-1), sizes.size * (price.ndim - 1), levels, height, offsets

    def run(first: int, last: int) -> None:
        _values.cheapest(ranks.rank, *common, first, last, start, value, choice)

    split_rollouts(run, offsets, threads=threads, nbytes=ranks.rank.nbytes + price.nbytes)
    certain = bool((np.asarray(ranks.exact_to) >= sizes[-1]).all())
    return Control(value, choice, "exact" if certain else "bound")


def _check_budgets(budgets: Any, ranks: TreeRanks) -> Budgets:
    sizes = np.asarray(budgets)
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or sizes.size == 0:
        raise RequestError(f"budgets: found shape {sizes.shape}, dtype {sizes.dtype}; allowed: (B,) integers")
    sizes = sizes.astype(np.int64)
    if sizes[0] != 0:
        raise RequestError(f"budgets: found {sizes[0]} first; allowed: 0, as no speculation is always a choice")
    if (np.diff(sizes) <= 0).any():
        j = int(np.argmax(np.diff(sizes) <= 0)) + 1
        raise RequestError(f"budgets: found {sizes[j]} after {sizes[j - 1]}; allowed: budgets that rise")
    # No nodes are no matter of the ranks: 0 is allowed where smaller trees are no parts of larger ones.
    bad = (sizes > 0) & ((sizes < ranks.min_budget) | (sizes > ranks.max_budget))
    if bad.any():
        allowed = f"0 and {max(ranks.min_budget, 1)} to {ranks.max_budget}, what the ranks tell of"
        raise RequestError(f"budgets: found {sizes[bad][0]}; allowed: {allowed}")
    check_cells(sizes[-1], "budgets", 1, 2)
    return sizes


def _range_minima(price: Array) -> npt.NDArray[np.int32]:
    # Row l holds at j the index of the first least of the 2**l prices from j, or of as many as there are.
    rows = [np.arange(price.size)]
    while 2 ** len(rows) <= price.size:
        left = rows[-1]
        right = left[np.minimum(np.arange(price.size) + 2 ** (len(rows) - 1), price.size - 1)]
        rows.append(np.where(price[left] <= price[right], left, right))
    return np.array(rows, np.int32)


def node_values(top_log_q: Any, *, max_budget: int, threads: int | None = None) -> Floats:
    """Compute the drafter's probabilities of the best nodes of every start, in best-first order.

    Parameters
    ----------
    top_log_q : array of float, (N, D, M)
        Log-probabilities (nats) of the drafter's ``M`` likeliest tokens for each start and depth, best first; ``-inf``
        where there are no more. A list that begins with NaN is not recorded, as past the end of a rollout, nor are
        those after it.
    max_budget : int
        Nodes of each start, the root not counted.
    threads : int, optional
        None means the cores that this process may use. Results are equal for every number.

    Returns
    -------
    ndarray of float64, (N, max_budget)
        Products of the probabilities on the path to each node of listed tokens, 0 where there are no more nodes. The
        cumulative sum is ``Phi(n)``, the accepted drafts that the drafter itself expects of ``n`` nodes.

    Raises
    ------
    ValueError
        If the result would have more than 2**28 numbers, the shape is another, or a list rises, has a value above 0
        (beyond 1e-6) or NaN after its first entry; the message names start and depth.

    Notes
    -----
    A heap: ``O(max_budget log max_budget)`` for each start. The result is large: call it for some starts at a time.

    Examples
    --------
    >>> import numpy as np
    >>> from markov_spec.drafting import node_values
    >>> node_values(np.log([[[.7, .2], [.5, .4]]]), max_budget=4)
    array([[0.7 , 0.35, 0.28, 0.2 ]])
    """
    check_integer(max_budget, "max_budget", 0)
    log_q = as_float(top_log_q, "top_log_q")
    if log_q.ndim != 3 or 0 in log_q.shape[1:]:
        raise ValueError(f"top_log_q: found shape {log_q.shape}; allowed: (N, D, M), lists for each start and depth")
    check_cells(max_budget, "max_budget", max(len(log_q), 1))
    out = np.empty((len(log_q), int(max_budget)))
    bad: list[int] = []

    def run(first: int, last: int) -> None:
        found = _values.best_values(log_q, first, last, out)
        if found >= 0:
            bad.append(found)

    split_starts(run, len(log_q), threads, log_q.nbytes + out.nbytes)
    if bad:
        s, d = divmod(min(bad), log_q.shape[1])
        raise ValueError(
            f"top_log_q: start {s}, depth {d + 1}: found {log_q[s, d].tolist()}; allowed: at most 0 and never rising"
        )
    return out


def first_drop(values: Any, prices: Any) -> Budgets:
    """Take nodes while each raises the expected tokens per unit of the price.

    Parameters
    ----------
    values : array of float, (N, n)
        Probabilities of each start's nodes in the order in which they are taken (``node_values``); 0 where there are
        no more, which is never taken.
    prices : array of float, (n+1,) or (N, n+1)
        Price of a round of 0 to ``n`` nodes, 0 or more, the same for all starts or not; any unit.

    Returns
    -------
    ndarray of int64, (N,)
        Nodes of each start, the last before theta first does not rise.

    Raises
    ------
    ValueError
        If shapes disagree, a value is outside [0, 1], or a price is negative or not finite; so for all rules.

    Notes
    -----
    ``O(N n)``, as all rules. Optimal for the round that the drafter expects if the price is convex. With a price of 0
    theta is infinite, and nothing more is taken.

    Source: CaDDTree (arXiv 2606.01813).

    Examples
    --------
    >>> from markov_spec.drafting import BUDGET_RULES
    >>> BUDGET_RULES["first-drop"]([[.9, .5, .4], [.1, .05, 0]], [1, 1.2, 1.6, 1.6])
    array([1, 0])
    """
    worth, cost = _read(values, prices)
    rate = _throughput(worth, cost)
    return _leading((rate[:, 1:] > rate[:, :-1]) & (worth > 0))


def full_scan(values: Any, prices: Any) -> Budgets:
    """Take the nodes that promise the most tokens per unit of the price; of equal budgets the smallest.

    Parameters
    ----------
    values, prices
        As in `first_drop`; errors too.

    Returns
    -------
    ndarray of int64, (N,)

    Notes
    -----
    For fixed candidates, such as a tree, a scan past a drop is as lossless as a stop. For sampled drafts whose values
    were computed from the drawn tokens it is not: the budget then depends on tokens that it may leave out.

    Examples
    --------
    >>> from markov_spec.drafting import BUDGET_RULES
    >>> BUDGET_RULES["full-scan"]([[.9, .5, .4], [.1, .05, 0]], [1, 1.2, 1.6, 1.6])
    array([3, 0])
    """
    worth, cost = _read(values, prices)
    rate = _throughput(worth, cost)
    rate[:, 1:][~np.logical_and.accumulate(worth > 0, axis=1)] = -np.inf
    count: Budgets = np.argmax(rate, axis=1)
    return count


def marginal(values: Any, prices: Any, *, lam: float) -> Budgets:
    """Take nodes while each is worth the price that it adds.

    Parameters
    ----------
    values, prices
        As in `first_drop`; errors too.
    lam : float
        Tokens that a unit of the price is worth, 0 or more: such as the throughput that decoding has on average.

    Returns
    -------
    ndarray of int64, (N,)
        Nodes of each start, the last before ``v_n <= lam (c(n) - c(n-1))``.

    Notes
    -----
    Source: the idea of CAST (arXiv 2510.26577), that a node's expected gain must exceed its cost. The paper's own
    inequality was not available here: this is a restatement, not its rule to the letter.

    Examples
    --------
    >>> from markov_spec.drafting import BUDGET_RULES
    >>> BUDGET_RULES["marginal"]([[.9, .5, .4], [.1, .05, 0]], [1, 1.2, 1.6, 1.6], lam=1)
    array([3, 0])
    """
    worth, cost = _read(values, prices)
    if not isinstance(lam, int | float | np.integer | np.floating) or not 0 <= lam < np.inf:
        raise ValueError(f"lam: found {lam!r}; allowed: a finite number >= 0")
    return _leading((worth > lam * np.diff(cost, axis=1)) & (worth > 0))


def prefix(values: Any, prices: Any, *, batch: int = 1) -> Budgets:
    """Admit nodes to a batch one by one, the most probable first, until the throughput of the batch first drops.

    Parameters
    ----------
    values : array of float, (N, n)
        As in `first_drop`, never rising: products along a chain, or best-first nodes.
    prices : array of float, (batch * n + 1,) or (N, batch * n + 1)
        Price of a step that verifies 0 to ``batch * n`` drafted tokens beside a token of each request: 1 / SPS.
    batch : int
        Requests that are decoded together, each with the nodes of this start.

    Returns
    -------
    ndarray of int64, (N,)
        Nodes that every request of the batch has when the throughput, ``(batch + sum of admitted values) / price``,
        first drops. A node that is admitted to some of them only is not counted.

    Raises
    ------
    ValueError
        As `first_drop`, or if values rise or the batch is below 1.

    Notes
    -----
    ``O(N batch n)``. An equal throughput is no drop, so that for one request this goes on where `first_drop` stops,
    and nowhere else. The stop keeps sampled drafts lossless (see `full_scan`). A batch of unlike requests is a problem
    of the batch, not of a start.

    Source: DSpark's scheduler of verified prefixes, algorithm 1 of section 3.2.2.

    Examples
    --------
    >>> from markov_spec.drafting import BUDGET_RULES
    >>> BUDGET_RULES["prefix"]([[.8, .8]], [1, 2, 1 / .45])  # 1, .9, 1.17 tokens per second
    array([0])
    """
    check_integer(batch, "batch", 1)
    worth, cost = _read(values, prices, int(batch))
    rises = np.diff(worth, axis=1) > LOG_TOLERANCE
    if rises.any():
        s, j = divmod(int(np.argmax(rises)), rises.shape[1])
        raise ValueError(f"values: start {s}, node {j + 2}: found {worth[s, j + 1]} after {worth[s, j]}; none may rise")
    rate = _throughput(np.repeat(worth, batch, axis=1), cost, batch)
    stays = (rate[:, 1:] >= rate[:, :-1]) & np.repeat(worth > 0, batch, axis=1)
    return _leading(stays) // batch


BUDGET_RULES: Mapping[str, Callable[..., Budgets]] = {
    "first-drop": first_drop,
    "full-scan": full_scan,
    "marginal": marginal,
    "prefix": prefix,
}


def _read(values: Any, prices: Any, batch: int = 1) -> tuple[Floats, Floats]:
    worth = as_float(values, "values").reshape(np.shape(values)).astype(np.float64, copy=False)
    if worth.ndim != 2:
        raise ValueError(f"values: found shape {worth.shape}; allowed: (N, n), nodes of each start")
    bad = ~((worth >= 0) & (worth <= 1 + LOG_TOLERANCE))
    if bad.any():
        s, j = divmod(int(np.argmax(bad)), worth.shape[1])
        raise ValueError(f"values: start {s}, node {j + 1}: found {worth[s, j]}; allowed: 0 to 1")
    size = batch * worth.shape[1] + 1
    cost = _finite(prices, "prices", ((size,), (len(worth), size)), least=0)
    return worth, cost.astype(np.float64, copy=False).reshape(-1, size)


def _finite(given: Any, name: str, shapes: tuple[tuple[int, ...], ...], *, least: float) -> Array:
    values = as_float(given, name).reshape(np.shape(given))
    if values.shape not in shapes:
        raise ValueError(f"{name}: found shape {values.shape}; allowed: {' or '.join(map(str, shapes))}")
    bad = ~((values >= least) & (np.abs(values) < np.inf))
    if bad.any():
        at = np.unravel_index(int(np.argmax(bad)), values.shape)
        allowed = "finite numbers" if least == -np.inf else f"finite numbers >= {least:g}"
        raise ValueError(f"{name}{[int(i) for i in at]}: found {values[at]}; allowed: {allowed}")
    return values


def _throughput(worth: Floats, cost: Floats, batch: int = 1) -> Floats:
    tokens = np.full((len(worth), worth.shape[1] + 1), float(batch))
    tokens[:, 1:] += np.cumsum(worth, axis=1)
    with np.errstate(divide="ignore"):
        rate: Floats = tokens / cost
    return rate


def _leading(taken: npt.NDArray[np.bool_]) -> Budgets:
    # How many nodes are taken before the first that is not.
    count: Budgets = np.argmin(np.pad(taken, ((0, 0), (0, 1))), axis=1)
    return count
