"""Reduce full distributions, where they are made, to what the record keeps.

Per position and drafter there remain the log-probability and rank of the realised token, and on request scalars of the
full distributions and the likeliest tokens. ``decode`` is the distribution that tokens are drawn from, ``raw`` the
plain softmax. Scalars are computed in float64, a few rows at a time, each divided by its own sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from markov_spec.acceptance import scalars
from markov_spec.acceptance.transport import transport_bounds, without_replacement
from markov_spec.arrays import ABSENT, Array
from markov_spec.sources.drafters import BlockDrafter, Drafter, Lookup, block_proposals, check_causal
from markov_spec.sources.models import CausalLM
from markov_spec.sources.sampling import Sampling, argmax, log_probs, rank, top_list
from markov_spec.store.schema import MULTI_DRAFTS

Columns = dict[str, dict[str, Array]]
CHUNK_BYTES = 64 << 20
ROW_ARRAYS = 32  # of float64 over the vocabulary that the reduction of a chunk holds at a time


@dataclass(frozen=True)
class Kept:
    """What the record keeps beside the law.

    List lengths (0: no lists), whether overlap and divergences of the plain softmax, and whether every scalar.
    """

    target_top: int = 0
    drafter_top: int = 0
    divergence: bool = False
    scalars: bool = False


@dataclass(frozen=True, eq=False)
class Scored:
    """The target's distributions along one rollout, ``(T, V)``, while its drafters are scored."""

    sequence: list[int]
    first: int
    sampling: Sampling
    raw: Tensor
    decode: Tensor
    hidden: Sequence[Tensor]
    stop_ids: Sequence[int]

    @property
    def tokens(self) -> Tensor:
        """The rollout's own tokens, (T,)."""
        return torch.tensor(self.sequence[self.first :], device=self.raw.device)

    def hidden_of(self, drafter: BlockDrafter) -> Tensor | None:
        """The hidden states that a block drafter asks for, side by side, ``(L, H * layers)``."""
        layers = drafter.hidden_layers
        for layer in layers:
            if not -len(self.hidden) <= layer < len(self.hidden):
                raise ValueError(f"block drafter: hidden layer: found {layer}; allowed: -1 to {len(self.hidden) - 1}")
        return torch.cat([self.hidden[layer] for layer in layers], -1) if layers else None

    def apart_from(self, log_p: Sequence[float]) -> float:
        """Largest distance (nats) of the scored from the generated log-probabilities; at temperature 0 it is 0."""
        if self.sampling.greedy:
            return 0.0
        scored = self.decode.gather(-1, self.tokens[:, None])[:, 0].cpu().numpy()
        return float(np.abs(scored - np.asarray(log_p)).max())


def score_target(
    target: CausalLM, prompt: Sequence[int], tokens: Sequence[int], sampling: Sampling, *, hidden: bool
) -> Scored:
    """Read the target's distributions along one rollout, and its hidden states if some drafter reads them."""
    sequence = [*prompt, *tokens]
    logits, states = target.scores(sequence, len(prompt), hidden=hidden)
    raw = log_probs(logits, Sampling())
    stop_ids = [v for v in target.stop_ids if v < raw.shape[-1]]  # one beyond the vocabulary never occurs
    return Scored(sequence, len(prompt), sampling, raw, _decoded(raw, sampling), states, stop_ids)


def _decoded(raw: Tensor, sampling: Sampling) -> Tensor:
    return raw if sampling.plain else log_probs(raw, sampling)


@dataclass(eq=False)
class Pile:
    """Columns of one drafter or of the target, rollout after rollout."""

    parts: dict[str, dict[str, list[Array]]] = field(default_factory=dict)

    def add(self, columns: Columns) -> None:
        """Append one rollout's columns."""
        for part, content in columns.items():
            for name, values in content.items():
                self.parts.setdefault(part, {}).setdefault(name, []).append(values)

    def stacked(self) -> Columns:
        """Concatenate the rollouts' rows."""
        return {
            part: {name: np.concatenate(rows) for name, rows in content.items()} for part, content in self.parts.items()
        }


