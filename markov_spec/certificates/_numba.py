"""Kernels of the thresholds: which token must win, which tokens share its level, and how far that is from ``p``.

``p`` is (n, M), each row descending. A row's *home* token has probability ``start``. Others are pooled with it, the
farthest first, while they are beyond the mean level: with ``step`` 1 the tokens ``0 .. size-1``, which are larger and
must come down to it; with ``step`` -1 the tokens ``size .. 1``, which are smaller and must come up to it, after
``count`` unlisted ones of probability ``extra``. ``size`` below 0 means that nothing is ever rejected. All distances
are sums of differences that cannot be negative, so that none cancels.
"""

from __future__ import annotations

import numpy as np

from markov_spec._jit import kernel
from markov_spec.arrays import LOG_TOLERANCE, Array

SMALL = 0.02  # below it series take the place of differences


@kernel
def wrong_row(p: Array, tail: Array, tolerance: float) -> int:
    """Give the first row that is no list of probabilities, or does not sum to 1 with its tail; -1 if there is none."""
    width = p.shape[1]
    for i in range(p.shape[0]):
        total, falls, before = np.float64(tail[i]), True, 1 + LOG_TOLERANCE
        for x in range(width):
            falls &= p[i, x] <= before  # false of NaN
            before = np.float64(p[i, x])
            total += before
        room = before > 0 or tail[i] <= tolerance
        if not (falls and before >= 0 and tail[i] >= -tolerance and abs(total - 1) <= tolerance and room):
            return i
    return -1


@kernel
def least_entropy(p: Array, tail: Array, out: Array) -> None:
    """Fill the least entropy of distributions that have these lists: as much of the tail as fits in large tokens."""
    for i in range(p.shape[0]):
        total = 0.0
        for x in range(p.shape[1]):
            mass = np.float64(p[i, x])
            if mass > 0:
                total -= mass * np.log(mass)
        last = np.float64(p[i, -1])
        if tail[i] > 0 and last > 0:
            full = np.floor(tail[i] / last)
            rest = tail[i] - full * last
            total -= full * last * np.log(last)
            if rest > 0:
                total -= rest * np.log(rest)
        out[i] = total


@kernel
def locate(p: Array, tail: Array, skip: int, bar: Array, size: Array, start: Array) -> None:
    """Fill the place of the first token that is rejected, of those from ``skip`` on below ``bar``, and how probable.

    The place is ``M`` if the list ends before; then the probability is the largest that is possible.
    """
    width = p.shape[1]
    absent = max(skip + 1 - width, 1)  # unlisted tokens up to the first rejected one, none less probable
    for i in range(p.shape[0]):
        at = min(skip, width)
        while at < width and not p[i, at] < bar[i]:
            at += 1
        size[i] = at if bar[i] > 0 else -1
        start[i] = np.float64(p[i, at]) if at < width else min(np.float64(p[i, -1]), tail[i] / absent, bar[i])


@kernel
def _level(
    p: Array, i: int, start: float, extra: float, count: int, begin: int, step: int, size: int
) -> tuple[int, float]:  # fmt: skip
    # Pooled listed tokens, and how far the common level is from start.
    number, total, taken = count + 1, count * (step * (extra - start)), 0
    while taken < size:
        distance = step * (np.float64(p[i, begin + step * taken]) - start)
        if distance * number <= total:
            break
        total += distance
        number += 1
        taken += 1
    return taken, total / number


@kernel
def _bregman(e: float) -> float:
    # (1 + e) log(1 + e) - e, 1 at e = -1
    if abs(e) < SMALL:
        series = 1 / 30 - e * (1 / 42 - e * (1 / 56 - e / 72))
        return e * e * (1 / 2 - e * (1 / 6 - e * (1 / 12 - e * (1 / 20 - e * series))))
    return float((1 + e) * np.log1p(e) - e) if e > -1 else 1.0


