"""Means over the inverse of the rounds, by integration or by sums.

With ``A[s,k]`` the probability that the round from ``s`` accepts ``k`` drafts and ``Y`` the tokens of a rollout, plus a
surplus if its last round, from ``s``, accepted all ``T-s`` drafts up to the end token::

    (I)  G[s] = z sum_k A[s,k] G[s+k+1],  E[Y z^R] = G[s0],  G[T] = tokens and, past it, G[T+1] = tokens + surplus[s]
         E[Y/R] = integral_0^inf E[Y exp(-y R)] dy
                = (1/m) integral_0^inf exp(-x) h(x) dx,  h(x) = exp(x) E[Y exp(-x R/m)],  m = E[R]

Where rounds spread little about ``m``, ``h`` is almost constant and Gauss-Laguerre rules of few nodes are exact to
rounding. A rule of ``n`` nodes is always too low, since ``Y >= 0`` and so all even derivatives of ``h`` are; what it
misses of an ``R`` is about ``((R-m)/(R+m))^(2n)`` of ``Y/R``. Once that is below 1/4 for every possible ``R``, doubling
the nodes more than halves the error, so that the difference of two rules bounds the error of the finer one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from markov_spec._jit import split_rollouts
from markov_spec.arrays import Array, RoundLaw
from markov_spec.chain import _lanes, _numba

Floats = npt.NDArray[np.float64]

RULES = (4, 8, 16, 32, 64)  # nodes
AGREEMENT = 1e-12


@dataclass(frozen=True, eq=False)
class Committed:
    """What is divided by the rounds: ``tokens``, (R,), and the surplus of row ``s`` at ``surplus[s * step]``."""

    tokens: Floats
    surplus: Floats
    step: int


def one_token(rollouts: int) -> Committed:
    """Count one token in every decoding, so that the mean is ``E[1/R]``."""
    return Committed(np.ones(rollouts), np.zeros(1), 0)


@cache
def laguerre(count: int) -> tuple[Floats, Floats]:
    """Give nodes, and weights for integrals without the factor ``exp(-x)``; zeros up to a multiple of the lanes."""
    nodes, weights = np.zeros((2, -(-count // _lanes.WIDTH) * _lanes.WIDTH))
    nodes[:count], weights[:count] = np.polynomial.laguerre.laggauss(count)
    return nodes, weights * np.exp(nodes)


def fewest_nodes(mean: Floats, left: Array, depth: int) -> Floats:
    """Give the nodes ``n`` with ``|(R-m)/(R+m)|^n <= 1/2`` for the fewest and the most rounds that are possible."""
    extremes = np.stack((-(-left // (depth + 1)), left))
    distance = np.max(np.abs(extremes - mean) / (extremes + mean), axis=0)
    needed: Floats = np.log(0.5) / np.log(np.clip(distance, 1e-300, 1 - 1e-15))
    return needed


def by_sums(law: RoundLaw, i: int, start: int, committed: Committed) -> float:
    """Give ``E[Y/R]`` of one rollout from the distribution of its rounds."""
    mass = np.empty(int(law.indptr[i + 1] - law.indptr[i]) - start + 1)
    offsets = np.zeros(law.indptr.size - 1, np.int64)  # puts the distribution of rollout i first
    counted = committed.tokens, committed.surplus, committed.step
    _numba.distribution(*law.layout(), i, i + 1, start, law.depth, *counted, offsets, mass)
    return float(np.sum(mass[1:] / np.arange(1, mass.size)))


def mean_ratio(law: RoundLaw, mean: Floats, start: int, committed: Committed, threads: int | None) -> Floats:
    """Give ``E[Y/R]``, (R,), NaN where nothing is left to decode; ``mean`` is ``E[R]``."""
    common, rollouts = law.layout(), law.indptr.size - 1
    left = np.maximum(np.diff(law.indptr) - start, 0)
    out = np.full(rollouts, np.nan)
    counted = committed.tokens, committed.surplus, committed.step

    def run(first: int, last: int) -> None:
        pending = np.zeros(rollouts, bool)
        pending[first:last] = left[first:last] > 0
        needed = np.ones(rollouts)
        needed[pending] = fewest_nodes(mean[pending], left[pending], law.depth)
        coarse, fine = np.full((2, rollouts), np.nan)
        for count in RULES:
            active = pending & (needed <= count)
            nodes, weights = laguerre(count)
            _numba.ratio(*common, first, last, start, active, mean, nodes, weights, *counted, fine)
            agreed = active & (np.abs(fine - coarse) <= AGREEMENT * fine)
            out[agreed] = fine[agreed]
            pending[agreed] = False
            coarse[active] = fine[active]
        for i in np.flatnonzero(pending):
            out[i] = by_sums(law, int(i), start, committed)

    split_rollouts(run, law.indptr, threads=threads, nbytes=law.accept.nbytes)
    return out
