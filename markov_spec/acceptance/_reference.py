"""The kernels of ``_numba`` again, cell by cell from the probabilities: slow, and what the kernels are tested by."""

from __future__ import annotations

from typing import Any

import numpy as np

from markov_spec.arrays import Array


def _ratios(log_p: Array, log_q: Array, row: int, depth: int, s: int) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return np.exp([float(log_q[s * row + k]) - float(log_p[s + k]) for k in range(depth)])


def _log(probability: Any) -> Array:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(probability))


def _first_bad(log_q: Array, row: int, depth: int, s: int) -> int:
    return next((k for k in range(depth) if not log_q[s * row + k] <= 1e-6), -1)


def rejection(
    log_p: Array, log_q: Array, row: int, length: Array, step: int, indptr: Array, first: int, last: int, out: Array
) -> int:
    """``a[k] = min(1, r[k])``."""
    base = int(indptr[first])
    for i in range(first, last):
        for s in range(int(indptr[i]), int(indptr[i + 1])):
            depth = min(int(length[s * step]), int(indptr[i + 1]) - s, out.shape[1])
            bad = _first_bad(log_q, row, depth, s)
            if bad >= 0:
                return s * int(out.shape[1]) + bad
            out[s - base] = -np.inf
            out[s - base, :depth] = _log(np.minimum(1, _ratios(log_p, log_q, row, depth, s)))
    return -1


def block(
    log_p: Array, log_q: Array, row: int, length: Array, step: int, indptr: Array, first: int, last: int, out: Array
) -> int:
    """``S[k] = min_{0<=l<=k} prod_{i<=l} r[i]`` and ``a[k] = S[k] / S[k-1]``, 0 once ``S`` is 0."""
    base = int(indptr[first])
    for i in range(first, last):
        for s in range(int(indptr[i]), int(indptr[i + 1])):
            depth = min(int(length[s * step]), int(indptr[i + 1]) - s, out.shape[1])
            bad = _first_bad(log_q, row, depth, s)
            if bad >= 0:
                return s * int(out.shape[1]) + bad
            products = np.cumprod(np.concatenate(([1.0], _ratios(log_p, log_q, row, depth, s))))
            survival = [products[: k + 1].min() for k in range(depth + 1)]
            out[s - base] = -np.inf
            for k in range(1, depth + 1):
                out[s - base, k - 1] = _log(survival[k] / survival[k - 1] if survival[k - 1] > 0 else 0)
    return -1