@kernel
def _excess(e: float) -> float:
    # exp(e) - 1 - e
    if abs(e) < SMALL:
        return e * e / 2 * (1 + e / 3 * (1 + e / 4 * (1 + e / 5 * (1 + e / 6 * (1 + e / 7 * (1 + e / 8))))))
    return float(np.expm1(e) - e)


@kernel
def _log_ratio(x: float, y: float) -> float:
    # log(x/y) without the cancellation of close logarithms
    return float(np.log1p((x - y) / y) if abs(x - y) < y / 2 else np.log(x) - np.log(y))


@kernel
def forward(
    p: Array, spare: Array, start: Array, extra: Array, count: int, begin: int, step: int, size: Array, out: Array
) -> None:
    """Fill the least ``KL(p||q)``, ``c sum_S [(1+e) log(1+e) - e]`` with ``e = p/c - 1``, which sum to 0 over S."""
    for i in range(p.shape[0]):
        if size[i] < 0:
            out[i] = np.inf
            continue
        taken, mean = _level(p, i, start[i], extra[i], count, begin, step, size[i])
        level = start[i] + step * mean
        total = _bregman(-step * mean / level)
        if count > 0:
            total += count * _bregman((extra[i] - start[i] - step * mean) / level)
        for j in range(taken):
            total += _bregman((np.float64(p[i, begin + step * j]) - start[i] - step * mean) / level)
        out[i] = level * total


@kernel
def variation(
    p: Array, spare: Array, start: Array, extra: Array, count: int, begin: int, step: int, size: Array, out: Array
) -> None:
    """Fill the least total variation: how far the level is from the home token."""
    for i in range(p.shape[0]):
        out[i] = np.inf
        if size[i] >= 0:
            out[i] = _level(p, i, start[i], extra[i], count, begin, step, size[i])[1]


@kernel
def _log_level(
    p: Array, i: int, start: float, extra: float, count: int, begin: int, step: int, size: int
) -> tuple[int, float]:  # fmt: skip
    # As _level, in logarithms; of a token of probability 0 the distance is infinite, and so is the level's.
    number, total, taken = count + 1, 0.0, 0
    if count > 0:
        total = count * (step * _log_ratio(extra, start))
    while taken < size and total < np.inf:
        distance = step * _log_ratio(np.float64(p[i, begin + step * taken]), start)
        if distance * number <= total:
            break
        total += distance
        number += 1
        taken += 1
    return taken, total / number


@kernel
def reverse(
    p: Array, spare: Array, start: Array, extra: Array, count: int, begin: int, step: int, size: Array, out: Array
) -> None:
    """Fill the least ``KL(q||p)``, ``-log(1 - sum_S (p - G))``; ``spare`` is what the tail has that is not in S."""
    width = p.shape[1]
    for i in range(p.shape[0]):
        if size[i] < 0 or start[i] <= 0:
            out[i] = np.inf
            continue
        taken, mean = _log_level(p, i, start[i], extra[i], count, begin, step, size[i])
        first, last = (taken, size[i]) if step > 0 else (1, begin - taken + 1)  # what is not pooled before the last
        left = spare[i]
        for x in range(first, last):
            left += np.float64(p[i, x])
        for x in range((size[i] if step > 0 else begin) + 1, width):
            left += np.float64(p[i, x])
        if mean == np.inf:  # a token of probability 0 only ties with the best one if q has neither
            out[i] = _minus_log(start[i], left, start[i] + left)
            continue
        level = start[i] * np.exp(step * mean)
        lost, pooled = _excess(-step * mean), start[i] + count * extra[i]
        if count > 0:
            lost += count * _excess(_log_ratio(extra[i], start[i]) - step * mean)
        for j in range(taken):
            mass = np.float64(p[i, begin + step * j])
            lost += _excess(_log_ratio(mass, start[i]) - step * mean)
            pooled += mass
        out[i] = _minus_log(level * lost, left + (1 + count + taken) * level, left + pooled)


@kernel
def _minus_log(lost: float, left: float, total: float) -> float:
    # -log(left / total), where lost + left = total, from the smaller of the two
    return float(-np.log1p(-lost / total) if lost < left else -np.log(left / total))
