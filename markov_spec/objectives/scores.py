"""What a pass without a gradient says about every start: for sampling, weighing and watching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from markov_spec.objectives._tiles import read_cells
from markov_spec.objectives.checks import check_devices, check_float, readable
from markov_spec.objectives.inputs import check_cells, check_stops


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
    temperature : float
    stop_ids : tuple of int
        With which the logits were read.
    """

    log_p: Tensor
    log_q: Tensor
    cost: Tensor
    overlap: Tensor
    hit: Tensor
    lengths: Tensor
    starts: Tensor | None = None
    temperature: float = 1.0
    stop_ids: tuple[int, ...] = ()

    def __repr__(self) -> str:
        rows, count, depth = self.log_q.shape
        return f"CellScores({rows} rollouts, M = {count}, K = {depth})"

    @classmethod
    def join(cls, parts: Sequence[CellScores]) -> CellScores:
        """Put together scores of the same rollouts, some starts at a time.

        Parameters
        ----------
        parts : sequence of CellScores
            Of ``score_cells`` with ``starts``, one after the other.

        Returns
        -------
        CellScores
            Of all their starts, in this order: where it is 0 to ``T - 1``, as if scored at once.

        Raises
        ------
        ValueError
            If there are none, they lack starts, or are of other rollouts, settings or depths.

        Examples
        --------
        >>> import torch
        >>> from markov_spec import objectives
        >>> draft, target = torch.zeros(1, 4, 2, 3), torch.zeros(1, 4, 3)
        >>> given = target, torch.tensor([[0, 1, 2, 0]]), torch.tensor([4])
        >>> starts = torch.arange(4)[None]
        >>> objectives.CellScores.join([
        ...     objectives.score_cells(draft[:, part], *given, starts=starts[:, part])
        ...     for part in (slice(0, 3), slice(3, 4))
        ... ])
        CellScores(1 rollouts, M = 4, K = 2)
        """
        parts = tuple(parts)
        if not parts:
            raise ValueError("parts: found none; allowed: one or more")
        for i, part in enumerate(parts):
            _check_part(part, parts[0], i)
        log_q, cost, overlap, hit, starts = (
            torch.cat([getattr(part, name) for part in parts], 1)
            for name in ("log_q", "cost", "overlap", "hit", "starts")
        )
        return replace(parts[0], log_q=log_q, cost=cost, overlap=overlap, hit=hit, starts=starts)


def _check_part(part: CellScores, first: CellScores, i: int) -> None:
    if part.starts is None:
        raise ValueError(f"parts: part {i}: found no starts; allowed: what score_cells gave with starts")
    found, allowed = ((one.log_p.shape[0], one.log_p.shape[1], one.log_q.shape[2]) for one in (part, first))
    if found != allowed:
        raise ValueError(f"parts: part {i}: found (B, T, K) = {found}; allowed: {allowed}, of part 0")
    if (part.temperature, part.stop_ids) != (first.temperature, first.stop_ids):
        raise ValueError(
            f"parts: part {i}: found temperature {part.temperature}, stop_ids {part.stop_ids}; "
            f"allowed: {first.temperature}, {first.stop_ids}, of part 0"
        )
    check_devices(part=part.log_q, part_0=first.log_q)
    pairs = (part.lengths, first.lengths), (part.log_p, first.log_p)
    if readable(part.log_p) and not all(torch.equal(*pair) for pair in pairs):
        raise ValueError(f"parts: part {i}: found other rollouts; allowed: those of part 0")


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
        Which starts these are, to score a drafter some starts at a time; `CellScores.join` puts them together.
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
    return CellScores(log_p[..., 0], log_q, cost, overlap, hit, cells.lengths, cells.starts, cells.temperature, stops)
