"""The whole distribution of the decoding rounds.

With ``A[s,k]`` the probability that the round from ``s`` accepts ``k`` drafts, indices clipped at the end ``T``::

    (D)  f[s](r) = sum_k A[s,k] f[s+k+1](r-1),  f[T](0) = 1             P(R = r) = f[s0](r)
    (B)  P(max_i R_i <= r) = prod_i F_i(r)                              rollouts decoded in lock-step
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from markov_spec._jit import split_rollouts
from markov_spec.arrays import Array, RoundLaw, check_first_start
from markov_spec.chain import _numba

Floats = npt.NDArray[np.float64]
Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Makespan:
    """Rounds until all rollouts of a group, decoded in lock-step, are finished. Made by ``RoundDistribution.makespan``.

    Parameters
    ----------
    expected : dict of float
        Expected maximum of the rounds, by label in the order of first appearance.
    cdf : dict of ndarray
        ``P(max <= r)`` for ``r = 0, 1, ...``, the last entry 1, by label.
    """

    expected: dict[Hashable, float]
    cdf: dict[Hashable, Floats]

    def __repr__(self) -> str:
        total, count = sum(self.expected.values()), len(self.expected)
        return f"Makespan({count} group{'s' * (count != 1)}, {total:.6g} expected rounds)"


@dataclass(frozen=True, eq=False, repr=False)
class RoundDistribution:
    """Distribution of the decoding rounds of each rollout. Made by ``round_distribution``.

    Parameters
    ----------
    mass : ndarray of float64, (M,)
        ``P(R_i = r)`` at ``mass[indptr[i] + r]``, ``r = 0..T_i - first_start``; ``P(R_i = 0) = 1`` where nothing is
        left to decode.
    indptr : ndarray of int64, (R+1,)
    """

    mass: Floats
    indptr: Offsets

    def __repr__(self) -> str:
        count = self.indptr.size - 1
        return f"RoundDistribution({count} rollout{'s' * (count != 1)}, {self.mean.sum():.6g} expected rounds)"

    def pmf(self, i: int) -> Floats:
        """Give ``P(R_i = r)`` for ``r = 0..T_i - first_start``; a ValueError if there is no rollout ``i``."""
        rollouts = self.indptr.size - 1
        if isinstance(i, bool) or not isinstance(i, int | np.integer) or not 0 <= i < rollouts:
            raise ValueError(f"i: found {i!r}; allowed: a rollout, an integer >= 0 and < {rollouts}")
        return self.mass[self.indptr[i] : self.indptr[i + 1]]

    def cdf(self, i: int) -> Floats:
        """Give ``P(R_i <= r)`` for ``r = 0..T_i - first_start``, the last exactly 1; errors as ``pmf``."""
        total = np.cumsum(self.pmf(i))
        cdf: Floats = total / total[-1]
        return cdf

    @cached_property
    def _rounds(self) -> Floats:
        first = np.repeat(self.indptr[:-1], np.diff(self.indptr))
        return (np.arange(self.mass.size) - first).astype(np.float64)

    @cached_property
    def mean(self) -> Floats:
        """``E[R]``, (R,)."""
        return np.add.reduceat(self.mass * self._rounds, self.indptr[:-1])

    @cached_property
    def variance(self) -> Floats:
        """``Var[R]``, (R,)."""
        gap = self._rounds - np.repeat(self.mean, np.diff(self.indptr))
        return np.add.reduceat(self.mass * gap * gap, self.indptr[:-1])

    def quantile(self, q: float) -> npt.NDArray[np.int64]:
        """Give the least rounds ``r`` with ``P(R_i <= r) >= q`` and positive, (R,).

        Parameters
        ----------
        q : float
            A probability: 0 gives the fewest possible rounds, 1 the most, up to the rounding of ``cdf``.

        Raises
        ------
        ValueError
            If ``q`` is not a number in [0, 1].
        """
        if np.ndim(q) or not 0 <= q <= 1:
            raise ValueError(f"q: found {q!r}; allowed: 0 to 1")
        level = max(float(q), np.finfo(np.float64).smallest_subnormal)
        found = (np.searchsorted(self.cdf(i), level) for i in range(self.indptr.size - 1))
        return np.fromiter(found, np.int64, self.indptr.size - 1)

    def makespan(self, groups: Sequence[Hashable] | Array) -> Makespan:
        """Give the rounds of the last rollout of each group to finish, when all advance in lock-step.

        Parameters
        ----------
        groups : sequence, (R,)
            Label of the group of each rollout.

        Returns
        -------
        Makespan

        Raises
        ------
        ValueError
            If there is not one hashable label for each rollout.

        Examples
        --------
        >>> import numpy as np, markov_spec as ms
        >>> law = ms.RoundLaw.from_acceptance(np.full((6, 1), .5), [0, 2, 4, 6])
        >>> ms.round_distribution(law).makespan(["a", "a", "b"]).expected
        {'a': 1.75, 'b': 1.5}
        """
        labels = groups.tolist() if isinstance(groups, np.ndarray) else list(groups)
        rollouts = self.indptr.size - 1
        if len(labels) != rollouts:
            raise ValueError(f"groups: found {len(labels)} labels; allowed: {rollouts}, one for each rollout")
        cdf: dict[Hashable, Floats] = {}
        for i, label in enumerate(labels):
            if not isinstance(label, Hashable):
                raise ValueError(f"groups: rollout {i}: found {label!r}; allowed: a hashable label")
            one, other = self.cdf(i), cdf.get(label, np.ones(1))
            cdf[label] = np.ones(max(one.size, other.size))
            cdf[label][: one.size] *= one
            cdf[label][: other.size] *= other
        return Makespan({label: float(np.sum(1 - values)) for label, values in cdf.items()}, cdf)


def round_distribution(law: RoundLaw, *, first_start: int = 0, threads: int | None = None) -> RoundDistribution:
    """Compute the distribution of the decoding rounds of every rollout.

    Parameters
    ----------
    law : RoundLaw
    first_start : int
        ``s0``: 0 when the first token is drafted too, 1 when the prefill emits it.
    threads : int, optional
        None means the cores that this process may use. Results are bit-equal for every number.

    Returns
    -------
    RoundDistribution

    Raises
    ------
    ValueError
        If ``first_start`` is negative or ``threads`` below 1.

    Notes
    -----
    ``O(T^2 K)`` time for each rollout, only rounds of positive probability visited; ``O(N)`` memory, and
    ``O(T min(K, T))`` for each thread. Only products and sums of non-negative numbers, so that small probabilities are
    as accurate as large ones. The moments alone are ``solve``'s, in ``O(T K)``.

    Examples
    --------
    >>> import numpy as np, markov_spec as ms
    >>> law = ms.RoundLaw.from_acceptance(np.full((5, 2), .5), [0, 5])
    >>> ms.round_distribution(law).pmf(0)
    array([0.    , 0.    , 0.1875, 0.5   , 0.25  , 0.0625])
    """
    start = check_first_start(first_start, law.accept.shape[0])
    sizes = np.diff(law.indptr)
    offsets = np.concatenate(([0], np.cumsum(np.maximum(sizes - start, 0) + 1)))
    mass = np.empty(int(offsets[-1]))
    weights = np.ones(sizes.size), np.zeros(1), 0

    def run(first: int, last: int) -> None:
        _numba.distribution(*law.layout(), first, last, start, law.depth, *weights, offsets, mass)

    nbytes = law.accept.nbytes * int(np.max(sizes, initial=0))  # a cell is read for every possible number of rounds
    split_rollouts(run, law.indptr, threads=threads, nbytes=nbytes)
    return RoundDistribution(mass, offsets)
