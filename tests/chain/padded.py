"""Padded batches of tensors, and the equations of one rollout written out."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from markov_spec.chain import _torch
from markov_spec.chain._torch_rows import Rows

SHAPES = [(3, 7, 2), (2, 5, 9), (4, 6, 0), (1, 1, 3), (0, 4, 2), (3, 0, 2), (11, 13, 7), (2, 24, 3)]
NEAR = {torch.float64: {"rtol": 1e-12, "atol": 1e-13}, torch.float32: {"rtol": 1e-6, "atol": 1e-7}}


def batch(shape: tuple[int, int, int], dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Acceptances, costs and lengths, some acceptances certain, NaN in all cells that do not count."""
    rng = np.random.default_rng(seed)
    size, tokens, depth = shape
    lengths = rng.integers(0, tokens + 1, size)
    left = lengths[:, None, None] - np.arange(tokens)[:, None]
    accept, cost = rng.random((2, *shape))
    accept = np.where(rng.random(shape) < 0.2, np.round(accept), accept)
    accept[np.arange(1, depth + 1) > left] = np.nan
    cost[np.arange(1, depth + 1) >= left] = np.nan
    return torch.tensor(accept, dtype=dtype), torch.tensor(cost, dtype=dtype), torch.tensor(lengths)


def rounds_by_cost(accept: np.ndarray, cost: np.ndarray, first_start: int) -> float:
    """The stop-aware cost form of one rollout, (T, K) cells, as it is defined."""
    tokens, depth = accept.shape
    last = tokens - 1

    @cache
    def begun(s: int) -> float:
        if s == last:
            return 0.0
        return tested(s, 1) if depth else 1 + begun(s + 1)

    @cache
    def tested(s: int, k: int) -> float:
        if k < depth and s + k < last:
            goes_on = tested(s, k + 1)
        elif k == depth and s + depth + 1 <= last:
            goes_on = 1 + begun(s + depth + 1)
        else:
            goes_on = 0.0
        a = float(accept[s, k - 1])
        return float(cost[s, k - 1]) + a * goes_on + (1 - a) * begun(s + k)

    return 1 + begun(first_start) if first_start < tokens else 0.0


def slope(of, cells: np.ndarray, s: int, k: int) -> float:
    """Derivative in one cell of a function that is affine in it, by the difference over all of [0, 1]."""
    ends = []
    for value in (0.0, 1.0):
        moved = cells.copy()
        moved[s, k] = value
        ends.append(of(moved))
    return ends[1] - ends[0]


def check_device_path(kernels, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Compare all that is computed by a device's kernels, here run on the CPU, with the kernels of the CPU."""
    accept, cost, lengths = batch(shape, dtype)
    rows = Rows.padded(lengths, shape[1])
    flat = accept.flatten(0, 1), cost.flatten(0, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_torch, "kernels", lambda device: kernels)
        for first_start in (0, 1, 3):
            wanted = _torch.recursions(accept, lengths, first_start=first_start)
            found = _torch.on_device(flat[0], rows, first_start)
            for tensor, by_cpu in zip(found, wanted, strict=True):
                torch.testing.assert_close(tensor.view(by_cpu.shape), by_cpu, **NEAR[torch.float64])
            edr, *gradients = _torch.cost_recursions(accept, cost, lengths, first_start=first_start)
            found, *slopes = _torch.cost_on_device(*flat, rows, first_start)
            torch.testing.assert_close(found, edr, **NEAR[torch.float64])
            for tensor, by_cpu in zip(slopes, gradients, strict=True):
                torch.testing.assert_close(tensor.view(shape).to(dtype), by_cpu, **NEAR[dtype])


class Unread:
    """Kernels that read nothing, for tensors that have no data."""

    @staticmethod
    def occupancy(cells, rows, first_start):
        return cells.new_empty(cells.shape[0], dtype=torch.float64)

    @staticmethod
    def value(cells, gain, rows):
        return torch.empty_like(gain)
