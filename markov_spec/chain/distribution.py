"""The whole distribution of the decoding rounds, and the mean of their inverse.

With ``A[s,k]`` the probability that the round from ``s`` accepts ``k`` drafts, indices clipped at the end ``T``::

    (D)  f[s](r) = sum_k A[s,k] f[s+k+1](r-1),  f[T](0) = 1             P(R = r) = f[s0](r)
    (B)  P(max_i R_i <= r) = prod_i F_i(r)                              rollouts decoded in lock-step
    (I)  G[s] = z sum_k A[s,k] G[s+k+1],  G[T] = 1,  E[z^R] = G[s0]
         E[1/R] = integral_0^inf E[exp(-y R)] dy
                = (1/m) integral_0^inf exp(-x) h(x) dx,  h(x) = exp(x) E[exp(-x R/m)],  m = E[R]

Where rounds spread little about ``m``, ``h`` is almost constant and Gauss-Laguerre rules of few nodes are exact to
rounding. A rule of ``n`` nodes is always too low, since all even derivatives of ``h`` are positive; what it misses of
an ``R`` is about ``((R-m)/(R+m))^(2n)`` of ``1/R``. Once that is below 1/4 for every possible ``R``, doubling the nodes
more than halves the error, so that the difference of two rules bounds the error of the finer one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from markov_spec._jit import split_rollouts
from markov_spec.arrays import Array, RoundLaw, check_first_start
from markov_spec.chain import _numba

Floats = npt.NDArray[np.float64]
Offsets = npt.NDArray[np.int64]

RULES = (4, 8, 16, 32, 64)  # nodes
AGREEMENT = 1e-12


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

    def run(first: int, last: int) -> None:
        _numba.distribution(*law.layout(), first, last, start, law.depth, offsets, mass)

    nbytes = law.accept.nbytes * int(np.max(sizes, initial=0))  # a cell is read for every possible number of rounds
    split_rollouts(run, law.indptr, threads=threads, nbytes=nbytes)
    return RoundDistribution(mass, offsets)


@cache
def _laguerre(count: int) -> tuple[Floats, Floats]:
    # Nodes, and weights for integrals without the factor exp(-x); zeros up to a multiple of the kernel's lanes.
    nodes, weights = np.zeros((2, -(-count // _numba.LANES) * _numba.LANES))
    nodes[:count], weights[:count] = np.polynomial.laguerre.laggauss(count)
    return nodes, weights * np.exp(nodes)


def _fewest_nodes(mean: Floats, left: Offsets, depth: int) -> Floats:
    # Nodes n with |(R-m)/(R+m)|^n <= 1/2 for the fewest and the most rounds that are possible.
    extremes = np.stack((-(-left // (depth + 1)), left))
    distance = np.max(np.abs(extremes - mean) / (extremes + mean), axis=0)
    needed: Floats = np.log(0.5) / np.log(np.clip(distance, 1e-300, 1 - 1e-15))
    return needed


def _inverse_by_sums(law: RoundLaw, i: int, start: int) -> float:
    # Offsets of 0 put the distribution of rollout i first.
    mass = np.empty(int(law.indptr[i + 1] - law.indptr[i]) - start + 1)
    offsets = np.zeros(law.indptr.size - 1, np.int64)
    _numba.distribution(*law.layout(), i, i + 1, start, law.depth, offsets, mass)
    return float(np.sum(mass[1:] / np.arange(1, mass.size)))


def expected_inverse(law: RoundLaw, *, first_start: int = 0, threads: int | None = None) -> Floats:
    """Compute ``E[1/R]`` of every rollout: its tokens times this is the mean of tokens per round over single decodings.

    Parameters
    ----------
    law : RoundLaw
    first_start : int
        ``s0``: 0 when the first token is drafted too, 1 when the prefill emits it.
    threads : int, optional
        None means the cores that this process may use. Results are bit-equal for every number.

    Returns
    -------
    ndarray of float64, (R,)
        NaN where nothing is left to decode, so that ``R = 0``.

    Raises
    ------
    ValueError
        If ``first_start`` is negative or ``threads`` below 1.

    Notes
    -----
    ``O(N K)`` for each node of the Gauss-Laguerre rule: 4 nodes at first, doubled until two rules agree to a relative
    1e-12, which bounds the error of the finer one up to rounding. Where 64 nodes are not enough the distribution is
    summed, ``O(T^2 K)``: rollouts with a small chance of far fewer rounds than their mean.

    Examples
    --------
    >>> import numpy as np, markov_spec as ms
    >>> law = ms.RoundLaw.from_acceptance(np.full((5, 2), .5), [0, 5])
    >>> 5 * ms.expected_inverse(law)
    array([1.67708333])
    """
    start = check_first_start(first_start, law.accept.shape[0])
    common, rollouts = law.layout(), law.indptr.size - 1
    left = np.maximum(np.diff(law.indptr) - start, 0)
    out = np.full(rollouts, np.nan)
    value, variance = np.empty(law.accept.shape[0]), np.empty(rollouts)

    def run(first: int, last: int) -> None:
        _numba.backward_of(law)(*common, first, last, start, value, variance)
        pending, mean = np.zeros(rollouts, bool), np.ones(rollouts)
        pending[first:last] = left[first:last] > 0
        mean[pending] = value[law.indptr[:-1][pending] + start]
        needed = np.ones(rollouts)
        needed[pending] = _fewest_nodes(mean[pending], left[pending], law.depth)
        coarse, fine = np.full((2, rollouts), np.nan)
        for count in RULES:
            active = pending & (needed <= count)
            _numba.inverse(*common, first, last, start, active, mean, *_laguerre(count), fine)
            agreed = active & (np.abs(fine - coarse) <= AGREEMENT * fine)
            out[agreed] = fine[agreed]
            pending[agreed] = False
            coarse[active] = fine[active]
        for i in np.flatnonzero(pending):
            out[i] = _inverse_by_sums(law, int(i), start)

    split_rollouts(run, law.indptr, threads=threads, nbytes=law.accept.nbytes)
    return out
