"""Baselines that compare the draft's whole distribution ``q`` with the target's ``p`` at the same position.

``overlap = sum_v min(p, q)``, ``TV = 1 - overlap``. Depths that are masked or past the end are left out of sums, and
are factors 1 in products. All but ``top-m-kl`` are measures of ``_tiles``.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Unpack

import torch
from torch import Tensor

from markov_spec.arrays import RequestError
from markov_spec.objectives._tiles import working_type
from markov_spec.objectives.inputs import Cells, Common, open_compared
from markov_spec.objectives.result import Objective, ObjectiveResult, name_of, reduce_cells, spell_out


def _measured(
    function: Callable[..., ObjectiveResult], measure: str, draft_logits: Tensor, target_logits: Tensor | None,
    tokens: Tensor, lengths: Tensor, common: Common,
) -> ObjectiveResult:  # fmt: skip
    cells, reduction = open_compared(draft_logits, target_logits, tokens, lengths, common, function)
    _, (loss,), _ = cells.read(measure)
    return reduce_cells(loss, None, cells.valid, name=name_of(function), paper="token-mean", reduction=reduction)


@spell_out
def forward_kl(
    draft_logits: Tensor, target_logits: Tensor | None, tokens: Tensor, lengths: Tensor, **common: Unpack[Common]
) -> ObjectiveResult:
    """Compute ``KL(p || q) = sum_v p log(p/q)``.

    Parameters
    ----------
    draft_logits : Tensor, (B, M, K, V)
        Depth ``k`` of the block begun at each start.
    target_logits : Tensor, (B, T, V)
        No gradient goes into them.
    tokens : Tensor of int, (B, T)
        The rollouts.
    lengths : Tensor of int, (B,)
        Their lengths.
    **common
        See `Common`.

    Returns
    -------
    ObjectiveResult
        Nats; ``"paper"`` is the token mean.

    Raises
    ------
    ValueError
        If shapes, types or values disagree.

    Notes
    -----
    Infinite, with gradient 0, at a cell where the draft rules out a token of the target. Source: Hinton et al. 2015
    (arXiv 1503.02531).

    Examples
    --------
    >>> import torch
    >>> from markov_spec import objectives
    >>> p, q = torch.tensor([.5, .5]).log().view(1, 1, 2), torch.tensor([.25, .75]).log().view(1, 1, 1, 2)
    >>> objectives.forward_kl(q, p, torch.tensor([[0]]), torch.tensor([1]))
    ObjectiveResult(forward-kl, token-mean: 0.143841)
    """
    return _measured(forward_kl, "forward-kl", draft_logits, target_logits, tokens, lengths, common)


@spell_out
def reverse_kl(
    draft_logits: Tensor, target_logits: Tensor | None, tokens: Tensor, lengths: Tensor, **common: Unpack[Common]
) -> ObjectiveResult:
    """Compute ``KL(q || p) = sum_v q log(q/p)``.

    Parameters
    ----------
    draft_logits, target_logits, tokens, lengths
        As of `forward_kl`.
    **common
        See `Common`.

    Returns
    -------
    ObjectiveResult
        Nats; ``"paper"`` is the token mean.

    Raises
    ------
    ValueError
        If shapes, types or values disagree.

    Notes
    -----
    Infinite, with gradient 0, at a cell where the target rules out a token of the draft, as filters do. Source: Gu et
    al. 2024 (arXiv 2306.08543).

    Examples
    --------
    >>> import torch
    >>> from markov_spec import objectives
    >>> p, q = torch.tensor([.5, .5]).log().view(1, 1, 2), torch.tensor([.25, .75]).log().view(1, 1, 1, 2)
    >>> objectives.reverse_kl(q, p, torch.tensor([[0]]), torch.tensor([1]))
    ObjectiveResult(reverse-kl, token-mean: 0.130812)
    """
    return _measured(reverse_kl, "reverse-kl", draft_logits, target_logits, tokens, lengths, common)


@spell_out
def jsd(
    draft_logits: Tensor, target_logits: Tensor | None, tokens: Tensor, lengths: Tensor, **common: Unpack[Common]
) -> ObjectiveResult:
    """Compute the Jensen-Shannon divergence ``(KL(p || m) + KL(q || m)) / 2``, ``m = (p + q) / 2``.

    Parameters
    ----------
    draft_logits, target_logits, tokens, lengths
        As of `forward_kl`.
    **common
        See `Common`.

    Returns
    -------
    ObjectiveResult
        Nats, at most ``log 2``; ``"paper"`` is the token mean.

    Raises
    ------
    ValueError
        If shapes, types or values disagree.

    Notes
    -----
    Source: Lin 1991.

    Examples
    --------
    >>> import torch
    >>> from markov_spec import objectives
    >>> p, q = torch.tensor([.5, .5]).log().view(1, 1, 2), torch.tensor([.25, .75]).log().view(1, 1, 1, 2)
    >>> objectives.jsd(q, p, torch.tensor([[0]]), torch.tensor([1]))
    ObjectiveResult(jsd, token-mean: 0.0338221)
    """
    return _measured(jsd, "jsd", draft_logits, target_logits, tokens, lengths, common)


@spell_out
def tv(
    draft_logits: Tensor, target_logits: Tensor | None, tokens: Tensor, lengths: Tensor, **common: Unpack[Common]
) -> ObjectiveResult:
    """Compute the total variation ``sum_v (p - q)_+``: the probability that a draft is rejected where it is tested.

    Parameters
    ----------
    draft_logits, target_logits, tokens, lengths
        As of `forward_kl`.
    **common
        See `Common`.

    Returns
    -------
    ObjectiveResult
        From 0 to 1; ``"paper"`` is the token mean.

    Raises
    ------
    ValueError
        If shapes, types or values disagree.

    Notes
    -----
    Source: Zhou et al. 2024, DistillSpec (arXiv 2310.08461).

    Examples
    --------
    >>> import torch
    >>> from markov_spec import objectives
    >>> p, q = torch.tensor([.5, .5]).log().view(1, 1, 2), torch.tensor([.25, .75]).log().view(1, 1, 1, 2)
    >>> objectives.tv(q, p, torch.tensor([[0]]), torch.tensor([1]))
    ObjectiveResult(tv, token-mean: 0.25)
    """
    return _measured(tv, "rejected", draft_logits, target_logits, tokens, lengths, common)


@spell_out
def lk_alpha(
    draft_logits: Tensor, target_logits: Tensor | None, tokens: Tensor, lengths: Tensor, **common: Unpack[Common]
) -> ObjectiveResult:
    """Compute ``-log overlap``: the TV gradient, made larger where little is accepted.

    Parameters
    ----------
    draft_logits, target_logits, tokens, lengths
        As of `forward_kl`.
    **common
        See `Common`.

    Returns
    -------
    ObjectiveResult
        Nats; ``"paper"`` is the token mean, of the logarithms.

    Raises
    ------
    ValueError
        If shapes, types or values disagree.

    Notes
    -----
    Infinite, with gradient 0, at a cell without overlap. Source: LK losses (arXiv 2602.23881); speculators' ``nla``.
    SpecForge takes the logarithm of the mean over a batch instead.

    Examples
    --------
    >>> import torch
    >>> from markov_spec import objectives
    >>> p, q = torch.tensor([.5, .5]).log().view(1, 1, 2), torch.tensor([.25, .75]).log().view(1, 1, 1, 2)
    >>> objectives.lk_alpha(q, p, torch.tensor([[0]]), torch.tensor([1]))
    ObjectiveResult(lk-alpha, token-mean: 0.287682)
    """
    return _measured(lk_alpha, "log-overlap", draft_logits, target_logits, tokens, lengths, common)


@spell_out
def lk_lambda(
    draft_logits: Tensor, target_logits: Tensor | None, tokens: Tensor, lengths: Tensor, *, eta: float = 3.0,
    **common: Unpack[Common],
) -> ObjectiveResult:  # fmt: skip
    """Compute ``lam KL(p || q) + (1 - lam) TV``, ``lam = exp(-eta sg overlap)``.

    Parameters
    ----------
    draft_logits, target_logits, tokens, lengths
        As of `forward_kl`.
    eta : float
        How soon the KL divergence gives way to TV; at least 0.
    **common
        See `Common`.

    Returns
    -------
    ObjectiveResult
        ``"paper"`` is the token mean. The gradient is a surrogate's: ``lam`` is constant.

    Raises
    ------
    ValueError
        If ``eta`` is below 0, or inputs disagree.

    Notes
    -----
    Source: LK losses (arXiv 2602.23881), ``lam`` by cell; SpecForge takes it from the mean overlap of a batch.

    Examples
    --------
    >>> import torch
    >>> from markov_spec import objectives
    >>> p, q = torch.tensor([.5, .5]).log().view(1, 1, 2), torch.tensor([.25, .75]).log().view(1, 1, 1, 2)
    >>> objectives.lk_lambda(q, p, torch.tensor([[0]]), torch.tensor([1]))
    ObjectiveResult(lk-lambda, token-mean: 0.238811)
    """
    if not eta >= 0:
        raise RequestError(f"eta: found {eta}; allowed: 0 or more")
    cells, reduction = open_compared(draft_logits, target_logits, tokens, lengths, common, lk_lambda)
    _, (rejected, divergence), _ = cells.read("rejected forward-kl")
    lam = torch.exp(-eta * (1 - rejected.detach()))
    loss = lam * divergence + (1 - lam) * rejected
    return reduce_cells(
        loss, None, cells.valid, name="lk-lambda", paper="token-mean", reduction=reduction, gradient_kind="surrogate"
    )


@spell_out
def e2e_tv(
    draft_logits: Tensor, target_logits: Tensor | None, tokens: Tensor, lengths: Tensor, **common: Unpack[Common]
) -> ObjectiveResult:
    """Compute ``1 - (1/K) sum_k prod_{i<=k} overlap_i``: overlaps multiplied along the rollout.

    Parameters
    ----------
    draft_logits, target_logits, tokens, lengths
        As of `forward_kl`.
    **common
        See `Common`.

    Returns
    -------
    ObjectiveResult
        From 0 to 1; ``"paper"`` is the mean over blocks of the mean over depths.

    Raises
    ------
    ValueError
        If shapes, types or values disagree.

    Notes
    -----
    A product of overlaps along the target's tokens is not a survival: accepted drafts are not distributed as these.
    Source: the baseline of that name in arXiv 2610.10411.

    Examples
    --------
    >>> import torch
    >>> from markov_spec import objectives
    >>> p, q = torch.tensor([.5, .5]).log().expand(1, 2, 2), torch.tensor([.25, .75]).log().expand(1, 2, 2, 2)
    >>> objectives.e2e_tv(q, p, torch.tensor([[0, 1]]), torch.tensor([2]))  # of the last block only depth 1 is there
    ObjectiveResult(e2e-tv, block-mean: 0.296875)
    """
    cells, reduction = open_compared(draft_logits, target_logits, tokens, lengths, common, e2e_tv)
    _, (overlap,), _ = cells.read("overlap")
    loss = 1 - torch.cumprod(overlap.where(cells.valid, 1), 2)
    return reduce_cells(loss, None, cells.valid, name="e2e-tv", paper="block-mean", reduction=reduction)


@spell_out
def top_m_kl(
    draft_logits: Tensor, target_logits: Tensor | None, tokens: Tensor, lengths: Tensor, *, m: int = 10,
    **common: Unpack[Common],
) -> ObjectiveResult:  # fmt: skip
    """Compute ``KL(p || q)`` among the target's ``m`` likeliest tokens, both divided by their sums over these.

    Parameters
    ----------
    draft_logits, target_logits, tokens, lengths
        As of `forward_kl`.
    m : int
        From 1 to ``V``.
    **common
        See `Common`.

    Returns
    -------
    ObjectiveResult
        Nats; ``"paper"`` is the token mean.

    Raises
    ------
    ValueError
        If ``m`` is not an integer of 1 to ``V``, or inputs disagree.

    Notes
    -----
    Only ``m`` logits of each cell are read, and have a gradient: what the draft gives to other tokens is not seen.
    Infinite, with gradient 0, where the draft rules out one of them. Source: ``kl_topk`` of AngelSpec's multi-token
    prediction, variant A, which is off there unless it is set. Not the ``dflash_kl_topk`` of its block drafters, of the
    default 10: there the draft's probabilities are those among all tokens.

    Examples
    --------
    >>> import torch
    >>> from markov_spec import objectives
    >>> p, q = torch.tensor([.4, .4, .2]).log().view(1, 1, 3), torch.tensor([.2, .6, .2]).log().view(1, 1, 1, 3)
    >>> objectives.top_m_kl(q, p, torch.tensor([[0]]), torch.tensor([1]), m=2)
    ObjectiveResult(top-m-kl, token-mean: 0.143841)
    """
    cells, reduction = open_compared(draft_logits, target_logits, tokens, lengths, common, top_m_kl)
    if isinstance(m, bool) or not isinstance(m, Integral) or not 1 <= m <= draft_logits.shape[-1]:
        raise RequestError(f"m: found {m!r}; allowed: 1 to V = {draft_logits.shape[-1]}")
    assert target_logits is not None  # settled
    loss = _listed_kl(cells, target_logits, int(m))
    return reduce_cells(loss, None, cells.valid, name="top-m-kl", paper="token-mean", reduction=reduction)


def _listed_kl(cells: Cells, target: Tensor, m: int) -> Tensor:
    dtype = working_type(cells.draft, target)
    best, ids = target.detach().topk(m, -1)
    log_p = torch.log_softmax(best.to(dtype) / cells.temperature, -1)
    rows = torch.arange(cells.at.shape[0], device=cells.at.device)[:, None, None]
    log_p, ids = log_p[rows, cells.at], ids[rows, cells.at]
    some = log_p > -torch.inf
    listed = cells.draft.gather(-1, ids).to(dtype) / cells.temperature
    missing = ((listed == -torch.inf) & some).any(-1)
    # rows without a finite logit would have no softmax
    listed = listed.masked_fill(missing[..., None] | ~cells.valid[..., None], 0)
    log_q = torch.log_softmax(listed, -1)
    terms = (log_p.exp() * (log_p.where(some, 0) - log_q.where(some, 0))).where(cells.valid[..., None], 0)
    return terms.sum(-1).masked_fill(missing & cells.valid, torch.inf)


ENTRIES = (
    Objective("forward-kl", forward_kl, "exact", "token-mean", True, "arXiv 1503.02531"),
    Objective("reverse-kl", reverse_kl, "exact", "token-mean", True, "arXiv 2306.08543"),
    Objective("jsd", jsd, "exact", "token-mean", True, "Lin 1991"),
    Objective("tv", tv, "exact", "token-mean", True, "arXiv 2310.08461"),
    Objective("lk-alpha", lk_alpha, "exact", "token-mean", True, "arXiv 2602.23881"),
    Objective("lk-lambda", lk_lambda, "surrogate", "token-mean", True, "arXiv 2602.23881"),
    Objective("e2e-tv", e2e_tv, "exact", "block-mean", True, "arXiv 2610.10411"),
    Objective("top-m-kl", top_m_kl, "exact", "token-mean", True, "AngelSpec"),
)
