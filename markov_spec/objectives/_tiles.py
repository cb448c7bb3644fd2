"""What the objectives read from whole distributions: one operator over tiles of cells, and its derivative.

Cell ``(b, m, k)`` has the draft's distribution ``q``, the softmax of its logits over the temperature, the target's
``p`` of position ``t = s + k - 1`` and that position's token ``x``. With ``Z`` the stop tokens, the measures are::

    rejected     sum_{v not in Z} (p - q)_+ / sum_{v not in Z} p       pull  q 1{p > q} / the denominator; 0 if it is 0
    overlap      sum_v min(p, q)                                       pull  -q 1{p > q}
    log-overlap  -log sum_v min(p, q)                                  pull  q 1{p > q} / overlap
    forward-kl   sum_v p log(p/q)                                      pull  p
    reverse-kl   sum_v q log(q/p)                                      pull  -q log(q/p)
    jsd          (KL(p || m) + KL(q || m)) / 2, m = (p + q) / 2        pull  -q log(q/m) / 2

The pull ``t`` is ``-q`` times the slope in ``q``, up to multiples of ``q``; the slope of the logits is ``q sum_v t -
t`` over the temperature, and that of ``log q(x)`` is ``1{v = x} - q``. Divergences are differences of logarithms, and
no pull is a quotient that overflows: what underflows has its value and slope nevertheless. Where ``p = q`` the
one-sided slope 0 is taken, where a divergence is infinite 0 as well.

Nothing as large as the logits is kept beside them: either pass goes through them a few starts at a time, and the
backward pass computes the probabilities again. Half precision is computed with in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad

from markov_spec.arrays import RequestError

LOGARITHMIC = ("log-overlap", "forward-kl", "reverse-kl", "jsd")
TILE_ON_CPU, TILE_ELSEWHERE = 1 << 20, 1 << 25  # probabilities worked on at once


@dataclass
class _Tile:
    """Cells ``first..last-1`` of one rollout: distributions are (g, K, V), all else (g, K)."""

    here: tuple[int, slice]
    valid: Tensor
    token: Tensor
    scaled: Tensor  # the draft's logits over the temperature
    q: Tensor
    log_q: Tensor | None  # None as log_p
    p: Tensor | None  # 0 at stop tokens
    log_p: Tensor | None  # None where no measure reads it
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
    temperature: float, measures: list[str],
) -> Iterator[_Tile]:  # fmt: skip
    rows, count, depth, vocabulary = draft.shape
    dtype = working_type(draft, target)
    at, valid = positions(starts, draft.shape, lengths, tokens.shape[1])
    on_cpu, logs = draft.device.type == "cpu", any(name in LOGARITHMIC for name in measures)
    largest = TILE_ON_CPU if on_cpu else TILE_ELSEWHERE
    step = max(1, largest // max(depth * vocabulary, 1))
    for row in range(rows):
        for first in range(0, count, step):
            here = row, slice(first, min(first + step, count))
            if on_cpu and not valid[here].any():
                continue
            scaled = _scaled(draft[here], dtype, temperature)
            log_q = p = log_p = ordinary = None
            if target is not None:
                logits = _scaled(_target_rows(target[row], at[here], starts is None, first), dtype, temperature)
                p, ordinary = _probabilities(logits, stop_ids, scaled.shape)
                if logs:
                    log_q, log_p = torch.log_softmax(scaled, -1), _by_cell(torch.log_softmax(logits, -1), scaled.shape)
            q, token = torch.softmax(scaled, -1), tokens[row][at[here]]
            yield _Tile(here, valid[here], token, scaled, q, log_q, p, log_p, ordinary)


def _target_rows(target: Tensor, at: Tensor, consecutive: bool, first: int) -> Tensor:
    # Consecutive starts share positions, each of which is then turned into probabilities once: (g + K - 1, V).
    if not consecutive:
        return target[at.reshape(-1)]
    last = first + at.shape[0] + at.shape[1] - 1
    short = last - target.shape[0]
    rows = target[first:last]
    return rows if short <= 0 else torch.cat([rows, target[-1:].expand(short, -1)])


def _by_cell(rows: Tensor, shape: torch.Size) -> Tensor:
    # As (g, K, ...), rows of consecutive starts overlapping in memory.
    count, depth = shape[:2]
    step = depth if rows.shape[0] == count * depth else 1
    size = rows.shape[1:].numel()
    return rows.as_strided((count, depth, *rows.shape[1:]), (step * size, size, *rows.stride()[1:]))


def _probabilities(logits: Tensor, stop_ids: list[int], shape: torch.Size) -> tuple[Tensor, Tensor | None]:
    p, ordinary = torch.softmax(logits, -1), None
    if stop_ids:
        p[:, stop_ids] = 0
        ordinary = _by_cell(p.sum(-1), shape)
    return _by_cell(p, shape), ordinary


def _given(one: Tensor | None) -> Tensor:
    assert one is not None  # read by this measure
    return one


def _half_log(other: Tensor) -> Tensor:
    # log(u / ((u + v) / 2)) of other = log(v / u)
    return math.log(2) - torch.logaddexp(other, other.new_zeros(()))


def _value(measure: str, tile: _Tile, p: Tensor) -> Tensor:
    q = tile.q
    if measure == "rejected":
        total = torch.sub(p, q).relu_().sum(-1)
        return total if tile.ordinary is None else total / tile.ordinary.where(tile.ordinary > 0, 1)
    if measure == "overlap":
        return torch.minimum(p, q).sum(-1)
    log_p, log_q = _given(tile.log_p), _given(tile.log_q)
    if measure == "log-overlap":
        return -torch.minimum(log_p, log_q).logsumexp(-1)
    if measure == "forward-kl":
        return (p * (log_p - log_q)).masked_fill_(p == 0, 0).sum(-1)
    if measure == "reverse-kl":
        return (q * (log_q - log_p)).masked_fill_(q == 0, 0).sum(-1)
    more = log_q - log_p
    halves = [(u * _half_log(way)).masked_fill_(u == 0, 0).sum(-1) for u, way in ((p, more), (q, -more))]
    return (halves[0] + halves[1]) / 2


def _pull(measure: str, tile: _Tile, p: Tensor) -> Tensor:
    q = tile.q
    if measure in ("rejected", "overlap"):
        above = torch.sub(p, q).relu_().sign_().mul_(q)
        if measure == "overlap":
            return above.neg_()
        return above if tile.ordinary is None else above.div_(tile.ordinary.where(tile.ordinary > 0, 1)[..., None])
    if measure == "forward-kl":
        return p.clone()
    log_p, log_q = _given(tile.log_p), _given(tile.log_q)
    if measure == "log-overlap":
        total = torch.minimum(log_p, log_q).logsumexp(-1, keepdim=True)
        total = total.masked_fill_(total == -torch.inf, 0)
        return (log_q - total).exp_().masked_fill_(~(log_p > log_q), 0)
    if measure == "reverse-kl":
        ratio = log_q - log_p
        return ratio.masked_fill_(ratio.isinf() | (q == 0), 0).mul_(-q)
    return _half_log(log_p - log_q).masked_fill_(q == 0, 0).mul_(-q / 2)


@torch.library.custom_op("markov_spec::cells", mutates_args=())
def _cells(
    draft: Tensor, target: Tensor | None, tokens: Tensor, lengths: Tensor, starts: Tensor | None, stop_ids: list[int],
    temperature: float, measures: str, hits: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    log_q, values, hit = _empty(draft, target, measures)
    names = measures.split()
    for tile in _walk(draft, target, tokens, lengths, starts, stop_ids, temperature, names):
        best = tile.scaled.amax(-1)
        own = tile.scaled.gather(-1, tile.token[..., None])[..., 0]
        log_q[tile.here] = (own - best + tile.q.amax(-1).log()).where(tile.valid, 0)
        if hits:  # the likeliest token is the first of equals
            hit[tile.here] = tile.valid & (tile.scaled.argmax(-1) == tile.token)
        if tile.p is not None:
            for j, name in enumerate(names):
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
    names = measures.split()
    for tile in _walk(draft, target, tokens, lengths, starts, stop_ids, temperature, names):
        own = on_log_q[tile.here].where(tile.valid, 0) / temperature
        pull = None
        if tile.p is not None:
            for j, name in enumerate(names):
                weight = on_values[(j, *tile.here)].where(tile.valid, 0) / temperature
                term = _pull(name, tile, tile.p).mul_(weight[..., None])
                pull = term if pull is None else pull.add_(term)
        slope = tile.q * ((0 if pull is None else pull.sum(-1)) - own)[..., None]
        if pull is not None:
            slope.sub_(pull)
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


def _keep_measures(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.measures = inputs[-1]


def _refuse_second(ctx, _):  # type: ignore[no-untyped-def]
    read = ", ".join(ctx.measures.split()) or "log q"
    raise RuntimeError(f"objective of {read}: found a second derivative; allowed: first derivatives only")


_cells_backward.register_autograd(_refuse_second, setup_context=_keep_measures)


def _refuse_dual(values: Tensor | None, name: str) -> None:
    # Its tangent would be lost in the operator without a word.
    if values is None:
        return
    unpacked = forward_ad.unpack_dual(values, level=0)  # type: ignore[no-untyped-call]
    if unpacked.tangent is not None:
        found = "found a dual tensor of forward-mode differentiation"
        raise RequestError(f"{name}: {found}; allowed: reverse mode, by backward() or torch.autograd.grad")


def read_cells(
    draft: Tensor, target: Tensor | None, tokens: Tensor, lengths: Tensor, starts: Tensor | None = None, *,
    stop_ids: tuple[int, ...] = (), temperature: float = 1.0, measures: str = "", hits: bool = False,
) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:  # fmt: skip
    """Give ``log q(x)`` (B, M, K), one array of that shape for each measure, and whether ``x`` is the likeliest token.

    All are 0 at cells that the rollout lacks. Differentiable in the draft's logits, once, and in reverse mode.
    """
    if not torch.compiler.is_compiling():
        _refuse_dual(draft, "draft_logits")
        _refuse_dual(target, "target_logits")
    log_q, values, hit = _cells(draft, target, tokens, lengths, starts, list(stop_ids), temperature, measures, hits)
    return log_q, values.unbind(0), hit
