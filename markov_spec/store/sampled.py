"""Rollouts of a store for its checks: all of them range by range, or some that are spread over it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from markov_spec.arrays import Array, rollout_spans
from markov_spec.store.reader import Store

# What a range holds at most; a prompt may be far longer than its rollout, so that rollouts are counted, too.
RANGE_POSITIONS, RANGE_ROLLOUTS = 1 << 16, 1024
# Values that a sample holds at most, and the places of the store that it is taken from.
SAMPLE_CELLS, SAMPLE_PLACES = 1_000_000, 16
# A statistic is judged by a bound that sound data exceed less often than this.
RARE = 1e-7
# Nats a token by which the means of two passes in half precision may differ.
NOISE = 0.01


def ranges(store: Store) -> Iterator[tuple[int, Store]]:
    """Go through all rollouts; give the number of the first one and the store of each range."""
    _, indptr = store.index
    for begin, end in rollout_spans(indptr, 0, len(store), RANGE_POSITIONS):
        for first in range(begin, end, RANGE_ROLLOUTS):
            yield first, _cut(store, first, min(first + RANGE_ROLLOUTS, end))


def sample(store: Store, width: int) -> Iterator[tuple[int, Store]]:
    """Like ``ranges``, of rollouts with at most about ``SAMPLE_CELLS`` values of ``width`` for each position.

    Where these are not all, they stand at ``SAMPLE_PLACES`` places at equal distances; a place has one at least.
    """
    _, indptr = store.index
    total, wanted = int(indptr[-1]), max(1, SAMPLE_CELLS // max(width, 1))
    if total <= wanted:
        if total:
            yield 0, _cut(store, 0, len(store))
        return
    done = 0
    for place in range(SAMPLE_PLACES):
        begin = place * total // SAMPLE_PLACES
        first = max(done, int(np.searchsorted(indptr, begin, side="right")) - 1)
        last = int(np.searchsorted(indptr, begin + wanted // SAMPLE_PLACES, side="right")) - 1
        done = min(max(first + 1, last), len(store))
        if first < done:
            yield first, _cut(store, first, done)


def _cut(store: Store, first: int, last: int) -> Store:
    ids, indptr = store.index
    some = store.batch(first, last)
    some.index = ids[first:last], indptr[first : last + 1] - indptr[first]
    return some


def covered_rows(part: dict[str, Array], indptr: Array) -> Array:
    """Which positions a part has rows of, where it may lack rollouts."""
    lengths = np.diff(indptr)
    rows: Array = np.repeat(part.get("covered", np.ones(lengths.size, dtype=bool)), lengths)
    return rows


def allowed_deviation(variance: float, largest: float) -> float:
    """How far a sum of independent terms of mean 0 may be from 0: farther it is with a probability of ``RARE``.

    Bernstein's inequality, for terms of at most ``largest`` whose variances sum to ``variance``. It is 5.7 standard
    deviations where these are many terms, and more where one term can decide the sum.
    """
    rare = -math.log(RARE)
    shift = rare * largest / 3
    return shift + math.sqrt(shift**2 + 2 * rare * variance)


def unlikely(count: int, total: int, rate: float) -> bool:
    """Whether so many of ``total``, or more, or else so few, come by chance with a probability below ``RARE``.

    Each comes at a ``rate``, inside (0, 1); the bound is Chernoff's, ``exp(-total KL(count / total || rate))``.
    """
    if not total:
        return False
    share = count / total
    parts = ((share, rate), (1 - share, 1 - rate))
    return total * sum(own * math.log(own / of) for own, of in parts if own) > -math.log(RARE)
