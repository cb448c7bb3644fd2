"""Which acceptances make the rounds of two laws differ, and by how much each.

With ``a`` and ``b`` the conditional acceptances of the two laws, ``o``, ``S`` and ``V`` occupancy, survival and value,
and ``U[s,k]`` the expected later rounds once ``k`` drafts of the round from ``s`` are accepted, ``U[s,K] = V[s+K+1]``,
``U[s,k-1] = b[s,k] U[s,k] + (1 - b[s,k]) V[s+k]`` of the second law::

    E_b[R] - E_a[R] = sum_{s,k} o_a[s] S_a[s,k-1] (b[s,k] - a[s,k]) (U_b[s,k] - V_b[s+k])

Decode by the first law up to some draft and by the second from then on: each term is what it changes to go over one
draft later, so the sum telescopes. The other order, the second law first, has other terms and the same sum; the mean of
both is given, which changes its sign when the laws change places. Source: the performance difference lemma, Kakade and
Langford 2002, of the chain whose states are the drafts tested.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from markov_spec.arrays import Array, RequestError, RoundLaw
from markov_spec.chain.moments import Rounds, solve


def attribute_rounds(one: RoundLaw, other: RoundLaw, *, first_start: int = 0) -> Array:
    """Attribute the difference of the expected rounds of two laws to the drafts whose acceptances differ.

    Parameters
    ----------
    one, other : RoundLaw
        Of the same rollouts.
    first_start : int
        ``s0``.

    Returns
    -------
    ndarray of float64, (N, K)
        Rounds that ``other`` takes more than ``one`` on account of depth ``k`` of the round from each start; their sum
        over a rollout is ``E[R]`` of ``other`` less that of ``one``. A draft that only one of them makes is never
        accepted in the other.

    Raises
    ------
    RequestError
        If the laws are not of the same rollouts.

    Notes
    -----
    ``O(N K)`` time and memory.

    Examples
    --------
    >>> import numpy as np, markov_spec as ms
    >>> from markov_spec.chain import attribute_rounds
    >>> half, sure = (ms.RoundLaw(np.full((3, 1), a), [0, 3]) for a in (.5, 1))
    >>> attribute_rounds(half, sure).ravel()
    array([-0.125, -0.125,  0.   ])
    """
    if not np.array_equal(one.indptr, other.indptr):
        raise RequestError("other: found other offsets than those of one; allowed: laws of the same rollouts")
    return attribute_solved((one, other), [solve(law, first_start=first_start) for law in (one, other)])


def attribute_solved(laws: Sequence[RoundLaw], solved: Sequence[Rounds]) -> Array:
    """Attribute as `attribute_rounds`, of two laws that are solved."""
    one, other = laws
    depth = max(one.depth, other.depth)
    a, b = (np.pad(law.conditional(), ((0, 0), (0, depth - law.depth))) for law in (one, other))
    there = _telescoped(a, b, solved[0].occupancy, solved[1].value, one.indptr)
    back = _telescoped(b, a, solved[1].occupancy, solved[0].value, one.indptr)
    mean: Array = (there - back) / 2
    return mean


def _telescoped(a: Array, b: Array, occupancy: Array, value: Array, indptr: Array) -> Array:
    rows, depth = a.shape
    ends = np.repeat(indptr[1:], np.diff(indptr))[:, None]
    at = np.arange(rows)[:, None] + np.arange(1, depth + 2)
    after = np.where(at < ends, value[np.minimum(at, max(rows - 1, 0))], 0.0)  # V[s+k], k = 1..K+1
    reached = np.cumprod(np.pad(a[:, :-1], ((0, 0), (1, 0)), constant_values=1.0), axis=1) * occupancy[:, None]
    out, later = np.empty_like(a), after[:, depth].copy()
    for k in range(depth, 0, -1):
        gain = later - after[:, k - 1]
        out[:, k - 1] = reached[:, k - 1] * (b[:, k - 1] - a[:, k - 1]) * gain
        later = after[:, k - 1] + b[:, k - 1] * gain
    return out
