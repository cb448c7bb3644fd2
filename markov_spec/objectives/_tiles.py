"""What the objectives read from whole distributions: one operator over tiles of cells, and its derivative.

Cell ``(b, m, k)`` has the draft's distribution ``q``, the softmax of its logits over the temperature, the target's
``p`` of position ``t = s + k - 1`` and that position's token ``x``. With ``Z`` the stop tokens, the measures are::

    rejected     sum_{v not in Z} (p - q)_+ / sum_{v not in Z} p       d/dq = -1{p > q} / the denominator; 0 if it is 0
    overlap      sum_v min(p, q)                                       d/dq = 1{p > q}
    forward-kl   sum_v p log(p/q)                                      d/dq = -p/q
    reverse-kl   sum_v q log(q/p)                                      d/dq = log(q/p)
    jsd          (KL(p || m) + KL(q || m)) / 2, m = (p + q) / 2        d/dq = log(q/m) / 2

Slopes ``g = d/dq``, each up to a constant, become those of the logits by ``q (g - sum_v q g)``, and that of
``log q(x)`` is ``1{v = x} - q``, both over the temperature. Where ``p = q`` the one-sided slope 0 is taken, where a
divergence is infinite 0 as well.

Nothing as large as the logits is kept beside them: either pass goes through them a few starts at a time, and the
backward pass computes the probabilities again. Half precision is computed with in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

TILE_ON_CPU, TILE_ELSEWHERE = 1 << 20, 1 << 25  # probabilities worked on at once


@dataclass
class _Tile:
    """Cells ``first..last-1`` of one rollout: distributions are (g, K, V), all else (g, K)."""

    here: tuple[int, slice]
    valid: Tensor
    token: Tensor
    scaled: Tensor  # the draft's logits over the temperature
    q: Tensor
    p: Tensor | None  # 0 at stop tokens
    ordinary: Tensor | None  # the target's mass outside the stop tokens; None without any


def working_type(*logits: Tensor | None) -> torch.dtype:
    """Give the float type that is computed with: float64 where any is, else float32."""
    wide = any(given is not None and given.dtype == torch.float64 for given in logits)
    return torch.float64 if wide else torch.float32


def positions(starts: Tensor | None, shape: tuple[int, ...], lengths: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Give the position ``s + k - 1`` of each cell (B, M, K), clipped, and whether the rollout has it."""
    rows, count, depth = shape[:3]
    if starts is None:
        starts = torch.arange(count, device=lengths.device).expand(rows, count)
    at = starts[..., None] + torch.arange(depth, device=lengths.device)
    valid = (starts[..., None] >= 0) & (at < lengths[:, None, None])
    return at.clamp(0, max(size - 1, 0)), valid


def _scaled(logits: Tensor, dtype: torch.dtype, temperature: float) -> Tensor:
    wide = logits.to(dtype)
    return wide if temperature == 1 else wide / temperature


