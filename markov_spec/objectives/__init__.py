"""Training objectives in torch: the expected decoding rounds themselves, and what others minimise in their place.

``edr`` is the number that decoding is timed by, with its exact gradient. The baselines are published stand-ins for it,
each by its formula (in its docstring), with its source's defaults and reduction, or at one reduction for all:

    edr            expected decoding rounds
    cross-entropy  -log q(x)                               dflash-decay   the same, decaying by depth
    d-pace         the same, by the worth of later drafts  auf            the same, up to the first wrong draft
    chain          - prod q(x)                             e2e-tv         1 - mean prod overlap
    tv             1 - overlap                             lk-alpha       -log overlap
    lk-lambda      KL and TV, mixed by overlap             forward-kl, reverse-kl, jsd
    top-m-kl       forward KL among the target's likeliest tokens

All take ``(draft_logits, target_logits, tokens, lengths)`` and give an ``ObjectiveResult``; what each takes by name
is ``OBJECTIVES[name].options``. A new one is a function and an entry of ``OBJECTIVES``. They work under
``torch.compile``, autocast and ``no_grad``; no collective runs inside, so under DDP each process has the loss of its
own rows. For a drafter of a part of the vocabulary ``fold_vocabulary`` makes logits that all of them take.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401 # whether it is there
except ImportError as error:
    raise ImportError("markov_spec.objectives needs torch: pip install 'markov-spec[torch]'") from error

from markov_spec.objectives import divergence, likelihood, rounds
from markov_spec.objectives.divergence import e2e_tv, forward_kl, jsd, lk_alpha, lk_lambda, reverse_kl, top_m_kl, tv
from markov_spec.objectives.inputs import Common
from markov_spec.objectives.likelihood import auf, chain, cross_entropy, d_pace, dflash_decay
from markov_spec.objectives.masks import block_visibility, label_mask, supervised_starts
from markov_spec.objectives.meter import AcceptanceFigures, AcceptanceMeter
from markov_spec.objectives.result import REDUCTIONS, Objective, ObjectiveResult, Registry
from markov_spec.objectives.rounds import edr
from markov_spec.objectives.sampling import SampledStarts, inclusion_probabilities, replay_starts, sample_starts
from markov_spec.objectives.scores import CellScores, score_cells
from markov_spec.objectives.vocabulary import fold_vocabulary
from markov_spec.objectives.weights import EDRWeights, edr_weights

__all__ = [
    "OBJECTIVES",
    "REDUCTIONS",
    "AcceptanceFigures",
    "AcceptanceMeter",
    "CellScores",
    "Common",
    "EDRWeights",
    "Objective",
    "ObjectiveResult",
    "SampledStarts",
    "auf",
    "block_visibility",
    "chain",
    "cross_entropy",
    "d_pace",
    "dflash_decay",
    "e2e_tv",
    "edr",
    "edr_weights",
    "fold_vocabulary",
    "forward_kl",
    "inclusion_probabilities",
    "jsd",
    "label_mask",
    "lk_alpha",
    "lk_lambda",
    "replay_starts",
    "reverse_kl",
    "sample_starts",
    "score_cells",
    "supervised_starts",
    "top_m_kl",
    "tv",
]

OBJECTIVES: dict[str, Objective] = Registry(
    (entry.name, entry) for entry in (*rounds.ENTRIES, *likelihood.ENTRIES, *divergence.ENTRIES)
)
