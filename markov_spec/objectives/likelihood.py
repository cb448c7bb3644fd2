"""Baselines that read the draft's probability of the rollout's own token: cross-entropies and the chain.

``q_k`` is ``q(x)`` at depth ``k`` of a block, ``CE_k = -log q_k``, and ``sg`` holds constant. Depths that are masked or
past the end are left out of sums, and are factors 1 in products.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from markov_spec.arrays import RequestError
from markov_spec.objectives.inputs import Common, open_cells
from markov_spec.objectives.result import Objective, ObjectiveResult, reduce_cells, spell_out


@spell_out
def cross_entropy(
    draft_logits: Tensor, target_logits: Tensor | None, tokens: Tensor, lengths: Tensor, **common: Unpack[Common]
) -> ObjectiveResult:
    """Compute the cross-entropy of the rollout's tokens: ``CE_k`` at every cell.

    Parameters
    ----------
    draft_logits : Tensor, (B, M, K, V)
        Depth ``k`` of the block begun at each start.
    target_logits : Tensor, (B, T, V), or None
        Not read.
    tokens : Tensor of int, (B, T)
        The rollouts.
    lengths : Tensor of int, (B,)
        Their lengths.
    **common
        See `Common`.

    Returns
    -------
    ObjectiveResult
        ``"paper"`` is the token mean.

    Raises
    ------
    ValueError
        If shapes, types or values disagree.

    Notes
    -----
    Two passes over the logits, which are all that is kept. Infinite where the draft rules the token out.

    Examples
    --------
    >>> import torch
    >>> from markov_spec import objectives
    >>> logits = torch.tensor([.25, .75]).log().expand(1, 2, 1, 2)
    >>> objectives.cross_entropy(logits, None, torch.tensor([[0, 1]]), torch.tensor([2]))
    ObjectiveResult(cross-entropy, token-mean: 0.836988)
    """
    cells, reduction = open_cells(draft_logits, target_logits, tokens, lengths, common, cross_entropy)
    log_q, _, _ = cells.read()
    return reduce_cells(-log_q, None, cells.valid, name="cross-entropy", paper="token-mean", reduction=reduction)


@spell_out
def dflash_decay(
    draft_logits: Tensor, target_logits: Tensor | None, tokens: Tensor, lengths: Tensor, *, gamma: float = 4.0,
    **common: Unpack[Common],
) -> ObjectiveResult:  # fmt: skip
    """Compute the cross-entropy with weights that decay by depth: ``w_k = exp(-(k-1) / gamma)``.

    Parameters
    ----------
    draft_logits, target_logits, tokens, lengths
        As of `cross_entropy`.
    gamma : float
        Depths in which the weight falls by ``e``.
    **common
        See `Common`.

    Returns
    -------
    ObjectiveResult
        ``"paper"`` is ``sum w CE / sum w``.

    Raises
    ------
    ValueError
        If ``gamma`` is not above 0, or inputs disagree.

    Notes
    -----
    Source: DFlash (arXiv 2602.06036). Default as in DeepSpec and speculators; the latter divides by the number of
    cells, which is ``reduction="token-mean"``.

    Examples
    --------
    >>> import torch
    >>> from markov_spec import objectives
    >>> logits = torch.tensor([.25, .75]).log().expand(1, 2, 2, 2)
    >>> objectives.dflash_decay(logits, None, torch.tensor([[0, 1]]), torch.tensor([2]))
    ObjectiveResult(dflash-decay, weight-mean: 0.683037)
    """
    if not gamma > 0:
        raise RequestError(f"gamma: found {gamma}; allowed: above 0")
    cells, reduction = open_cells(draft_logits, target_logits, tokens, lengths, common, dflash_decay)
    log_q, _, _ = cells.read()
    depth = torch.arange(log_q.shape[2], device=log_q.device, dtype=torch.float64)
    weight = torch.exp(-depth / gamma).expand(log_q.shape)
    return reduce_cells(-log_q, weight, cells.valid, name="dflash-decay", paper="weight-mean", reduction=reduction)


@spell_out
def d_pace(
    draft_logits: Tensor, target_logits: Tensor | None, tokens: Tensor, lengths: Tensor, *, alpha: float = 0.5,
    **common: Unpack[Common],
) -> ObjectiveResult:  # fmt: skip
    """Compute the cross-entropy weighted by what a draft is worth to those after it.

    ``w_k = sg sum_{j>=k} prod_{i<=j} ((1 - alpha) q_i + alpha)``.

    Parameters
    ----------
    draft_logits, target_logits, tokens, lengths
        As of `cross_entropy`.
    alpha : float
        From 0 to 1: how far probabilities are lifted towards 1, so that a bad first draft does not silence the others.
    **common
        See `Common`.

    Returns
    -------
    ObjectiveResult
        ``"paper"`` divides ``sum w CE`` by the number of rollouts. The gradient is a surrogate's: weights are constant.

    Raises
    ------
    ValueError
        If ``alpha`` is outside [0, 1], or inputs disagree.

    Notes
    -----
    Source: D-PACE (arXiv 2605.18810). The weights are the gradient, in log-probabilities, of the length that the lifted
    probabilities promise.

    Examples
    --------
    >>> import torch
    >>> from markov_spec import objectives
    >>> logits = torch.tensor([.25, .75]).log().expand(1, 2, 2, 2)
    >>> objectives.d_pace(logits, None, torch.tensor([[0, 1]]), torch.tensor([2]))
    ObjectiveResult(d-pace, batch-mean: 2.03361)
    """
    if not 0 <= alpha <= 1:
        raise RequestError(f"alpha: found {alpha}; allowed: 0 to 1")
    cells, reduction = open_cells(draft_logits, target_logits, tokens, lengths, common, d_pace)
    log_q, _, _ = cells.read()
    lifted = ((1 - alpha) * log_q.detach().double().exp() + alpha).where(cells.valid, 1)
    worth = torch.cumprod(lifted, 2) * cells.valid
    weight = worth.flip(2).cumsum(2).flip(2)
    return reduce_cells(
        -log_q, weight, cells.valid, name="d-pace", paper="batch-mean", reduction=reduction, gradient_kind="surrogate"
    )


@spell_out
def auf(
    draft_logits: Tensor, target_logits: Tensor | None, tokens: Tensor, lengths: Tensor, **common: Unpack[Common]
) -> ObjectiveResult:
    """Compute the cross-entropy up to and including the first depth where the likeliest draft is wrong.

    ``w_k = sg prod_{i<k} 1{argmax q_i = x_i}``.

    Parameters
    ----------
    draft_logits, target_logits, tokens, lengths
        As of `cross_entropy`.
    **common
        See `Common`.

    Returns
    -------
    ObjectiveResult
        ``"paper"`` is ``sum w CE / sum w``.

    Raises
    ------
    ValueError
        If shapes, types or values disagree.

    Notes
    -----
    Source: AUF, accept until fail (arXiv 2607.01893). Of equal logits the token of the lowest id is the likeliest. The
    weights are constant wherever they have a derivative, so the gradient is exact.

    Examples
    --------
    >>> import torch
    >>> from markov_spec import objectives
    >>> logits = torch.tensor([.25, .75]).log().expand(1, 2, 2, 2)
    >>> objectives.auf(logits, None, torch.tensor([[0, 1]]), torch.tensor([2]))  # without depth 2 of block 0
    ObjectiveResult(auf, weight-mean: 0.836988)
    """
    cells, reduction = open_cells(draft_logits, target_logits, tokens, lengths, common, auf)
    log_q, _, hit = cells.read(hits=True)
    right = (hit | ~cells.valid).double().cumprod(2)
    weight = torch.cat([torch.ones_like(right[..., :1]), right[..., :-1]], 2)
    return reduce_cells(-log_q, weight, cells.valid, name="auf", paper="weight-mean", reduction=reduction)


@spell_out
def chain(
    draft_logits: Tensor, target_logits: Tensor | None, tokens: Tensor, lengths: Tensor, **common: Unpack[Common]
) -> ObjectiveResult:
    """Compute the negative of the drafts that independent matching is expected to accept: ``-prod_{i<=k} q_i``.

    Parameters
    ----------
    draft_logits, target_logits, tokens, lengths
        As of `cross_entropy`.
    **common
        See `Common`.

    Returns
    -------
    ObjectiveResult
        ``"paper"`` is the mean over blocks of the mean over depths, ``-(1/K) sum_k prod_{i<=k} q_i``.

    Raises
    ------
    ValueError
        If shapes, types or values disagree.

    Notes
    -----
    Source: arXiv 2606.11552, section 5.5, without its optional weights by depth and its focal term.

    Examples
    --------
    >>> import torch
    >>> from markov_spec import objectives
    >>> logits = torch.tensor([.25, .75]).log().expand(1, 2, 2, 2)
    >>> objectives.chain(logits, None, torch.tensor([[0, 1]]), torch.tensor([2]))
    ObjectiveResult(chain, block-mean: -0.484375)
    """
    cells, reduction = open_cells(draft_logits, target_logits, tokens, lengths, common, chain)
    log_q, _, _ = cells.read()
    survival = torch.cumprod(log_q.exp().where(cells.valid, 1), 2)
    return reduce_cells(-survival, None, cells.valid, name="chain", paper="block-mean", reduction=reduction)


ENTRIES = (
    Objective("cross-entropy", cross_entropy, "exact", "token-mean", False, "maximum likelihood"),
    Objective("dflash-decay", dflash_decay, "exact", "weight-mean", False, "arXiv 2602.06036"),
    Objective("d-pace", d_pace, "surrogate", "batch-mean", False, "arXiv 2605.18810"),
    Objective("auf", auf, "exact", "weight-mean", False, "arXiv 2607.01893"),
    Objective("chain", chain, "exact", "block-mean", False, "arXiv 2606.11552"),
)
