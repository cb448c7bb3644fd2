"""The recursions (V) and (O) on tensors as loops over starts, all rollouts at once, and what each row does by itself.

Rows are flat: rollout ``i`` owns ``size[i]`` of them from ``begin[i]`` on; rows between rollouts are padding. Cells
(N, K) hold the acceptance, 0 in all that do not count, so that a round of ``d`` drafts has ``A[s,k] = S[s,k] -
S[s,k+1] = 0`` for ``k > d``. Sums are float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from markov_spec.arrays import tokens_left


@dataclass(frozen=True, eq=False)
class Rows:
    """Which rows are whose: ``begin`` and ``size``, (R,), and the tokens that are left from each row, (N,)."""

    begin: torch.Tensor
    size: torch.Tensor
    left: torch.Tensor

    @classmethod
    def padded(cls, lengths: torch.Tensor, tokens: int) -> Rows:
        """Make those of a batch; lengths are clipped, since what is beyond them belongs to others."""
        size = lengths.clamp(0, tokens)
        begin = torch.arange(size.numel(), device=size.device) * tokens
        return cls(begin, size, tokens_left(size, None, (size.numel(), tokens)).flatten())

    @classmethod
    def ragged(cls, indptr: torch.Tensor, rows: int) -> Rows:
        """Make those of rollouts one after the other; offsets are put into order, as they bound what is read."""
        offsets = torch.cummax(indptr.clamp(0, rows), 0).values
        return cls(offsets[:-1], offsets.diff(), tokens_left(None, offsets, (rows,)))


def counted(accept: torch.Tensor, deepest: torch.Tensor) -> torch.Tensor:
    """Put 0 into cells (N, K) that are deeper than ``deepest``, (N,)."""
    depths = torch.arange(1, accept.shape[1] + 1, device=accept.device)
    return torch.where(depths <= deepest[:, None], accept, 0.0)


def survival(cells: torch.Tensor) -> torch.Tensor:
    """Compute ``S``, (N, K+1), from depth 0 on."""
    first = cells.new_ones(cells.shape[0], 1, dtype=torch.float64)
    return torch.cat((first, cells.double()), 1).cumprod(1)


def round_law(S: torch.Tensor) -> torch.Tensor:
    """Compute ``A[s,k] = S[s,k] - S[s,k+1]``, (N, K+1)."""
    return torch.cat((S[:, :-1] - S[:, 1:], S[:, -1:]), 1)


def ahead(values: torch.Tensor, rows: Rows, k: int) -> torch.Tensor:
    """Give the values (N,) of the starts ``s+k``, 0 from the end on."""
    return torch.where(rows.left > k, values.roll(-k), 0.0)


def first(values: torch.Tensor, rows: Rows, first_start: int) -> torch.Tensor:
    """Give the values (R,) of the first starts, 0 of rollouts that have none left to decode."""
    begun = rows.size > first_start
    if not values.numel():
        return values.new_zeros(begun.shape)
    return torch.where(begun, values[torch.where(begun, rows.begin + first_start, 0)], 0.0)


def _grid(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    # Row numbers (R, T), T the longest rollout, and which of them are not past an end.
    longest = int(rows.size.max()) if rows.size.numel() else 0
    starts = torch.arange(longest, device=rows.size.device)
    own = starts < rows.size[:, None]
    return torch.where(own, rows.begin[:, None] + starts, 0), own


def occupancy(cells: torch.Tensor, rows: Rows, first_start: int) -> torch.Tensor:
    """Equation (O), (N,)."""
    at, own = _grid(rows)
    law, width = round_law(survival(cells)), cells.shape[1] + 1
    reach = law.new_zeros(at.shape[0], at.shape[1] + width)
    reach[:, first_start : first_start + 1] = 1
    for s in range(first_start, at.shape[1]):
        reach[:, s + 1 : s + 1 + width] += torch.where(own[:, s], reach[:, s], 0.0)[:, None] * law[at[:, s]]
    out = law.new_zeros(cells.shape[0])
    out[at[own]] = reach[:, : at.shape[1]][own]
    return out


def value(cells: torch.Tensor, gain: torch.Tensor, rows: Rows) -> torch.Tensor:
    """``V[s] = gain[s] + sum_k A[s,k] V[s+k+1]``, (N,): equation (V) for a gain of 1."""
    at, own = _grid(rows)
    law, width = round_law(survival(cells)), cells.shape[1] + 1
    after = law.new_zeros(at.shape[0], at.shape[1] + width)
    for s in range(at.shape[1] - 1, -1, -1):
        later = (law[at[:, s]] * after[:, s + 1 : s + 1 + width]).sum(1)
        after[:, s] = torch.where(own[:, s], gain[at[:, s]] + later, 0.0)
    out = law.new_zeros(cells.shape[0])
    out[at[own]] = after[:, : at.shape[1]][own]
    return out
