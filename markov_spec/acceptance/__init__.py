"""Acceptance rules: what the recorded probabilities say about how many drafts a round accepts (MATH 2).

One module for each rule, with its equation, its proof and its source; a new rule is a module and an entry of ``RULES``.
"""

from __future__ import annotations

from typing import Any

from markov_spec.acceptance import block, match, none, rejection
from markov_spec.acceptance.inputs import Inputs, Rule
from markov_spec.arrays import RoundLaw, check_indptr

__all__ = ["RULES", "Rule", "round_law"]

RULES: dict[str, Rule] = {entry.name: entry for entry in (rejection.RULE, block.RULE, match.RULE, none.RULE)}


def round_law(log_p: Any, log_q: Any, indptr: Any, *, rule: str, draft_length: Any = None, hit: Any = None) -> RoundLaw:
    """Compute how many drafts a round accepts, from every start of every rollout.

    Parameters
    ----------
    log_p : array of float, (N,), or None
        Log-probability (nats) of each generated token under the distribution the target decodes with.
    log_q : array of float, (N, K) or (N,), or None
        Log-probability (nats) of the token at ``s+k-1`` for the draft at depth ``k`` begun at ``s``, or of each
        position for an autoregressive drafter. ``-inf`` is probability 0. Cells past an end (``s+k > T``) or deeper
        than the draft length are ignored whatever they hold. Any float type of 16 bits or more, torch tensors too.
    indptr : array of int, (R+1,)
        Rollout ``i`` owns rows ``indptr[i]:indptr[i+1]``.
    rule : {"rejection", "block", "match", "none"}
    draft_length : int or array of int, (N,), optional
        Drafts proposed from each start, at most ``K``; required when drafts are ``(N,)``. Rule ``"none"`` ignores it.
    hit : array of bool, (N, K) or (N,), optional
        For ``"match"``: whether the realised token is (among) the fixed draft(s). A one-hot ``log_q`` does as well.

    Returns
    -------
    RoundLaw
        In the float type of ``log_q``. ``positions`` form for ``(N,)`` drafts, except that ``"block"`` expands them to
        cells.

    Raises
    ------
    ValueError
        If the rule is unknown or lacks an argument, shapes disagree, or a value is NaN or above 0 (beyond 1e-6), or
        ``log_p`` is ``-inf``; the message names the rollout and position.

    Notes
    -----
    ``O(N K)``. Ratios are differences of log-probabilities in float64; nothing is clamped.

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
    """
    if rule not in RULES:
        raise ValueError(f"rule: found {rule!r}; allowed: {', '.join(RULES)}")
    inputs = Inputs(rule, check_indptr(indptr), log_p, log_q, hit, draft_length)
    if log_p is not None:
        inputs.target_log_probs()
    return RULES[rule].law(inputs)