def check_blocks(drafters: Mapping[str, Drafter], scored: Scored) -> None:
    """Refuse block drafters that read what is not known when they draft; see `check_causal`."""
    sequence = torch.tensor(scored.sequence, device=scored.raw.device)
    for name, drafter in drafters.items():
        if not isinstance(drafter, CausalLM | Lookup):
            with named(name):
                check_causal(drafter, sequence, scored.first, scored.hidden_of(drafter), scored.raw.shape[-1])


@contextmanager
def named(name: str) -> Iterator[None]:
    """Put the drafter's name before what is wrong with it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"drafter {name!r}: {error}") from error


def _chunks(count: int, vocab_size: int) -> Iterator[slice]:
    """Cut rows into chunks whose reduction takes at most `CHUNK_BYTES` beside what is there, a row at least."""
    step = max(1, CHUNK_BYTES // (8 * ROW_ARRAYS * vocab_size))
    return (slice(begin, min(begin + step, count)) for begin in range(0, count, step))


def _normalised(rows: Tensor) -> Tensor:
    """Log-probabilities in float64, their own sum taken out: in float32 it is 1 to about 1e-5 only."""
    rows = rows.double()
    return rows - rows.logsumexp(-1, keepdim=True)


def target_columns(scored: Scored, kept: Kept) -> Columns:
    """The target's columns along one rollout, a row for each position.

    Entropy and varentropy (nats) of both distributions, on request the two largest log-probabilities that it decodes
    with, and the likeliest tokens of the plain softmax.
    """
    pile = Pile()
    for rows in _chunks(*scored.raw.shape):
        values: dict[str, Array] = {}
        for prefix, log_p in (("", scored.decode[rows]), ("raw_", scored.raw[rows])):
            log_p = _normalised(log_p)
            values[f"{prefix}entropy"] = _numpy(scalars.entropy(log_p, log=True))
            values[f"{prefix}varentropy"] = _numpy(scalars.varentropy(log_p, log=True))
        if kept.scalars:
            _, best = top_list(scored.decode[rows], 2)
            second = best[:, 1] if best.shape[-1] > 1 else best[:, 0] - torch.inf
            values |= {"top_log_p": _numpy(best[:, 0]), "second_log_p": _numpy(second)}
        pile.add({"divergence": values})
    columns = pile.stacked()
    if kept.target_top:
        columns["lists"] = _lists(scored.raw, kept.target_top, "log_p")
    return columns


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
        logits, _ = drafter.scores(scored.sequence, scored.first, hidden=False)
        return _reduce(logits, scored, kept, drafting, 0)
    return _block_columns(drafter, scored, kept, drafting)


def _block_columns(drafter: BlockDrafter, scored: Scored, kept: Kept, drafting: Sampling) -> Columns:
    hidden, vocab_size = scored.hidden_of(drafter), scored.raw.shape[-1]
    sequence = torch.tensor(scored.sequence, device=scored.raw.device)
    length = len(sequence) - scored.first
    filled: Columns = {}
    for rows, k, logits in block_proposals(drafter, sequence, scored.first, hidden, vocab_size):
        for part, content in _reduce(logits, scored, kept, drafting, rows.start + k).items():
            for name, values in content.items():
                shape = (length, drafter.depth, *values.shape[1:])
                column = filled.setdefault(part, {}).setdefault(name, np.full(shape, _fill(values), values.dtype))
                column[rows, k] = values
    return filled


def _reduce(logits: Tensor, scored: Scored, kept: Kept, drafting: Sampling, first: int) -> Columns:
    """Reduce the rows of a drafter's logits ``(n, V)`` that propose the tokens at ``first..first+n-1``."""
    at = slice(first, first + len(logits))
    raw = log_probs(logits, Sampling())
    decode = _decoded(raw, drafting)
    tokens = scored.tokens[at]
    possible = raw.gather(-1, tokens[:, None])[:, 0] > -torch.inf
    columns = {
        "law": {
            "log_q": _numpy(decode.gather(-1, tokens[:, None])[:, 0]),
            "rank": _numpy(torch.where(possible, rank(raw, tokens), ABSENT)),
        }
    }
    pile = Pile()
    for rows in _chunks(*logits.shape) if kept.divergence or kept.scalars else ():
        there = slice(first + rows.start, first + rows.stop)
        log_p, log_q = _normalised(scored.decode[there]), _normalised(decode[rows])
        pile.add(_raw_divergences(_normalised(scored.raw[there]), _normalised(raw[rows])))
        pile.add({"divergence": {"overlap": _numpy(scalars.overlap(log_p.exp(), log_q.exp()))}})
        if kept.scalars:
            pile.add(_scalars(log_p, log_q, tokens[rows], scored.stop_ids))
            pile.add({"relaxed": _judged(scored.decode[there], argmax(raw[rows]))})
    columns |= pile.stacked()
    if kept.drafter_top:
        columns["lists"] = _lists(raw, kept.drafter_top, "log_q")
    return columns