def _walk(
    draft: Tensor, target: Tensor | None, tokens: Tensor, lengths: Tensor, starts: Tensor | None, stop_ids: list[int],
    temperature: float,
) -> Iterator[_Tile]:  # fmt: skip
    rows, count, depth, vocabulary = draft.shape
    dtype = working_type(draft, target)
    at, valid = positions(starts, draft.shape, lengths, tokens.shape[1])
    on_cpu = draft.device.type == "cpu"
    largest = TILE_ON_CPU if on_cpu else TILE_ELSEWHERE
    step = max(1, largest // max(depth * vocabulary, 1))
    for row in range(rows):
        for first in range(0, count, step):
            here = row, slice(first, min(first + step, count))
            if on_cpu and not valid[here].any():
                continue
            scaled = _scaled(draft[here], dtype, temperature)
            p = ordinary = None
            if target is not None:
                logits = _scaled(_target_rows(target[row], at[here], starts is None, first), dtype, temperature)
                p, ordinary = _probabilities(logits, stop_ids, scaled.shape)
            yield _Tile(here, valid[here], tokens[row][at[here]], scaled, torch.softmax(scaled, -1), p, ordinary)


def _target_rows(target: Tensor, at: Tensor, consecutive: bool, first: int) -> Tensor:
    # Consecutive starts share positions, each of which is then turned into probabilities once: (g + K - 1, V).
    if not consecutive:
        return target[at.reshape(-1)]
    last = first + at.shape[0] + at.shape[1] - 1
    short = last - target.shape[0]
    rows = target[first:last]
    return rows if short <= 0 else torch.cat([rows, target[-1:].expand(short, -1)])


def _probabilities(logits: Tensor, stop_ids: list[int], shape: torch.Size) -> tuple[Tensor, Tensor | None]:
    # As (g, K, V), rows of consecutive starts overlapping in memory.
    count, depth, vocabulary = shape
    p, ordinary = torch.softmax(logits, -1), None
    step = depth if p.shape[0] == count * depth else 1
    if stop_ids:
        p[:, stop_ids] = 0
        ordinary = p.sum(-1).as_strided((count, depth), (step, 1))
    return p.as_strided(shape, (step * vocabulary, vocabulary, 1)), ordinary


def _log_ratio(upper: Tensor, lower: Tensor) -> Tensor:
    return (upper.log() - lower.log()).masked_fill_(upper == 0, 0)


def _value(measure: str, tile: _Tile, p: Tensor) -> Tensor:
    q = tile.q
    if measure == "rejected":
        total = torch.sub(p, q).relu_().sum(-1)
        return total if tile.ordinary is None else total / tile.ordinary.where(tile.ordinary > 0, 1)
    if measure == "overlap":
        return torch.minimum(p, q).sum(-1)
    if measure == "forward-kl":
        log_q = torch.log_softmax(tile.scaled, -1)  # q may have underflowed
        return (p * (p.log() - log_q).masked_fill_(p == 0, 0)).sum(-1)
    if measure == "reverse-kl":
        return (q * _log_ratio(q, p)).sum(-1)
    middle = (p + q) / 2
    return (p * _log_ratio(p, middle) + q * _log_ratio(q, middle)).sum(-1) / 2


def _slope(measure: str, tile: _Tile, p: Tensor) -> Tensor:
    q = tile.q
    if measure in ("rejected", "overlap"):
        above = torch.sub(p, q).relu_().sign_()
        if measure == "overlap":
            return above
        if tile.ordinary is None:
            return above.neg_()
        return above.div_(-tile.ordinary.where(tile.ordinary > 0, 1)[..., None])
    if measure == "forward-kl":
        return torch.div(p, q).neg_().masked_fill_(q == 0, 0)
    if measure == "reverse-kl":
        ratio = _log_ratio(q, p)
        return ratio.masked_fill_(ratio.isinf(), 0)
    return _log_ratio(q, (p + q) / 2).div_(2)


@torch.library.custom_op("markov_spec::cells", mutates_args=())
def _cells(
    draft: Tensor, target: Tensor | None, tokens: Tensor, lengths: Tensor, starts: Tensor | None, stop_ids: list[int],
    temperature: float, measures: str, hits: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    log_q, values, hit = _empty(draft, target, measures)
    for tile in _walk(draft, target, tokens, lengths, starts, stop_ids, temperature):
        best = tile.scaled.amax(-1)
        own = tile.scaled.gather(-1, tile.token[..., None])[..., 0]
        log_q[tile.here] = (own - best + tile.q.amax(-1).log()).where(tile.valid, 0)
        if hits:  # the likeliest token is the first of equals
            hit[tile.here] = tile.valid & (tile.scaled.argmax(-1) == tile.token)
        if tile.p is not None:
            for j, name in enumerate(measures.split()):
                values[(j, *tile.here)] = _value(name, tile, tile.p).where(tile.valid, 0)
    return log_q, values, hit


def _empty(draft: Tensor, target: Tensor | None, measures: str) -> tuple[Tensor, Tensor, Tensor]:
    shape, dtype = draft.shape[:3], working_type(draft, target)
    log_q, values = draft.new_zeros(shape, dtype=dtype), draft.new_zeros((len(measures.split()), *shape), dtype=dtype)
    return log_q, values, draft.new_zeros(shape, dtype=torch.bool)


@torch.library.custom_op("markov_spec::cells_backward", mutates_args=())
def _cells_backward(
    on_log_q: Tensor, on_values: Tensor, draft: Tensor, target: Tensor | None, tokens: Tensor, lengths: Tensor,
    starts: Tensor | None, stop_ids: list[int], temperature: float, measures: str,
) -> Tensor:  # fmt: skip
    gradient = torch.zeros(draft.shape, dtype=draft.dtype, device=draft.device)
    for tile in _walk(draft, target, tokens, lengths, starts, stop_ids, temperature):
        own = on_log_q[tile.here].where(tile.valid, 0) / temperature
        slope = None
        if tile.p is not None:
            for j, name in enumerate(measures.split()):
                weight = on_values[(j, *tile.here)].where(tile.valid, 0) / temperature
                term = _slope(name, tile, tile.p).mul_(weight[..., None])
                slope = term if slope is None else slope.add_(term)
        if slope is None:
            slope = tile.q * -own[..., None]
        else:
            mean = (slope * tile.q).sum(-1)  # not a dot product, which autocast would narrow
            slope.sub_((mean + own)[..., None]).mul_(tile.q)
        slope.scatter_add_(-1, tile.token[..., None], own[..., None])
        if draft.device.type != "cpu" or not tile.valid.all():
            slope.masked_fill_(~tile.valid[..., None], 0)
        gradient[tile.here] = slope
    return gradient


@_cells.register_fake
def _(draft, target, tokens, lengths, starts, stop_ids, temperature, measures, hits):  # type: ignore[no-untyped-def]
    return _empty(draft, target, measures)


@_cells_backward.register_fake
def _(on_log_q, on_values, draft, *_):  # type: ignore[no-untyped-def]
    return torch.empty(draft.shape, dtype=draft.dtype, device=draft.device)


def _keep(ctx, inputs, output):  # type: ignore[no-untyped-def]
    draft, target, tokens, lengths, starts, ctx.stop_ids, ctx.temperature, ctx.measures, _ = inputs
    _, values, hit = output
    ctx.mark_non_differentiable(hit)
    ctx.save_for_backward(draft, target, tokens, lengths, starts, values)


def _backward(ctx, on_log_q, on_values, _):  # type: ignore[no-untyped-def]
    *given, values = ctx.saved_tensors
    on_values = on_values.masked_fill(values.isinf(), 0)
    gradient = _cells_backward(on_log_q, on_values, *given, ctx.stop_ids, ctx.temperature, ctx.measures)
    return gradient, *(None,) * 8


_cells.register_autograd(_backward, setup_context=_keep)


def read_cells(
    draft: Tensor, target: Tensor | None, tokens: Tensor, lengths: Tensor, starts: Tensor | None = None, *,
    stop_ids: tuple[int, ...] = (), temperature: float = 1.0, measures: str = "", hits: bool = False,
) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:  # fmt: skip
    """Give ``log q(x)`` (B, M, K), one array of that shape for each measure, and whether ``x`` is the likeliest token.

    All are 0 at cells that the rollout lacks. Differentiable in the draft's logits, once.
    """
    log_q, values, hit = _cells(draft, target, tokens, lengths, starts, list(stop_ids), temperature, measures, hits)
    return log_q, values.unbind(0), hit
