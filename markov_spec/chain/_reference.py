"""The kernels of ``_numba`` as the equations stand: slow, and what the kernels are tested by."""

from __future__ import annotations

import numpy as np

from markov_spec.arrays import Array


def _laws(accept: Array, row: int, length: Array, step: int, begin: int, size: int) -> list[Array]:
    # The law of N from every start: A[k] = S[k] - S[k+1] for k = 0..min(L[s], T-s).
    laws = []
    for s in range(size):
        depth = min(int(length[(begin + s) * step]), size - s)
        cells = [float(accept[(begin + s) * row + k - 1]) for k in range(1, depth + 1)]
        survival = np.concatenate(([1.0], np.cumprod(cells), [0.0]))
        laws.append(survival[:-1] - survival[1:])
    return laws


def backward(
    accept: Array, row: int, length: Array, step: int, indptr: Array, first: int, last: int, first_start: int,
    value: Array, variance: Array,
) -> None:  # fmt: skip
    """Equations (V) and (M): ``Var[R] = W - V^2``."""
    for i in range(first, last):
        begin, size = int(indptr[i]), int(indptr[i + 1] - indptr[i])
        V, W = np.zeros(size + 1), np.zeros(size + 1)
        laws = _laws(accept, row, length, step, begin, size)
        for s in reversed(range(size)):
            after = [min(s + k + 1, size) for k in range(len(laws[s]))]
            V[s] = 1 + laws[s] @ V[after]
            W[s] = 1 + 2 * laws[s] @ V[after] + laws[s] @ W[after]
        value[begin : begin + size] = V[:size]
        s0 = min(first_start, size)
        variance[i] = W[s0] - V[s0] ** 2


def forward(
    accept: Array, row: int, length: Array, step: int, indptr: Array, first: int, last: int, first_start: int,
    occupancy: Array, histogram: Array, tested: Array, drafted: Array,
) -> None:  # fmt: skip
    """Equations (O) and (H), and the depths tested and drafted in a round from ``s``, each weighted by ``o[s]``."""
    for i in range(first, last):
        begin, size = int(indptr[i]), int(indptr[i + 1] - indptr[i])
        laws = _laws(accept, row, length, step, begin, size)
        o = np.zeros(size)
        for t in range(first_start, size):
            o[t] = float(t == first_start)
            for s in range(first_start, t):
                if t - s - 1 < len(laws[s]):
                    o[t] += o[s] * laws[s][t - s - 1]
        occupancy[begin : begin + size] = o
        histogram[i], tested[i], drafted[i] = 0, 0, 0
        for s in range(size):
            depth = len(laws[s]) - 1
            histogram[i, : depth + 1] += o[s] * laws[s]
            for k in range(1, depth + 1):
                tested[i, k - 1] += o[s] * laws[s][k - 1 :].sum()
            drafted[i] += o[s] * depth


def priced(
    accept: Array, row: int, length: Array, step: int, indptr: Array, first: int, last: int, first_start: int,
    price: Array, price_row: int, price_step: int, total: Array, variance: Array,
) -> None:  # fmt: skip
    """Equation (C), and the variance as the second moment less the square of the first."""
    for i in range(first, last):
        begin, size = int(indptr[i]), int(indptr[i + 1] - indptr[i])
        C, W = np.zeros(size + 1), np.zeros(size + 1)
        laws = _laws(accept, row, length, step, begin, size)
        for s in reversed(range(size)):
            for k, probability in enumerate(laws[s]):
                cost, after = price[(begin + s) * price_row + k * price_step], min(s + k + 1, size)
                C[s] += probability * (cost + C[after])
                W[s] += probability * (cost**2 + 2 * cost * C[after] + W[after])
        s0 = min(first_start, size)
        total[i], variance[i] = C[s0], W[s0] - C[s0] ** 2


def _ended(laws: list[Array], s: int, k: int, end: float, surplus: float) -> float:
    # What ``tokens + X`` becomes in the round from ``s`` that accepts ``k`` drafts, if that is the last round.
    return end + surplus if k == len(laws) - s else end


def distribution(
    accept: Array, row: int, length: Array, step: int, indptr: Array, first: int, last: int, first_start: int,
    deepest: int, tokens: Array, surplus: Array, surplus_step: int, offsets: Array, mass: Array,
) -> None:  # fmt: skip
    """Equation (D), each run weighted by its ``tokens + X``."""
    for i in range(first, last):
        begin, size = int(indptr[i]), int(indptr[i + 1] - indptr[i])
        f = np.zeros((size + 1, size + 1))
        laws = _laws(accept, row, length, step, begin, size)
        for s in reversed(range(size)):
            for k, probability in enumerate(laws[s]):
                f[size, 0] = _ended(laws, s, k, tokens[i], surplus[(begin + s) * surplus_step])
                f[s, 1:] += probability * f[min(s + k + 1, size), :-1]
        f[size, 0] = tokens[i]
        s0 = min(first_start, size)
        mass[offsets[i] : offsets[i] + size - s0 + 1] = f[s0, : size - s0 + 1]


def ratio(
    accept: Array, row: int, length: Array, step: int, indptr: Array, first: int, last: int, first_start: int,
    active: Array, mean: Array, nodes: Array, weights: Array, tokens: Array, surplus: Array, surplus_step: int,
    out: Array,
) -> None:  # fmt: skip
    """Equation (I), by the quadrature rule given."""
    for i in range(first, last):
        if not active[i]:
            continue
        begin, size = int(indptr[i]), int(indptr[i + 1] - indptr[i])
        z = np.exp(-nodes / mean[i])
        G = np.zeros((size + 1, nodes.size))
        laws = _laws(accept, row, length, step, begin, size)
        for s in reversed(range(size)):
            for k, probability in enumerate(laws[s]):
                G[size] = _ended(laws, s, k, tokens[i], surplus[(begin + s) * surplus_step])
                G[s] += z * probability * G[min(s + k + 1, size)]
        G[size] = tokens[i]
        out[i] = G[min(first_start, size)] @ weights / mean[i]
