"""Acceptance rules: what the recorded probabilities say about how many drafts a round accepts.

One module for each rule, with its equation, its proof and its source; a new rule is a module and an entry of ``RULES``.
The lossy rules share ``lossy``: they have no proof, being no rules for the target's own output.
"""

from __future__ import annotations

from typing import Any, overload

from markov_spec.acceptance import (
    block,
    independent,
    lossy,
    match,
    node_k_seq,
    node_recursive,
    none,
    recorded,
    rejection,
)
from markov_spec.acceptance.inputs import Inputs, Rule
from markov_spec.acceptance.literal import Round, Tokens
from markov_spec.acceptance.tensors import of_tensors, tensor_law
from markov_spec.arrays import RoundLaw, Tensor, TensorLaw, check_indptr

__all__ = ["RULES", "Round", "Rule", "Tokens", "round_law"]

RULES: dict[str, Rule] = {
    entry.name: entry
    for entry in (
        rejection.RULE,
        block.RULE,
        match.RULE,
        independent.RULE,
        node_recursive.RULE,
        node_k_seq.RULE,
        recorded.RULE,
        *lossy.RULES,
        none.RULE,
    )
}


@overload
def round_law(log_p: Any, log_q: Tensor, indptr: Any = None, *, rule: str, **options: Any) -> TensorLaw: ...
@overload
def round_law(log_p: Any, log_q: Any, indptr: Any = None, *, rule: str, **options: Any) -> RoundLaw: ...
def round_law(  # type: ignore[misc] # the options above are the keywords here
    log_p: Any,
    log_q: Any,
    indptr: Any = None,
    *,
    rule: str,
    lengths: Any = None,
    draft_length: Any = None,
    hit: Any = None,
    drafts: Any = None,
    scale: Any = None,
    log_accept: Any = None,
    check_values: bool | None = None,
) -> RoundLaw | TensorLaw:
    """Compute how many drafts a round accepts, from every start of every rollout.

    Parameters
    ----------
    log_p : array of float, (N,), or None
        Log-probability (nats) of each generated token under the distribution the target decodes with.
    log_q : array of float, (N, K) or (N,), or None
        Log-probability (nats) of the token at ``s+k-1`` for the draft at depth ``k`` begun at ``s``, or of each
        position for an autoregressive drafter. ``-inf`` is probability 0. Cells past an end (``s+k > T``) or deeper
        than the draft length are ignored whatever they hold. Any float type of 16 bits or more.
    indptr : array of int, (R+1,)
        Rollout ``i`` owns rows ``indptr[i]:indptr[i+1]``.
    rule : str
        ``"rejection"``, ``"block"``, ``"match"``, ``"independent"``, ``"node-recursive"``, ``"node-k-seq"``,
        ``"recorded"``, ``"none"``, or a lossy one, whose law is teacher-forced: ``"typical"``, ``"additive"``,
        ``"multiplicative"``, ``"top-m"``, ``"margin"``.
    lengths : Tensor of int64, (B,), optional
        In place of ``indptr``, of torch tensors that are padded: (B, T) wherever (N,) stands here, (B, T, K) for
        (N, K).
    draft_length : int or array of int, (N,), optional
        Drafts proposed from each start, at most ``K``; required when drafts are ``(N,)``. Rule ``"none"`` ignores it.
    hit : array of bool, (N, K) or (N,), optional
        For ``"match"``: whether the realised token is (among) the fixed draft(s). A one-hot ``log_q`` does as well.
        For a lossy rule: whether it accepts the draft, as its function in ``acceptance.lossy`` tells.
    drafts : int, optional
        For ``"independent"``: drafts at each depth, 1 by default.
    scale : float or array of float, (N, K) or (N,), optional
        For ``"node-recursive"`` and ``"node-k-seq"``: ``c_m`` or ``rho_m`` (``acceptance.scalars``) of the node at
        ``(s, k)``, of position ``s+k-1``, or of all; 1 or more. 0 where target and drafter share no token is for
        ``"node-k-seq"`` only. Ignored where ``log_q`` is.
    log_accept : array of float, (N, K) or (N,), optional
        For ``"recorded"``: log-probability (nats) that the draft at ``(s, k)``, or at position ``s+k-1``, is accepted
        given the rollout and that those before it were. Ignored where ``log_q`` would be.
    check_values : bool, optional
        Of torch tensors: whether their values are read to be checked. Absent means on the CPU only, since a device
        would be waited for, and never under ``torch.compile``; shapes and types are checked always.

    Returns
    -------
    RoundLaw, or TensorLaw if ``log_p``, ``log_q``, ``hit`` or ``log_accept`` is a torch tensor
        In the float type of ``log_q`` or ``log_accept``, float32 if that has 16 bits. ``positions`` form for ``(N,)``
        drafts, except that ``"block"`` expands them to cells. A ``TensorLaw`` is on the tensors' device, in cells, and
        autograd follows it.

    Raises
    ------
    ValueError
        If the rule is unknown, lacks an argument or does not use one (``log_p`` and ``log_q`` may always be given);
        if shapes disagree, or a value is NaN or above 0 (beyond 1e-6), ``log_p`` is ``-inf``, or ``scale`` is below
        1; the message names the rollout and position.

    Notes
    -----
    ``O(N K)``. Ratios are differences of log-probabilities in float64; nothing is clamped. Tensors on a device are
    waited for only where ``(N,)`` drafts come with a draft length for each start, whose largest is the law's depth.

    Examples
    --------
    >>> import numpy as np, markov_spec as ms
    >>> log_p, log_q = np.log([.5, .8, .4]), np.log([.25, .9, .3])
    >>> law = ms.round_law(log_p, log_q, [0, 3], rule="rejection", draft_length=2)
    >>> law.survival()
    array([[0.5 , 0.5 ],
           [1.  , 0.75],
           [0.75, 0.  ]])
    >>> ms.round_law(log_p, log_q, [0, 3], rule="block", draft_length=2).survival()
    array([[0.5    , 0.5    ],
           [1.     , 0.84375],
           [0.75   , 0.     ]])
    >>> ms.round_law(None, log_q, [0, 3], rule="independent", draft_length=2, drafts=2).survival()
    array([[0.4375  , 0.433125],
           [0.99    , 0.5049  ],
           [0.51    , 0.      ]])

    Padded torch tensors:

    >>> import torch
    >>> log_p, log_q = (torch.tensor(np.stack([x, x])) for x in (log_p, log_q))
    >>> law = ms.round_law(log_p, log_q, lengths=torch.tensor([3, 1]), rule="rejection", draft_length=2)
    >>> law.survival()[1].tolist()
    [[0.5, 0.0], [0.0, 0.0], [0.0, 0.0]]
    """
    if rule not in RULES:
        raise ValueError(f"rule: found {rule!r}; allowed: {', '.join(RULES)}")
    options = {"hit": hit, "drafts": drafts, "scale": scale, "log_accept": log_accept}
    for name, value in options.items():
        users = [entry.name for entry in RULES.values() if name in entry.needs + entry.takes]
        if value is not None and rule not in users:
            raise ValueError(f"{name}: given, but rule {rule!r} does not use it; only for: {', '.join(users)}")
    if of_tensors(log_p, log_q, hit, log_accept):
        known = {"log_p": log_p, "log_q": log_q, "indptr": indptr, "lengths": lengths, "draft_length": draft_length}
        return tensor_law(rule, RULES[rule].exactness, **known, **options, check_values=check_values)
    for name, value in (("lengths", lengths), ("check_values", check_values)):
        if value is not None:
            raise ValueError(f"{name}: given with arrays; allowed: with torch tensors")
    inputs = Inputs(rule, check_indptr(indptr), log_p, log_q, draft_length, **options)
    if log_p is not None:
        _ = inputs.target_log_probs  # validated once, whether or not the rule reads it
    return RULES[rule].law(inputs)
