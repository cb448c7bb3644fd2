"""Drafters that know a part of the vocabulary: both models over the drafter's ids and one column for all others."""

from __future__ import annotations

import torch
from torch import Tensor

from markov_spec.objectives._tiles import working_type
from markov_spec.objectives.checks import check_blocks, check_devices, check_float, check_integers, readable
from markov_spec.objectives.inputs import check_temperature

ELSEWHERE = -20.0  # log-probability, nats


def fold_vocabulary(
    draft_logits: Tensor, target_logits: Tensor, tokens: Tensor, ids: Tensor, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Put all that a drafter's vocabulary lacks into one column, for any objective and ``score_cells``.

    Parameters
    ----------
    draft_logits : Tensor, (B, M, K, D)
        Over the ids that the drafter knows.
    target_logits : Tensor, (B, T, V)
        Over all ids.
    tokens : Tensor of int, (B, T)
        The rollouts, in ids of the target.
    ids : Tensor of int, (D,)
        The target's id of each of the drafter's; of a ``d2t`` of offsets, ``arange(D) + d2t``.
    temperature : float
        Divides both models' logits, here and not again: objectives take the result at temperature 1.

    Returns
    -------
    draft_logits : Tensor, (B, M, K, D + 1)
        Log-probabilities (nats), differentiable; in the last column the constant -20.
    target_logits : Tensor, (B, T, D + 1)
        Log-probabilities; in the last column that of all other ids together. Float32, as the draft's, or float64.
    tokens : Tensor of int64, (B, T)
        Columns; ``D`` for all other ids, -1 for what is no id.

    Raises
    ------
    ValueError
        If shapes or types disagree, or, on the CPU, ``ids`` are not distinct ids of the target.

    Notes
    -----
    The drafter gives other ids nothing, so that overlap and total variation over the columns are those over all ids, to
    ``exp(-20)``, 2e-9, and the cost to that over ``1 - p(Z)``. Divergences, which would be infinite, and cross-entropy
    have a constant there and the gradient of the ids that are known. ``stop_ids`` are columns, too, of stop tokens that
    the drafter knows: ``(ids == stop).nonzero()``. ``O(B (T V + M K D))``.

    Examples
    --------
    >>> import torch
    >>> from markov_spec import objectives
    >>> draft = torch.tensor([.25, .75]).log().view(1, 1, 1, 2)
    >>> target = torch.tensor([.5, .1, .2, .2]).log().view(1, 1, 4)
    >>> folded = objectives.fold_vocabulary(draft, target, torch.tensor([[3]]), torch.tensor([0, 2]))
    >>> folded[1].exp(), folded[2].tolist()
    (tensor([[[0.5000, 0.2000, 0.3000]]]), [[2]])
    >>> objectives.tv(*folded, torch.tensor([1]))
    ObjectiveResult(tv, token-mean: 0.55)
    """
    check_blocks(draft_logits)
    check_float(target_logits, "target_logits", 3, "(B, T, V)")
    tokens = check_integers(tokens, "tokens", 2, "(B, T)", target_logits.shape[0])
    known, size = draft_logits.shape[-1], target_logits.shape[-1]
    ids = _check_ids(ids, known, size)
    check_devices(draft_logits=draft_logits, target_logits=target_logits, tokens=tokens, ids=ids)
    temperature, dtype = check_temperature(temperature), working_type(draft_logits, target_logits)
    draft = torch.log_softmax(draft_logits.to(dtype) / temperature, -1)
    draft = torch.cat([draft, draft.new_full((*draft.shape[:-1], 1), ELSEWHERE)], -1)
    with torch.no_grad():
        target = torch.log_softmax(target_logits.to(dtype) / temperature, -1)
        others = target.index_fill(-1, ids, -torch.inf).logsumexp(-1, keepdim=True)
        target = torch.cat([target.index_select(-1, ids), others], -1)
    column = torch.full((size,), known, device=ids.device).scatter(0, ids, torch.arange(known, device=ids.device))
    inside = (tokens >= 0) & (tokens < size)
    return draft, target, column[tokens.clamp(0, size - 1)].where(inside, -1)


def _check_ids(ids: Tensor, known: int, size: int) -> Tensor:
    ids = check_integers(ids, "ids", 1, "(D,)", known)
    if readable(ids):
        wrong = ids[(ids < 0) | (ids >= size)]
        if len(wrong):
            raise ValueError(f"ids: found {int(wrong[0])}; allowed: token ids 0 to {size - 1}; offsets are added first")
        twice = ids[torch.bincount(ids, minlength=size)[ids] > 1]
        if len(twice):
            raise ValueError(f"ids: found {int(twice[0])} twice; allowed: distinct ids; offsets are added first")
    return ids
