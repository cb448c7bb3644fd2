"""Expected decoding rounds as a training objective, with their exact gradient.

``a[s,k] = min(1, q/p)`` at the rollout's token, ``c[s,k] = sum_{v not in Z} (p - q)_+ / (1 - p(Z))``, ``L = T - 1``::

    rollout form   E[R] = V[s0],  V[s] = 1 + sum_k A[s,k] V[s+k+1]
    cost form      EDR = 1 + Y[s0],  Y[L] = 0,  Y[s] = X[s,1]
                   X[s,k] = c[s,k] + a[s,k] cont + (1 - a[s,k]) Y[s+k]  for s+k <= L
                   cont = X[s,k+1] if k < K and s+k < L;  1 + Y[s+K+1] if k = K and s+K+1 <= L;  else 0

The rollout form is exact for each rollout. The cost form puts the probability of a rejection, over all tokens that the
target may say, in the place of the one that happened: equal on average over unselected rollouts, and with a gradient at
every token. It is meant for averages only: of a single rollout it may be made less than the fewest rounds, by
rejections that would cost other rollouts more. Epochs over few fixed rollouts do just that, and the loss falls below
their exact rounds.

Both recursions run forward only. The gradient is ``sum_{s,k} dE/da grad a + dE/dc grad c`` (``weights``), and no tape
goes through time. Source: arXiv 2610.10411.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Literal, Never

import torch
from torch import Tensor

from markov_spec.arrays import RequestError, check_integer
from markov_spec.objectives._tiles import positions, read_cells, working_type
from markov_spec.objectives.checks import check_blocks, check_devices, check_float, check_integers, readable, refuse
from markov_spec.objectives.inputs import check_cells, check_lengths, check_log_q, check_starts, check_stops
from markov_spec.objectives.result import Objective, ObjectiveResult, refuse_unknown, spell_out
from markov_spec.objectives.sampling import SampledStarts
from markov_spec.objectives.weights import Rule, check_rule, weigh

REDUCTIONS = ("paper", "rollout-mean", "token-mean", "sum")
OTHER_FORM = {
    "rollout": "give cost=scores.cost to sample_starts, or form='rollout' here",
    "cost": "leave cost out of sample_starts, or give form='cost' here",
}
NO_MASK = dict.fromkeys(("mask", "mask_frame"), "a token that is not learned is decoded all the same: cut prompts off")
RULED_OUT = "finite logits of what the rollout says: this token is ruled out, as a filter (top-k, top-p) may do"


@spell_out
def edr(
    draft_logits: Tensor, target_logits: Tensor, tokens: Tensor | None, lengths: Tensor, *,
    starts: Tensor | None = None, weights: Tensor | None = None, aux: SampledStarts | None = None,
    form: Literal["cost", "rollout"] = "cost",
    stop_ids: Sequence[int] = (), temperature: float = 1.0, rule: Rule = "rejection", first_start: int = 0,
    reduction: str = "paper", **unknown: Never,
) -> ObjectiveResult:  # fmt: skip
    """Compute the expected decoding rounds of a batch of rollouts, to be minimised.

    Parameters
    ----------
    draft_logits : Tensor, (B, M, K, V)
        Depth ``k`` of the block begun at start ``s`` predicts ``tokens[b, s+k-1]`` and stands at ``[b, m, k-1]``. For
        the rollout form also log-probabilities (nats) of these tokens, (B, M, K).
    target_logits : Tensor, (B, T, V)
        Of the position of each token; no gradient goes into them. With log-probabilities, these too, (B, T).
    tokens : Tensor of int, (B, T), or None
        The rollouts, their last token included; None with log-probabilities.
    lengths : Tensor of int, (B,)
        Tokens of each rollout.
    starts, weights, aux : optional
        What ``sample_starts`` gave, all three; without them ``M = T``, and block ``m`` begins at ``m``.
    form : {"cost", "rollout"}
        Which form; they have the same mean.
    stop_ids : sequence of int
        Tokens that end a rollout, ``Z`` of the cost form; empty where only a length does. The rollout form is the same
        with any.
    temperature : float
        Divides both models' logits. Neither is for log-probabilities.
    rule : {"rejection", "block"}
        How drafts are verified: one by one, or as a block, for which there is the rollout form only.
    first_start : int
        ``s0``: 0 when the first token is drafted too, 1 when the prefill emits it.
    reduction : {"paper", "rollout-mean", "token-mean", "sum"}
        Mean over rollouts with something to decode (``"paper"``), rounds by tokens, or the sum of the rounds.

    Returns
    -------
    ObjectiveResult
        ``rounds`` and ``accepted_length`` are those of the rollout form in any case, exact given the rollouts.

    Raises
    ------
    ValueError
        If shapes, types, options or, on the CPU, values disagree: rollouts with a token that the target rules out
        among them, and starts or weights that are not those of ``aux``. RuntimeError for a second derivative.

    Notes
    -----
    The cost form equals the rounds in expectation over unselected rollouts. Several epochs over few fixed ones bias it:
    its loss falls below the batch's exact rounds, which rollouts unseen do not follow. Draw new rollouts, or use
    ``form="rollout"``, and watch ``loss`` beside ``rounds.mean()``; the result shows both. Tokens must be what the
    target says at this temperature: on other text the rounds are teacher-forced, exact of a decoding made to say it.

    Two passes over the logits, which are all that is kept beside ``O(B T K)``. Where ``q = p``, acceptance has two
    slopes; that of more acceptance, 0, is taken. Tokens that are recorded past a stop token are decoded too: cut
    rollouts there. Under ``torch.compile`` and on a device values are not looked at: lengths and starts out of range
    are clipped, as are token ids; a rollout that the target rules out gives NaN or infinite figures; log-probabilities
    above 0 count as 1; that starts and weights are those of ``aux`` is taken for granted. NaN logits give a NaN loss.

    Examples
    --------
    >>> import torch
    >>> from markov_spec import objectives
    >>> draft = torch.tensor([.25, .75]).log().expand(1, 4, 2, 2).clone().requires_grad_()
    >>> target = torch.tensor([.5, .5]).log().expand(1, 4, 2)
    >>> tokens, lengths = torch.tensor([[0, 1, 1, 0]]), torch.tensor([4])
    >>> result = objectives.edr(draft, target, tokens, lengths)
    >>> result
    ObjectiveResult(edr, rollout-mean: 2.125, exact rounds 2, accepted length 2)
    >>> result.loss.backward()
    >>> draft.grad[0, 1, 0]  # a round from start 1 would do better to draft token 0 more often there
    tensor([-0.0938,  0.0938])
    """
    if unknown:
        refuse_unknown(edr, unknown, NO_MASK)
    check_rule(rule, form)
    check_integer(first_start, "first_start", 0)
    first_start = int(first_start)
    if reduction not in REDUCTIONS:
        raise RequestError(f"reduction: found {reduction!r}; allowed: {', '.join(REDUCTIONS)}")
    if not isinstance(draft_logits, Tensor) or draft_logits.ndim not in (3, 4):
        check_float(draft_logits, "draft_logits", 4, "(B, M, K, V), or (B, M, K) of log-probabilities")
    scalars = draft_logits.ndim == 3
    if scalars and isinstance(target_logits, Tensor) and target_logits.ndim == 3:
        check_blocks(draft_logits)
    stops = () if scalars else check_stops(stop_ids, draft_logits.shape[-1])
    _check_sample(starts, weights, aux, (form, rule, first_start), draft_logits)
    if scalars:
        _refuse_options(stop_ids, temperature)
        log_p, log_q, costs = _given(draft_logits, target_logits, tokens, lengths, starts, form)
    else:
        _check_settings(aux, stops, temperature)
        if tokens is None:
            raise RequestError("tokens: found None; allowed: a tensor (B, T), unless log-probabilities are given")
        log_p, log_q, costs = _read(draft_logits, target_logits, tokens, lengths, starts, stops, temperature, form)
    lengths = lengths.long()
    if aux is None:
        found = weigh(log_p, log_q.detach(), lengths, None if costs is None else costs.detach(), rule, first_start)
        share: Tensor | None = None
        rounds, value, on_log_q, on_cost = found.rounds, found.value, found.log_q, found.cost
    else:
        share = weights
        rounds, value, on_log_q, on_cost = aux.rounds, aux.value, aux.log_q, aux.cost
    per_rollout = value + _slope(log_q, on_log_q, share)
    if costs is not None and on_cost is not None:
        per_rollout = per_rollout + _slope(costs, on_cost, share)
    return _result(per_rollout, rounds, (lengths - first_start).clamp(min=0).double(), log_q.dtype, reduction)


def _check_sample(
    starts: Tensor | None, weights: Tensor | None, aux: SampledStarts | None, chosen: tuple[str, str, int],
    draft: Tensor,
) -> None:  # fmt: skip
    given = [name for name, one in (("starts", starts), ("weights", weights), ("aux", aux)) if one is not None]
    if 0 < len(given) < 3:
        raise RequestError(f"found {', '.join(given)} only; allowed: all of starts, weights and aux, or none of them")
    if aux is None or starts is None or weights is None:
        return
    if not isinstance(aux, SampledStarts):
        raise RequestError(f"aux: found {type(aux).__name__}; allowed: what sample_starts gave")
    made = aux.form, aux.rule, aux.first_start
    if made != chosen:
        instead = "" if made[0] == chosen[0] else "; " + OTHER_FORM[aux.form]
        raise RequestError("aux: found one for form {!r}, rule {!r} and first_start {}; ".format(*made)
                           + "allowed: for {!r}, {!r} and {}".format(*chosen) + instead)  # fmt: skip
    shape = tuple(draft.shape[:3])
    if tuple(aux.log_q.shape) != shape:
        raise ValueError(f"aux: found one for (B, M, K) = {tuple(aux.log_q.shape)}; allowed: {shape}, of draft_logits")
    starts = check_integers(starts, "starts", 2, "(B, M)", shape[0])
    if tuple(starts.shape) != shape[:2]:
        raise ValueError(f"starts: found shape {tuple(starts.shape)}; allowed: {shape[:2]}, as the blocks")
    if not isinstance(weights, Tensor) or tuple(weights.shape) != shape[:2] or weights.dtype != torch.float64:
        found = f"{tuple(weights.shape)} of {weights.dtype}" if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(
            f"weights: found {found}; allowed: a tensor {shape[:2]} of torch.float64, as sample_starts gave"
        )
    check_devices(draft_logits=draft, starts=starts, weights=weights, aux=aux.log_q)
    if readable(weights):
        for name, one, own in (("starts", starts, aux.starts), ("weights", weights, aux.weights)):
            refuse(one != own, one, name, "what sample_starts gave with aux")


def _check_settings(aux: SampledStarts | None, stops: tuple[int, ...], temperature: float) -> None:
    if aux is None:
        return
    if aux.temperature != temperature:
        allowed = f"allowed: {temperature}, of this call; give temperature=scores.temperature to sample_starts"
        raise RequestError(f"aux: found one for temperature {aux.temperature}; {allowed}")
    if aux.form == "cost" and set(aux.stop_ids) != set(stops):
        allowed = f"allowed: {stops}, of this call; give stop_ids=scores.stop_ids to sample_starts"
        raise RequestError(f"aux: found one for stop_ids {aux.stop_ids}; {allowed}")


def _refuse_options(stop_ids: Sequence[int], temperature: float) -> None:
    if temperature != 1:
        raise RequestError(f"temperature: found {temperature!r} with log-probabilities; allowed: with logits")
    if not isinstance(stop_ids, Sized) or len(stop_ids):
        raise RequestError(f"stop_ids: found {stop_ids!r} with log-probabilities; allowed: with logits")


def _given(
    log_q: Tensor, log_p: Tensor, tokens: Tensor | None, lengths: Tensor, starts: Tensor | None, form: str
) -> tuple[Tensor, Tensor, None]:
    if form == "cost":
        raise RequestError("form: found 'cost' for log-probabilities; allowed: 'rollout', the cost needs logits")
    if tokens is not None:
        raise RequestError("tokens: given with log-probabilities; allowed: None, the probabilities are theirs")
    check_float(log_q, "draft_logits", 3, "(B, M, K) of log-probabilities")
    check_float(log_p, "target_logits", 2, "(B, T) of log-probabilities")
    if log_q.shape[0] != log_p.shape[0]:
        raise ValueError(f"target_logits: found {log_p.shape[0]} rollouts; allowed: B = {log_q.shape[0]}")
    lengths = check_lengths(lengths, *log_p.shape)
    starts = check_starts(starts, tuple(log_q.shape[:2]), log_p.shape[1])
    check_devices(draft_logits=log_q, target_logits=log_p, lengths=lengths, starts=starts)
    check_log_q(log_q, positions(starts, tuple(log_q.shape), lengths, log_p.shape[1])[1], "draft_logits")
    return log_p, log_q.to(working_type(log_q)), None


def _read(
    draft_logits: Tensor, target_logits: Tensor, tokens: Tensor, lengths: Tensor, starts: Tensor | None,
    stops: tuple[int, ...], temperature: float, form: str,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    check_float(target_logits, "target_logits", 3, "(B, T, V)")
    cells = check_cells(draft_logits, target_logits, tokens, lengths, starts=starts, temperature=temperature)
    with torch.no_grad():
        log_p, _, _ = read_cells(target_logits[:, :, None], None, cells.tokens, cells.lengths, temperature=temperature)
    if readable(log_p):
        refuse(~log_p[..., 0].isfinite(), log_p[..., 0], "target_logits", RULED_OUT)
    log_q, measured, _ = read_cells(
        draft_logits, target_logits if form == "cost" else None, cells.tokens, cells.lengths, cells.starts,
        stop_ids=stops, temperature=temperature, measures="rejected" if form == "cost" else "",
    )  # fmt: skip
    return log_p[..., 0], log_q, measured[0] if measured else None


def _slope(values: Tensor, weights: Tensor, share: Tensor | None) -> Tensor:
    # 0, with the weights for its gradient
    shared = weights if share is None else weights * share[..., None]
    wide = values.double().where(shared != 0, 0)
    return (shared * (wide - wide.detach())).sum((1, 2))


def _result(
    per_rollout: Tensor, rounds: Tensor, left: Tensor, dtype: torch.dtype, reduction: str
) -> ObjectiveResult:  # fmt: skip
    chosen = "rollout-mean" if reduction == "paper" else reduction
    some = left > 0
    below = {
        "rollout-mean": some.sum(dtype=torch.float64),
        "token-mean": left.sum(),
        "sum": torch.ones((), dtype=torch.float64, device=left.device),
    }[chosen]
    loss = per_rollout.sum() / torch.where(below > 0, below, 1)
    return ObjectiveResult(
        loss.to(dtype), per_rollout.to(dtype), left, ~some.any(), "edr", chosen, "exact", rounds,
        left.sum() / rounds.sum(),
    )  # fmt: skip


ENTRIES = (Objective("edr", edr, "exact", "rollout-mean", True, "arXiv 2610.10411"),)
