"""What a pass without a gradient says about every start: for sampling, weighing and watching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from markov_spec.objectives._tiles import read_cells
from markov_spec.objectives.inputs import check_cells, check_float, check_stops


@dataclass(frozen=True, eq=False, repr=False)
class CellScores:
    """The rollouts' tokens under both models. Made by ``score_cells``.

    Parameters
    ----------
    log_p : Tensor, (B, T)
        Target's log-probability (nats) of each token; 0 past the end.
    log_q : Tensor, (B, M, K)
        Drafter's, of the token at ``s+k-1``; 0 past the end, as all that follows.
    cost : Tensor, (B, M, K)
        ``sum_{v not in Z} (p - q)_+ / (1 - p(Z))``.
    overlap : Tensor, (B, M, K)
        ``sum_v min(p, q)``.
    hit : Tensor of bool, (B, M, K)
        Whether the token is the drafter's likeliest, of equal logits the one of the lowest id.
    lengths : Tensor of int, (B,)
        Tokens of each rollout.
    starts : Tensor of int64, (B, M), or None
        Which starts these are; None of every start, in order.
    """

    log_p: Tensor
    log_q: Tensor
    cost: Tensor
    overlap: Tensor
    hit: Tensor
    lengths: Tensor
    starts: Tensor | None = None

    def __repr__(self) -> str:
        rows, count, depth = self.log_q.shape
        return f"CellScores({rows} rollouts, M = {count}, K = {depth})"


@torch.no_grad()
def score_cells(
    draft_logits: Tensor, target_logits: Tensor, tokens: Tensor, lengths: Tensor, *, starts: Tensor | None = None,
    stop_ids: Sequence[int] = (), temperature: float = 1.0,
) -> CellScores:  # fmt: skip
    """Read both models' logits once, without a gradient.

    Parameters
    ----------
    draft_logits : Tensor, (B, M, K, V)
        Depth ``k`` of the block begun at each start.
    target_logits : Tensor, (B, T, V)
        Of the position of each token.
    tokens : Tensor of int, (B, T)
        The rollouts.
    lengths : Tensor of int, (B,)
        Tokens of each rollout.
    starts : Tensor of int, (B, M), optional
        Which starts these are, to score a drafter some starts at a time; results are joined along ``M``, in
        the order of the starts.
    stop_ids, temperature
        As of ``edr``.

    Returns
    -------
    CellScores

    Raises
    ------
    ValueError
        As of ``edr``.

    Examples
    --------
    >>> import torch
    >>> from markov_spec import objectives
    >>> p, q = torch.tensor([.5, .5]).log().view(1, 1, 2), torch.tensor([.25, .75]).log().view(1, 1, 1, 2)
    >>> scores = objectives.score_cells(q, p, torch.tensor([[1]]), torch.tensor([1]))
    >>> scores.cost.item(), scores.overlap.item(), scores.hit.item()
    (0.25, 0.75, True)
    """
    check_float(target_logits, "target_logits", 3, "(B, T, V)")
    cells = check_cells(draft_logits, target_logits, tokens, lengths, starts=starts, temperature=temperature)
    stops = check_stops(stop_ids, draft_logits.shape[-1])
    log_p, _, _ = read_cells(target_logits[:, :, None], None, cells.tokens, cells.lengths, temperature=temperature)
    log_q, (overlap, cost), hit = cells.read("overlap rejected", hits=True)
    if stops:
        _, (cost,), _ = read_cells(
            draft_logits, target_logits, cells.tokens, cells.lengths, cells.starts, stop_ids=stops,
            temperature=temperature, measures="rejected",
        )  # fmt: skip
    return CellScores(log_p[..., 0], log_q, cost, overlap, hit, cells.lengths, cells.starts)
