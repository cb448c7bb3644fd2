"""Kernels of the acceptance rules that test the ratio ``r[s,k] = q[s,k] / p[s+k-1]``.

``log_q`` is flat: depth ``k`` from row ``s`` stands at ``s * row + k - 1``, with ``row = K`` for cells and ``row = 1``
for positions; the draft length of row ``s`` is ``length[s * step]``, with ``step = 0`` for a constant. ``out`` gets
``log a``, a row for each position of the rollouts in the range and ``-inf`` in cells that are past an end or deeper
than the length. The first value of ``log_q`` that is NaN or above 1e-6 in any other cell stops a kernel, which returns
``s * depth + k - 1``, ``depth`` the width of ``out``; otherwise it returns -1.
"""

from __future__ import annotations

import numpy as np

from markov_spec._jit import kernel
from markov_spec.arrays import LOG_TOLERANCE, Array


@kernel
def rejection(
    log_p: Array, log_q: Array, row: int, length: Array, step: int, indptr: Array, first: int, last: int, out: Array
) -> int:
    """Fill the log of ``a[k] = min(1, r[k])``."""
    width = out.shape[1]
    base = indptr[first]
    for i in range(first, last):
        end = indptr[i + 1]
        for s in range(indptr[i], end):
            depth = min(np.int64(length[s * step]), end - s, width)
            for k in range(depth):
                drafted = np.float64(log_q[s * row + k])
                if not drafted <= LOG_TOLERANCE:
                    return int(s * width + k)
                out[s - base, k] = min(drafted - log_p[s + k], 0.0)
            out[s - base, depth:] = -np.inf
    return -1


@kernel
def block(
    log_p: Array, log_q: Array, row: int, length: Array, step: int, indptr: Array, first: int, last: int, out: Array
) -> int:
    """Fill the log of ``a[k] = S[k] / S[k-1]``, ``S`` the running minimum of 1 and the products of ``r``."""
    width = out.shape[1]
    base = indptr[first]
    for i in range(first, last):
        end = indptr[i + 1]
        for s in range(indptr[i], end):
            depth = min(np.int64(length[s * step]), end - s, width)
            total = 0.0
            lowest = 0.0
            for k in range(depth):
                drafted = np.float64(log_q[s * row + k])
                if not drafted <= LOG_TOLERANCE:
                    return int(s * width + k)
                total += drafted - log_p[s + k]
                if lowest == -np.inf:
                    out[s - base, k] = -np.inf
                    continue
                lower = min(total, lowest)
                out[s - base, k] = lower - lowest
                lowest = lower
            out[s - base, depth:] = -np.inf
    return -1
