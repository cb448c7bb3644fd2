"""The recursions (V) and (O) as CUDA kernels: one launch each, a program of one warp for each rollout.

A lane carries one start. ``WIDTH`` lanes, a power of two above ``K``, hold the starts whose rounds can still reach the
current position, start ``s`` in lane ``s mod WIDTH``; nothing but results leaves the chip. From one position to the
next each lane reads its next cell, and all lanes are summed once, in a fixed order: results are the same in every run.
Cells are 0 where they do not count, so that one formula is right before, in and after a lane's round. With
``TRITON_INTERPRET=1`` the kernels run on tensors of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from markov_spec.chain._torch_rows import Rows

kernel: Callable[[Any], Any] = triton.jit  # the kernels' own arguments take no annotations
LAUNCH = {"num_warps": 1, "enable_fp_fusion": False}


@kernel
def _occupancy(cells, begin, size, first_start, out, DEPTH: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def] # see `kernel`
    # flow: probability that the round begun at the lane's start took place and accepted its drafts so far.
    rollout = tl.program_id(0)
    row = tl.load(begin + rollout)
    length = tl.load(size + rollout).to(tl.int32)
    lane = tl.arange(0, WIDTH)
    flow = tl.zeros((WIDTH,), tl.float64)
    cell = flow
    for t in range(first_start, length):
        # The cells of the next position, read while this one is summed: draft k+1 of the round begun at t-k.
        k = (t - lane) & (WIDTH - 1)
        ahead = tl.load(cells + (row + t - k) * DEPTH + k, mask=(k < DEPTH) & (k <= t), other=0.0).to(tl.float64)
        passed = flow * cell
        here = tl.sum(flow - passed, 0) + tl.where(t == first_start, 1.0, 0.0)
        tl.store(out + row + t, here)
        flow = tl.where(k == 0, here, passed)
        cell = ahead


@kernel
def _value(cells, begin, size, gain, out, DEPTH: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def] # see `kernel`
    # later: value after the round begun at the lane's start, given that it accepts the drafts before the one to t.
    rollout = tl.program_id(0)
    row = tl.load(begin + rollout)
    length = tl.load(size + rollout).to(tl.int32)
    lane = tl.arange(0, WIDTH)
    later = tl.zeros((WIDTH,), tl.float64)
    for back in range(0, length):
        t = length - 1 - back
        # Draft k of the round begun at t-k; k = WIDTH in the lane of t itself, which goes over to another start.
        k = ((t - 1 - lane) & (WIDTH - 1)) + 1
        place = (row + t - k) * DEPTH + k - 1
        cell = tl.load(cells + place, mask=(k <= DEPTH) & (k <= t), other=0.0).to(tl.float64)
        here = tl.load(gain + row + t) + tl.sum(tl.where(k == WIDTH, later, 0.0), 0)
        tl.store(out + row + t, here)
        later = here + cell * (later - here)


def _launch(kernel: Any, cells: torch.Tensor, rows: Rows, *given: Any) -> torch.Tensor:
    out = torch.zeros(cells.shape[0], dtype=torch.float64, device=cells.device)
    if out.numel():
        depth = cells.shape[1]
        meta = {"DEPTH": depth, "WIDTH": triton.next_power_of_2(depth + 1), **LAUNCH}
        with torch.cuda.device_of(cells):  # type: ignore[no-untyped-call] # it has no type hints
            kernel[(rows.size.numel(),)](cells.contiguous(), rows.begin, rows.size, *given, out, **meta)
    return out


def occupancy(cells: torch.Tensor, rows: Rows, first_start: int) -> torch.Tensor:
    """Equation (O), (N,)."""
    return _launch(_occupancy, cells, rows, first_start)


def value(cells: torch.Tensor, gain: torch.Tensor, rows: Rows) -> torch.Tensor:
    """``V[s] = gain[s] + sum_k A[s,k] V[s+k+1]``, (N,): equation (V) for a gain of 1."""
    return _launch(_value, cells, rows, gain.contiguous())
