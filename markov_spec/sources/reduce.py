"""Reduce full distributions, where they are made, to what the record keeps.

Per position and drafter there remain the log-probability and rank of the realised token, and on request scalars of the
full distributions and the likeliest tokens. ``decode`` is the distribution that tokens are drawn from, ``raw`` the
plain softmax. Scalars are computed in float64, a few rows at a time, each divided by its own sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from markov_spec.acceptance import scalars
from markov_spec.acceptance.transport import transport_bounds, without_replacement
from markov_spec.arrays import ABSENT, Array
from markov_spec.sources.beam import Candidates, beams
from markov_spec.sources.drafters import BlockDrafter, Drafter, Lookup, block_proposals, width_of
from markov_spec.sources.models import CausalLM
from markov_spec.sources.rows import Rows, chunked, host
from markov_spec.sources.sampling import Sampling, counted, top_list
from markov_spec.sources.score import Columns, Pile, Scored
from markov_spec.store.schema import MULTI_DRAFTS

NOTES, BEYOND, SUMS = "notes", "mass_beyond_tokenizer", "sums_apart"  # figures about a rollout, for the metadata
LOWEST = -1e300


@dataclass(frozen=True)
class Kept:
    """What the record keeps beside the law.

    List lengths (0: no lists), whether overlap and divergences of the plain softmax, whether every scalar, and beams.
    """

    target_top: int = 0
    drafter_top: int = 0
    divergence: bool = False
    scalars: bool = False
    candidates: Candidates | None = None


def target_columns(scored: Scored, kept: Kept) -> Columns:
    """The target's columns along one rollout, a row for each position.

    Entropy and varentropy (nats) of both distributions, on request the two largest log-probabilities that it decodes
    with, and the likeliest tokens of the plain softmax.
    """
    pile = Pile()
    for rows in scored.raw.chunks():
        raw = _spread(scored.raw.log(rows))
        values = raw if scored.decode is scored.raw else _spread(scored.decode.log(rows))
        values = values | {f"raw_{name}": column for name, column in raw.items()}
        if kept.scalars:
            _, best = top_list(scored.decode.log(rows), 2)
            second = best[:, 1] if best.shape[-1] > 1 else best[:, 0] - torch.inf
            values |= {"top_log_p": host(best[:, 0]), "second_log_p": host(second)}
        pile.add({"divergence": values})
    columns = pile.stacked()
    if kept.target_top:
        columns["lists"] = scored.raw.lists(min(kept.target_top, scored.vocab_size), "log_p")
    return columns


def _spread(log_p: Tensor) -> dict[str, Array]:
    return {
        "entropy": host(scalars.entropy(log_p, log=True)),
        "varentropy": host(scalars.varentropy(log_p, log=True)),
    }


def drafter_columns(drafter: Drafter, scored: Scored, kept: Kept, drafting: Sampling) -> Columns:
    """One drafter's columns along one rollout.

    Parameters
    ----------
    drafter : CausalLM, Lookup or BlockDrafter
    scored : Scored
    kept : Kept
    drafting : Sampling
        How drafts are drawn, and tested; lookup draws none.

    Returns
    -------
    dict of part -> column -> array
        With a row for each position: ``(T, ...)``, or ``(T, K, ...)`` for a block drafter or lookup.
    """
    if isinstance(drafter, Lookup):
        return _lookup_columns(drafter, scored, kept)
    if isinstance(drafter, CausalLM):
        logits, ids = drafter.vocabulary.rising(drafter.scores(scored.sequence, scored.first, hidden=False)[0])
        rows = Rows(logits.to(scored.tokens.device).float(), ids)
        columns = _reduce(rows, drafter.vocab_size, scored, kept, drafting, 0)
        if kept.candidates is not None:
            columns["beam"] = beams(drafter, scored.sequence, scored.first, kept.candidates, scored.stop_ids)
        return columns
    return _block_columns(drafter, scored, kept, drafting)


def _block_columns(drafter: BlockDrafter, scored: Scored, kept: Kept, drafting: Sampling) -> Columns:
    sequence = torch.tensor(scored.sequence, device=scored.tokens.device)
    length, width = len(scored.tokens), width_of(drafter, scored.vocab_size)
    hidden, filled = scored.hidden_of(drafter), Columns()
    notes = {SUMS: 0.0, BEYOND: 0.0}
    past = kept.drafter_top > 0
    for given in block_proposals(drafter, sequence, scored.first, hidden, scored.vocab_size, past=past):
        rows, k = given.starts, given.column
        if given.past:
            reduced = {"lists": given.drafts.lists(min(kept.drafter_top, width), "log_q")}
        else:
            reduced = _reduce(given.drafts, width, scored, kept, drafting, int(rows[0]) + k)
            notes[BEYOND] = max(notes[BEYOND], float(reduced.pop(NOTES)[BEYOND][0]))
        notes[SUMS] = max(notes[SUMS], given.off)
        for part, content in reduced.items():
            for name, values in content.items():
                shape = (length, drafter.depth, *values.shape[1:])
                column = filled.setdefault(part, {}).setdefault(name, np.full(shape, _fill(values), values.dtype))
                column[rows, k] = values
    return {**filled, NOTES: {name: np.array([value]) for name, value in notes.items()}}


def _reduce(raw: Rows, width: int, scored: Scored, kept: Kept, drafting: Sampling, first: int) -> Columns:
    """Reduce rows of a drafter of ``width`` columns that propose the tokens at ``first..first+n-1``."""
    decode = raw.decoded(drafting)
    plain = decode is raw and scored.decode is scored.raw
    tokens = scored.tokens[first : first + len(raw.logits)]
    columns = {"law": {"log_q": host(decode.of(tokens)), "rank": host(raw.ranks_of(tokens))}}
    pile = Pile()
    for rows in raw.chunks() if kept.divergence or kept.scalars else ():
        there = slice(first + rows.start, first + rows.stop)
        log_p, log_q = scored.raw.log(there, raw.ids), raw.log(rows)
        p, q = log_p.exp(), log_q.exp()
        outside = None
        if raw.ids is not None:
            outside = counted(scored.raw.logits[there] > -torch.inf) > counted(log_p > -torch.inf)
        pile.add(_raw_divergences(log_p, log_q, p, q, outside))
        if not plain:
            p, q = scored.decode.log(there, raw.ids).exp(), decode.log(rows).exp()
        pile.add({"divergence": {"overlap": host(scalars.overlap(p, q))}})
        if kept.scalars:
            log_q = decode.widened(rows, scored.vocab_size)
            log_p = scored.decode.widened(there, log_q.shape[-1])
            pile.add(_scalars(log_p, log_q, tokens[rows], scored.stop_ids))
            pile.add({"relaxed": _judged(scored.decode, there, raw.best(rows))})
    columns |= pile.stacked()
    if kept.drafter_top:
        columns["lists"] = raw.lists(min(kept.drafter_top, width), "log_q")
    columns[NOTES] = {BEYOND: np.array([decode.mass_from(scored.known)])}
    return columns


def _raw_divergences(log_p: Tensor, log_q: Tensor, p: Tensor, q: Tensor, outside: Tensor | None) -> Columns:
    """KL both ways and entropy of the drafter; ``outside``: rows where the target has tokens without a column.

    The formulas of ``acceptance.scalars``, in the sums that they share. Both are divided by their sums in float64 and
    the record holds float32, so that the series of `scalars.kl` near ``p = q`` is not needed.
    """
    finite_p, finite_q = log_p.clamp_min(LOWEST), log_q.clamp_min(LOWEST)  # 0 times it is 0
    ratio = finite_p - finite_q
    kl_pq, kl_qp = (p * ratio).sum(-1).clamp_min(0), -(q * ratio).sum(-1).clamp_max(0)
    for values, rows in ((kl_pq, outside), (kl_pq, _some_only(log_p, log_q)), (kl_qp, _some_only(log_q, log_p))):
        if rows is not None:
            values[rows] = torch.inf
    columns = {"raw_kl_pq": kl_pq, "raw_kl_qp": kl_qp, "raw_entropy": -(q * finite_q).sum(-1)}
    return {"divergence": {name: host(values) for name, values in columns.items()}}


def _some_only(log_p: Tensor, log_q: Tensor) -> Tensor | None:
    """Rows where the first has a token that the second has not; None if the second has all."""
    if bool(log_q.amin() > -torch.inf):
        return None
    return ((log_q == -torch.inf) & (log_p > -torch.inf)).any(-1)


def _scalars(log_p: Tensor, log_q: Tensor, tokens: Tensor, stop_ids: Sequence[int]) -> Columns:
    """Every scalar but the overlap of the distributions that are decoded with, ``(n, V)``."""
    spread = {
        "kl_pq": scalars.kl(log_p, log_q, log=True),
        "kl_qp": scalars.kl(log_q, log_p, log=True),
        "entropy": scalars.entropy(log_q, log=True),
        "varentropy": scalars.varentropy(log_q, log=True),
    }
    p, q = log_p.exp(), log_q.exp()
    spread["cost"] = scalars.stop_aware_cost(p, q, stop_ids)
    multi = {
        "coupling": scalars.coupling(p, q, tokens),
        "without_replacement_2": without_replacement(p, q, tokens, 2),
    }
    for m in MULTI_DRAFTS:
        multi |= {f"c_{m}": scalars.recursive_scale(p, q, m), f"rho_{m}": scalars.k_seq_scale(p, q, m)}
        _, multi[f"transport_{m}_low"], multi[f"transport_{m}_high"] = transport_bounds(p, q, tokens, m)
    return {
        part: {name: host(values) for name, values in content.items()}
        for part, content in (("divergence", spread), ("multi", multi))
    }


def _judged(decode: Rows, rows: slice | Tensor, drafts: Tensor) -> dict[str, Array]:
    """What the target thinks of one draft for each of some of its rows."""
    some = Rows(decode.logits[rows])
    return {"draft_log_p": host(some.of(drafts)), "draft_rank": host(some.ranks_of(drafts))}


def _lookup_columns(lookup: Lookup, scored: Scored, kept: Kept) -> Columns:
    length = len(scored.sequence) - scored.first
    proposed = np.full((length, lookup.depth), -1, dtype=np.int32)
    drafted = np.zeros(length, dtype=np.int32)
    for s in range(length):
        tokens = lookup.propose(scored.sequence[: scored.first + s], scored.stop_ids)
        drafted[s] = len(tokens)
        proposed[s, : len(tokens)] = tokens
    at = np.arange(length)[:, None] + np.arange(lookup.depth)
    realised = np.array(scored.sequence[scored.first :] + [-2] * lookup.depth)[at]
    hit = proposed == realised
    columns: Columns = {
        "law": {
            "log_q": np.where(hit, 0, -np.inf).astype(np.float32),
            "rank": np.where(hit, 1, ABSENT).astype(np.int32),
            "drafted": drafted,
        }
    }
    if kept.divergence or kept.scalars:
        ids = torch.tensor(np.maximum(proposed, 0), dtype=torch.int64, device=scored.tokens.device)
        rows = torch.tensor(np.minimum(at, length - 1), device=ids.device)
        overlap = host((scored.decode.logits[rows, ids] - scored.decode.sums[rows, 0]).exp())
        columns["divergence"] = {"overlap": np.where(proposed >= 0, overlap, 0).astype(np.float32)}
    if kept.scalars:
        cost, columns["relaxed"] = _lookup_scalars(scored, rows, ids, torch.tensor(proposed >= 0, device=ids.device))
        columns["divergence"]["cost"] = cost
    if kept.drafter_top:
        columns["lists"] = {
            "ids": proposed[..., None],
            "log_q": np.where(proposed >= 0, 0, -np.inf).astype(np.float32)[..., None],
        }
    return columns


def _lookup_scalars(scored: Scored, rows: Tensor, ids: Tensor, some: Tensor) -> tuple[Array, dict[str, Array]]:
    """Stop-aware cost, and what the target thinks, of drafts that are one token, or none; all ``(T, K)``."""
    pile = Pile()
    for cells in chunked(rows.numel(), scored.raw.logits):
        drafts, given, places = ids.ravel()[cells], some.ravel()[cells], rows.ravel()[cells]
        p = (scored.decode.logits[places] - scored.decode.sums[places]).exp()
        q = torch.zeros_like(p).scatter_(-1, drafts[:, None], given.double()[:, None])
        cost = host(scalars.stop_aware_cost(p, q, scored.stop_ids))
        judged, none = _judged(scored.decode, places, drafts), ~given.cpu().numpy()
        judged["draft_log_p"][none], judged["draft_rank"][none] = -np.inf, ABSENT
        pile.add({"relaxed": {"cost": cost, **judged}})
    columns = {name: values.reshape(rows.shape) for name, values in pile.stacked()["relaxed"].items()}
    return columns.pop("cost"), columns


def _fill(values: Array) -> float | int:
    return np.nan if values.dtype.kind == "f" else ABSENT if values.ndim == 1 else -1
