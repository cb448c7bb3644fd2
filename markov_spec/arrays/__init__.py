"""The data that everything else passes around: rollouts, drafts and round laws.

Glossary
--------
rollout
    The tokens ``x[0..T-1]`` that the target model generated after a prompt, the end token included when it was
    generated.
start
    ``s`` tokens are committed; ``s = T`` means finished.
round
    One verification pass of the target. From start ``s`` it drafts depths ``k = 1..K``; depth ``k`` proposes the token
    at position ``s+k-1``. ``N`` drafts are accepted and one token of the target's own follows (a correction, or the
    *bonus token* after ``N = K``); the round commits ``min(N+1, T-s)`` tokens.
draft length
    ``K``, or ``L[s] <= K`` where it varies by start.
survival
    ``S[s,k] = P(N >= k | rollout)``; ``S[s,k] = 0`` for ``s+k > T``.
acceptance
    ``a[s,k] = S[s,k] / S[s,k-1]``: depth ``k`` is accepted given that the depths before it were.
round law
    ``A[s,k] = S[s,k] - S[s,k+1]``, the distribution of ``N``; held here as the acceptance ``a``.

Ragged rows: the ``N`` positions of ``R`` rollouts are concatenated; rollout ``i`` owns rows ``indptr[i]:indptr[i+1]``.
Log-probabilities are in nats, log zero is ``-inf``.
"""

from markov_spec.arrays.checks import (
    ABSENT,
    LOG_TOLERANCE,
    Array,
    RequestError,
    as_float,
    check_draft_length,
    check_first_start,
    check_indptr,
    check_integer,
    check_log_probs,
    locate,
)
from markov_spec.arrays.law import Exactness, RoundLaw
from markov_spec.arrays.recorded import Drafts, Kind, Rollouts
from markov_spec.arrays.rows import cells_inside, rollout_spans
from markov_spec.arrays.tensor_law import Tensor, TensorLaw, check_integers, tokens_left

__all__ = [
    "ABSENT",
    "LOG_TOLERANCE",
    "Array",
    "Drafts",
    "Exactness",
    "Kind",
    "RequestError",
    "Rollouts",
    "RoundLaw",
    "Tensor",
    "TensorLaw",
    "as_float",
    "cells_inside",
    "check_draft_length",
    "check_first_start",
    "check_indptr",
    "check_integer",
    "check_integers",
    "check_log_probs",
    "locate",
    "rollout_spans",
    "tokens_left",
]
