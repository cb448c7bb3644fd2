"""Reduce full distributions, where they are made, to what the record keeps.

Per position and drafter there remain the log-probability and rank of the realised token, and on request divergence
scalars and the likeliest tokens. ``decode`` is the distribution that tokens are drawn from, ``raw`` the plain softmax.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from markov_spec.arrays import ABSENT, Array
from markov_spec.sources.drafters import BlockDrafter, Drafter, Lookup, block_proposals, check_causal
from markov_spec.sources.models import CausalLM
from markov_spec.sources.sampling import Sampling, divergence, entropy, log_probs, rank, top_list

Columns = dict[str, dict[str, Array]]


@dataclass(frozen=True)
class Kept:
    """What the record keeps beside the law: list lengths (0: no lists) and whether divergence scalars."""

    target_top: int = 0
    drafter_top: int = 0
    divergence: bool = False


@dataclass(frozen=True, eq=False)
class Scored:
    """The target's distributions along one rollout, ``(T, V)``, while its drafters are scored."""

    sequence: list[int]
    first: int
    sampling: Sampling
    raw: Tensor
    decode: Tensor
    hidden: Sequence[Tensor]

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
    return Scored(sequence, len(prompt), sampling, raw, _decoded(raw, sampling), states)


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


def target_columns(scored: Scored, kept: Kept) -> Columns:
    """Entropy and varentropy (nats) of both distributions, and the likeliest tokens of the plain softmax."""
    values: dict[str, Array] = {}
    for prefix, rows in (("", scored.decode), ("raw_", scored.raw)):
        mean, variance = entropy(rows)
        values |= {f"{prefix}entropy": _numpy(mean), f"{prefix}varentropy": _numpy(variance)}
    columns = {"divergence": values}
    if kept.target_top:
        columns["lists"] = _lists(scored.raw, kept.target_top, "log_p")
    return columns


def drafter_columns(drafter: Drafter, scored: Scored, kept: Kept, stop_ids: Sequence[int]) -> Columns:
    """One drafter's columns along one rollout.

    Parameters
    ----------
    drafter : CausalLM, Lookup or BlockDrafter
    scored : Scored
    kept : Kept
    stop_ids : sequence of int

    Returns
    -------
    dict of part -> column -> array
        With a row for each position: ``(T, ...)``, or ``(T, K, ...)`` for a block drafter or lookup.
    """
    if isinstance(drafter, Lookup):
        return _lookup_columns(drafter, scored, kept, stop_ids)
    if isinstance(drafter, CausalLM):
        logits, _ = drafter.scores(scored.sequence, scored.first, hidden=False)
        return _reduce(logits, scored, kept, 0)
    return _block_columns(drafter, scored, kept)


def _block_columns(drafter: BlockDrafter, scored: Scored, kept: Kept) -> Columns:
    hidden, vocab_size = scored.hidden_of(drafter), scored.raw.shape[-1]
    sequence = torch.tensor(scored.sequence, device=scored.raw.device)
    length = len(sequence) - scored.first
    filled: Columns = {}
    for rows, k, logits in block_proposals(drafter, sequence, scored.first, hidden, vocab_size):
        for part, content in _reduce(logits, scored, kept, rows.start + k).items():
            for name, values in content.items():
                shape = (length, drafter.depth, *values.shape[1:])
                column = filled.setdefault(part, {}).setdefault(name, np.full(shape, _fill(values), values.dtype))
                column[rows, k] = values
    return filled


def _reduce(logits: Tensor, scored: Scored, kept: Kept, first: int) -> Columns:
    """Reduce the rows of a drafter's logits ``(n, V)`` that propose the tokens at ``first..first+n-1``."""
    at = slice(first, first + len(logits))
    raw = log_probs(logits, Sampling())
    decode = _decoded(raw, scored.sampling)
    tokens = scored.tokens[at]
    possible = raw.gather(-1, tokens[:, None])[:, 0] > -torch.inf
    columns = {
        "law": {
            "log_q": _numpy(decode.gather(-1, tokens[:, None])[:, 0]),
            "rank": _numpy(torch.where(possible, rank(raw, tokens), ABSENT).int()),
        }
    }
    if kept.divergence:
        columns["divergence"] = {
            "overlap": _numpy(torch.minimum(scored.decode[at].exp(), decode.exp()).sum(-1).clamp_max(1)),
            "raw_kl_pq": _numpy(divergence(scored.raw[at], raw)),
            "raw_kl_qp": _numpy(divergence(raw, scored.raw[at])),
            "raw_entropy": _numpy(entropy(raw)[0]),
        }
    if kept.drafter_top:
        columns["lists"] = _lists(raw, kept.drafter_top, "log_q")
    return columns


def _lookup_columns(lookup: Lookup, scored: Scored, kept: Kept, stop_ids: Sequence[int]) -> Columns:
    length = len(scored.sequence) - scored.first
    proposed = np.full((length, lookup.depth), -1, dtype=np.int32)
    drafted = np.zeros(length, dtype=np.int32)
    for s in range(length):
        tokens = lookup.propose(scored.sequence[: scored.first + s], stop_ids)
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
    if kept.divergence:
        ids = torch.tensor(np.maximum(proposed, 0), dtype=torch.int64, device=scored.decode.device)
        rows = torch.tensor(np.minimum(at, length - 1), device=ids.device)
        overlap = _numpy(scored.decode[rows, ids].exp())
        columns["divergence"] = {"overlap": np.where(proposed >= 0, overlap, 0).astype(np.float32)}
    if kept.drafter_top:
        columns["lists"] = {
            "ids": proposed[..., None],
            "log_q": np.where(proposed >= 0, 0, -np.inf).astype(np.float32)[..., None],
        }
    return columns


def _lists(raw: Tensor, count: int, name: str) -> dict[str, Array]:
    ids, values = top_list(raw, count)
    tail = (1 - values.double().exp().sum(-1)).clamp(0, 1)
    return {"ids": _numpy(ids.int()), name: _numpy(values), "tail_mass": _numpy(tail.float())}


def _fill(values: Array) -> float | int:
    return np.nan if values.dtype.kind == "f" else ABSENT if values.ndim == 1 else -1


def _numpy(values: Tensor) -> Array:
    return values.cpu().numpy()
