"""What a first line says of sampling: a misspelt setting is refused, and one that no check knows is told."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from markov_spec.sources.exchange.faults import Log, shown
from markov_spec.sources.exchange.lines import Line

_NEUTRAL: Mapping[str, float] = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}
KNOWN = (*_NEUTRAL, "order")
_FILTERS, _JOINT = ("top_k", "top_p", "min_p"), "joint"
_LIKE = 0.5  # least similarity of a name that is proposed for another

# What transformers, vLLM, SGLang and llama.cpp may do to logits besides, by their names for it.
ENGINE = frozenset(
    """
    allowed_token_ids bad_words bad_words_ids begin_suppress_tokens diversity_penalty dry_allowed_length dry_base
    dry_multiplier dry_penalty_last_n dynatemp_exponent dynatemp_range encoder_no_repeat_ngram_size
    encoder_repetition_penalty epsilon_cutoff eta_cutoff exponential_decay_length_penalty forced_bos_token_id
    forced_eos_token_id frequency_penalty grammar guidance_scale ignore_eos json_schema logit_bias min_length
    min_new_tokens min_tokens mirostat mirostat_eta mirostat_tau no_repeat_ngram_size penalty_alpha presence_penalty
    regex repeat_last_n repeat_penalty repetition_penalty sequence_bias structured_outputs suppress_tokens tfs_z top_a
    top_h top_n_sigma typ_p typical_p watermarking_config xtc_probability xtc_threshold
    """.split()
)


def check_sampling(line: Line, sampling: Mapping[str, Any], log: Log) -> None:
    """Judge the names in ``sampling``, whose known values were checked; kept is everything.

    Raises
    ------
    LineError
        If ``order`` has an unknown name, one twice, or lacks a setting that is set; if strict, on an unknown setting.
    """
    for name, value in sampling.items():
        if name in ENGINE:
            if value is not None:
                log.note(f"{line.file}: sampling has {name} {shown(value)}: no check knows it, so none tests it")
        elif name not in KNOWN:
            near = difflib.get_close_matches(name.lower(), [*KNOWN, *sorted(ENGINE)], 1, _LIKE)
            nearest = "".join(f"; nearest: {found}" for found in near)
            if log.strict:
                raise line.error(
                    f"sampling.{name}",
                    f"found an unknown setting; allowed: {', '.join(KNOWN)}, or an engine's own (repetition_penalty, "
                    f"...){nearest}",
                )
            log.note(f"{line.file}: sampling has the unknown setting {name!r}, kept though no check knows it{nearest}")
    if sampling.get("order") is not None:
        _check_order(line, sampling["order"], sampling)


def _check_order(line: Line, order: Sequence[str], sampling: Mapping[str, Any]) -> None:
    own = [name for name, value in sampling.items() if name in ENGINE and value is not None]
    allowed = f"{', '.join(_NEUTRAL)}, each once, or {_JOINT} for the last three"
    told = f"found {', '.join(map(shown, order)) or 'nothing'}; allowed: {allowed}{''.join(f', {n}' for n in own)}"
    named = [name for step in order for name in (_FILTERS if step == _JOINT else (step,))]
    if not set(named) <= {*_NEUTRAL, *own} or len(set(named)) < len(named):
        wrong = [name for name in named if name not in (*_NEUTRAL, *own)]
        near = difflib.get_close_matches(wrong[0].lower(), [*_NEUTRAL, _JOINT, *own], 1, _LIKE) if wrong else []
        raise line.error("sampling.order", told + "".join(f"; nearest to {wrong[0]!r}: {found}" for found in near))
    for name, neutral in _NEUTRAL.items():
        if sampling.get(name) not in (None, neutral) and name not in named:
            raise line.error("sampling.order", f"{told}; {name}, which is set, is one of them")