def _raw_divergences(log_p: Tensor, log_q: Tensor) -> Columns:
    values = {
        "raw_kl_pq": scalars.kl(log_p, log_q, log=True),
        "raw_kl_qp": scalars.kl(log_q, log_p, log=True),
        "raw_entropy": scalars.entropy(log_q, log=True),
    }
    return {"divergence": {name: _numpy(column) for name, column in values.items()}}


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
        part: {name: _numpy(values) for name, values in content.items()}
        for part, content in (("divergence", spread), ("multi", multi))
    }


def _judged(decode: Tensor, drafts: Tensor) -> dict[str, Array]:
    """What the target thinks of one draft for each of its rows ``(n, V)``."""
    log_p = decode.gather(-1, drafts[:, None])[:, 0]
    ranked = torch.where(log_p > -torch.inf, rank(decode, drafts), ABSENT)
    return {"draft_log_p": _numpy(log_p), "draft_rank": _numpy(ranked)}


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
        ids = torch.tensor(np.maximum(proposed, 0), dtype=torch.int64, device=scored.decode.device)
        rows = torch.tensor(np.minimum(at, length - 1), device=ids.device)
        overlap = _numpy(scored.decode[rows, ids].exp())
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
    for cells in _chunks(rows.numel(), scored.raw.shape[-1]):
        drafts, given = ids.ravel()[cells], some.ravel()[cells]
        decode = scored.decode[rows.ravel()[cells]]
        p = _normalised(decode).exp()
        q = torch.zeros_like(p).scatter_(-1, drafts[:, None], given.double()[:, None])
        cost = _numpy(scalars.stop_aware_cost(p, q, scored.stop_ids))
        judged, none = _judged(decode, drafts), ~given.cpu().numpy()
        judged["draft_log_p"][none], judged["draft_rank"][none] = -np.inf, ABSENT
        pile.add({"relaxed": {"cost": cost, **judged}})
    columns = {name: values.reshape(rows.shape) for name, values in pile.stacked()["relaxed"].items()}
    return columns.pop("cost"), columns


def _lists(raw: Tensor, count: int, name: str) -> dict[str, Array]:
    ids, values = top_list(raw, count)
    tail = (1 - values.double().exp().sum(-1)).clamp(0, 1)
    return {"ids": _numpy(ids), name: _numpy(values), "tail_mass": _numpy(tail)}


def _fill(values: Array) -> float | int:
    return np.nan if values.dtype.kind == "f" else ABSENT if values.ndim == 1 else -1


def _numpy(values: Tensor) -> Array:
    """Move to the host in the types of the store."""
    return (values.float() if values.is_floating_point() else values.int()).cpu().numpy()
