"""Which law a round follows, from start to start: given choices, and the cheapest of all choices.

With a price ``c_j[s]`` of a round that follows law ``j`` from start ``s``::

    (C*)  C*[T] = 0,  C*[s] = min_j c_j[s] + sum_k A_j[s,k] C*[s+k+1]

It is the optimality equation of a finite-horizon decision process on the starts of one rollout, so ``C*`` is the least
expected price of all ways to choose a law by the start, and of those that read earlier rounds too. What is chosen from
knows the rollout, hence a *clairvoyant*: no engine can follow it, and none that chooses among these laws before a round
does better on average over its luck, the acceptances of the round, which the choice does not know.

A choice that gets the most out of each single round is not this one, and may cost more: an acceptance can end on a
start from which less is accepted. It bounds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from markov_spec._jit import split_rollouts
from markov_spec.arrays import (
    Array,
    Exactness,
    RequestError,
    RoundLaw,
    as_float,
    check_first_start,
    locate,
    rollout_spans,
)
from markov_spec.chain import _control

SPAN_BYTES = 1 << 22  # what each thread copies of the laws at a time


@dataclass(frozen=True, eq=False, repr=False)
class Control:
    """The cheapest choices from every start. Made by ``optimal_choice`` and ``drafting.clairvoyant_budgets``.

    Parameters
    ----------
    value : ndarray of float64, (R,)
        Least expected price of each rollout, in the unit of the prices; 0 where nothing is left to decode.
    choice : ndarray of int32, (N,)
        What is chosen from each start, also before ``first_start``: an index into the laws or the budgets.
    exactness : {"exact", "bound", "heuristic", "teacher-forced"}
        The weakest of all that there was to choose from, chosen or not.
    """

    value: npt.NDArray[np.float64]
    choice: npt.NDArray[np.int32]
    exactness: Exactness

    def __repr__(self) -> str:
        count, total = self.value.size, float(self.value.sum())
        return f"Control({count} rollout{'s' * (count != 1)}, least expected price {total:.6g}, {self.exactness})"


def choose(laws: Sequence[RoundLaw], index: Any) -> RoundLaw:
    """Make the law of rounds that follow, from each start, the one of several laws that is named there.

    Parameters
    ----------
    laws : sequence of RoundLaw
        Of the same rollouts.
    index : array of int, (N,)
        The law of each start, from 0.

    Returns
    -------
    RoundLaw
        In cells (N, the largest ``K``), with the draft length of the chosen law. Its exactness is the weakest of those
        chosen anywhere.

    Raises
    ------
    RequestError
        If there are no laws, or they are not of the same rollouts.
    ValueError
        If the index has another shape, or names a law that is not there; the message names the rollout and position.

    Notes
    -----
    ``O(N K)``. A sampled draft keeps the output lossless only if the choice is made without having seen it. The choice
    may read the rollout's past alone if an engine is to follow it.

    Examples
    --------
    >>> import numpy as np, markov_spec as ms
    >>> from markov_spec.chain import choose
    >>> one, two = ms.RoundLaw(np.full((3, 1), .5), [0, 3]), ms.RoundLaw(np.full(3, .25), [0, 3], 2)
    >>> choose([one, two], [1, 0, 0]).survival()
    array([[0.25  , 0.0625],
           [0.5   , 0.    ],
           [0.5   , 0.    ]])
    """
    offsets = _common_rollouts(laws)
    rows = int(offsets[-1])
    found = np.asarray(index)
    if found.shape != (rows,) or (found.dtype.kind not in "iu" and rows):
        raise ValueError(f"index: found shape {found.shape}, dtype {found.dtype}; allowed: ({rows},) integers")
    bad = (found < 0) | (found >= len(laws))
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(f"index: {locate(offsets, row)}: found {found[row]}; allowed: 0 to {len(laws) - 1}")
    accept = np.zeros((rows, max(law.depth for law in laws)), np.result_type(*(law.accept for law in laws)))
    length = np.zeros(rows, np.int32)
    used: list[RoundLaw] = []
    order = np.argsort(found, kind="stable")
    for law, starts in zip(laws, np.split(order, np.searchsorted(found[order], np.arange(1, len(laws)))), strict=True):
        if starts.size == 0:
            continue
        used.append(law)
        length[starts] = np.broadcast_to(np.asarray(law.draft_length), (rows,))[starts]
        if law.form == "cells":
            accept[starts, : law.depth] = law.accept[starts]
        else:
            accept[starts, : law.depth] = law.accept[np.minimum(starts[:, None] + np.arange(law.depth), rows - 1)]
    return RoundLaw.trusted(accept, offsets, length, _weakest(used))


def optimal_choice(
    laws: Sequence[RoundLaw], prices: Sequence[Any], *, first_start: int = 0, threads: int | None = None
) -> Control:
    """Compute the least expected price of every rollout if each round follows the law that is best from its start.

    Parameters
    ----------
    laws : sequence of RoundLaw
        Of the same rollouts: of one drafter at several draft lengths, of several drafters, or both. No speculation is
        one of them if it is allowed: a law of draft length 0.
    prices : sequence of float or array of float, (N,)
        For each law the price of a round, constant or by start; any unit, the same for all.
    first_start : int
        ``s0``: 0 when the first token is drafted too, 1 when the prefill emits it.
    threads : int, optional
        None means the cores that this process may use. Results are bit-equal for every number.

    Returns
    -------
    Control
        ``choice`` holds indices into ``laws``; of equally cheap ones the first.

    Raises
    ------
    RequestError
        If there are no laws, they are not of the same rollouts, or there is not one price for each.
    ValueError
        If a price has another shape or is not finite, ``first_start`` is negative or ``threads`` below 1.

    Notes
    -----
    ``O(N sum_j K_j)`` time; each thread copies some 4 MB of the laws at a time, or one rollout. This is the optimum
    over choices that depend on the start, and may know the whole rollout, but not how many drafts the round will
    accept: what any policy that picks a draft length or a drafter before each round can be measured against. Choosing
    the most accepted drafts, or the best price per token, round by round is no bound (see the module). With
    ``choose(laws, control.choice)`` the choices are a law again, of which ``solve`` gives all moments.

    Source: Bellman's optimality equation; for drafts as long as they are accepted it is a shortest path.

    Examples
    --------
    >>> import numpy as np, markov_spec as ms
    >>> from markov_spec.chain import optimal_choice
    >>> hit = np.array([[1, 1], [0, 0], [1, 1], [0, 0], [0, 0]], bool)
    >>> laws = [ms.round_law(None, None, [0, 5], rule="match", hit=hit, draft_length=k) for k in range(3)]
    >>> optimal_choice(laws, [1, 1, 1]).choice  # two drafts from start 0 would end on start 3, and take 3 rounds
    array([1, 0, 2, 0, 0], dtype=int32)
    >>> optimal_choice(laws, [1, 1.5, 1.6])
    Control(1 rollout, least expected price 3.1, exact)
    """
    offsets = _common_rollouts(laws)
    rows = int(offsets[-1])
    start = check_first_start(first_start, rows)
    costs = _costs(prices, len(laws), offsets)
    value, choice = np.empty(offsets.size - 1), np.empty(rows, np.int32)
    lengths = [np.broadcast_to(np.asarray(law.draft_length, np.int32), (rows,)) for law in laws]
    layouts = [law.layout() for law in laws]
    row_bytes = sum(row * accept.itemsize + 12 for accept, row, *_ in layouts)

    def run(first: int, last: int) -> None:
        for i, j in rollout_spans(offsets, first, last, max(1, SPAN_BYTES // row_bytes)):
            at = slice(int(offsets[i]), int(offsets[j]))
            parts = [accept[at.start * row : at.stop * row] for accept, row, *_ in layouts]
            begin = np.cumsum([0, *(part.size for part in parts[:-1])])
            common = np.concatenate(parts), begin, np.array([row for _, row, *_ in layouts])
            length, price = (np.stack([whole[at] for whole in of_laws]) for of_laws in (lengths, costs))
            _control.cheapest(*common, length, price, offsets, i, j, start, value, choice)

    split_rollouts(run, offsets, threads=threads, nbytes=rows * row_bytes)
    return Control(value, choice, _weakest(laws))


def _common_rollouts(laws: Sequence[RoundLaw]) -> npt.NDArray[np.int64]:
    if len(laws) == 0:
        raise RequestError("laws: found none; allowed: one or more")
    for j, law in enumerate(laws):
        if not np.array_equal(law.indptr, laws[0].indptr):
            raise RequestError(f"laws: law {j}: found other offsets than those of law 0; allowed: the same rollouts")
    return laws[0].indptr


def _costs(prices: Sequence[Any], count: int, offsets: npt.NDArray[np.int64]) -> list[Array]:
    if len(prices) != count:
        raise RequestError(f"prices: found {len(prices)}; allowed: {count}, one for each law")
    rows = int(offsets[-1])
    costs = []
    for j, price in enumerate(prices):
        if np.shape(price) not in ((), (rows,)):
            raise ValueError(f"prices: law {j}: found shape {np.shape(price)}; allowed: a number or ({rows},)")
        values = as_float(price, f"prices: law {j}").reshape(np.shape(price)).astype(np.float64, copy=False)
        if not np.isfinite(values).all():
            row = int(np.argmin(np.isfinite(values)))
            where = f"{locate(offsets, row)}: " if values.ndim else ""
            raise ValueError(f"prices: law {j}: {where}found {values.flat[row]}; allowed: finite numbers")
        costs.append(np.broadcast_to(values, (rows,)))
    return costs


def _weakest(laws: Sequence[RoundLaw]) -> Exactness:
    order = get_args(Exactness)
    weakest: Exactness = order[max((order.index(law.exactness) for law in laws), default=0)]
    return weakest
