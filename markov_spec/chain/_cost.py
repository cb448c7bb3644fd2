"""The stop-aware cost form of the expected rounds on padded rollouts: one rollout after the other, ``O(K)`` each start.

Cells are (B, T, K): depth ``k`` of the round begun at ``s`` stands at ``[b, s, k-1]``. Sums are float64.
"""

from __future__ import annotations

import numpy as np

from markov_spec._jit import kernel
from markov_spec.arrays import Array


@kernel
def cost(
    accept: Array, price: Array, length: Array, first: int, last: int, first_start: int,
    edr: Array, grad_accept: Array, grad_price: Array,
) -> None:  # fmt: skip
    """Fill the expected rounds and their gradient in the acceptances and costs; cells without one are left as found."""
    tokens, depth = accept.shape[1:]
    later = np.empty(tokens + 1)
    reach = np.empty(tokens + depth + 2)
    after = np.empty(depth + 1)  # rounds begun after this one, before draft k+1 is tested
    for b in range(first, last):
        edr[b] = 0.0
        if length[b] <= first_start:
            continue
        end = length[b] - 1
        later[end] = 0.0
        for s in range(end - 1, first_start - 1, -1):
            left = min(depth, end - s)
            x = 1.0 + later[s + depth + 1] if s + depth + 1 <= end else 0.0
            for k in range(left - 1, -1, -1):
                a = np.float64(accept[b, s, k])
                x = price[b, s, k] + (later[s + k + 1] + a * (x - later[s + k + 1]))
            later[s] = x
        edr[b] = 1.0 + later[first_start]
        reach[first_start : end + depth + 2] = 0.0
        reach[first_start] = 1.0
        for s in range(first_start, end):
            flow = reach[s]
            if flow == 0.0:
                continue
            left = min(depth, end - s)
            after[left] = 1.0 + later[s + depth + 1] if s + depth + 1 <= end else 0.0
            for k in range(left - 1, 0, -1):
                a = np.float64(accept[b, s, k])
                after[k] = price[b, s, k] + (later[s + k + 1] + a * (after[k + 1] - later[s + k + 1]))
            for k in range(left):
                passed = flow * np.float64(accept[b, s, k])
                grad_price[b, s, k] = flow
                grad_accept[b, s, k] = flow * (after[k + 1] - later[s + k + 1])
                reach[s + k + 1] += flow - passed
                flow = passed
            reach[s + left + 1] += flow
