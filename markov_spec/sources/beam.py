"""Candidates for draft trees of an autoregressive drafter: a beam over its own continuations, from chosen starts.

At depth ``k`` the beam holds the ``W`` paths of largest product of probabilities among the children of the paths that
it held at depth ``k-1``; of equal products the one of lexicographically smaller ranks. A path that ends in a stop token
has no children. The best tree of ``n`` nodes has at most ``n`` in a depth: a beam of ``W >= n`` holds it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from markov_spec.arrays import Array, RequestError
from markov_spec.sources.models import CausalLM
from markov_spec.sources.rows import Rows
from markov_spec.store.schema import NO_TOKEN


@dataclass(frozen=True)
class Candidates:
    """Depth ``D`` and width ``W`` of the beams, and how many starts lie from one to the next; all 1 or more."""

    depth: int
    width: int
    every: int = 1

    def __post_init__(self) -> None:
        for name in ("depth", "width", "every"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise RequestError(f"candidates: {name}: found {value!r}; allowed: an integer, 1 or more")


@dataclass(frozen=True)
class _Path:
    """A path of the beam: its ranks among its parents' children, its value, and its last token."""

    value: float  # minus the log of the product, so that the best sorts first
    ranks: tuple[int, ...]
    parent: int
    token: int
    log_q: float


@torch.inference_mode()
def beams(
    drafter: CausalLM, sequence: Sequence[int], first: int, candidates: Candidates, stop_ids: Sequence[int]
) -> dict[str, Array]:
    """Search the beams of one rollout.

    Parameters
    ----------
    drafter : CausalLM
    sequence : sequence of int, (L,)
        Prompt and rollout.
    first : int
        Prompt length.
    candidates : Candidates
    stop_ids : sequence of int

    Returns
    -------
    dict of str to ndarray
        ``token``, ``parent`` and ``log_q``, each ``(L - first, D, W)``: see part ``beam`` of the store. Nothing at the
        starts that were not chosen.

    Notes
    -----
    A start takes ``D`` passes of ``W`` tokens with the context's keys and values copied ``W`` times.
    """
    shape = (len(sequence) - first, candidates.depth, candidates.width)
    columns = {
        "token": np.full(shape, NO_TOKEN, dtype=np.int32),
        "parent": np.full(shape, NO_TOKEN, dtype=np.int32),
        "log_q": np.full(shape, -np.inf, dtype=np.float32),
    }
    context, read = DynamicCache(config=drafter.model.config), 0
    for start in range(0, shape[0], candidates.every):
        log_q = _step(drafter, [list(sequence[read : first + start])], read, context)
        read = first + start
        for k, layer in enumerate(_layers(drafter, log_q, context, read, candidates, stop_ids)):
            for w, path in enumerate(layer):
                columns["token"][start, k, w] = path.token
                columns["parent"][start, k, w] = path.parent
                columns["log_q"][start, k, w] = path.log_q
    return columns


def _step(drafter: CausalLM, tokens: list[list[int]], read: int, cache: Any) -> Rows:
    """Let the drafter read on; what it says next, a row for each sequence."""
    ids = torch.tensor(tokens, device=drafter.device)
    place = torch.arange(read, read + ids.shape[1], device=drafter.device)[None].expand_as(ids)
    out = drafter.model(input_ids=ids, position_ids=place, cache=cache, use_cache=True, logits_to_keep=1)
    logits, columns = drafter.vocabulary.rising(out.logits[:, -1])
    return Rows(logits.float(), columns)


def _layers(
    drafter: CausalLM, log_q: Rows, context: Any, read: int, candidates: Candidates, stop_ids: Sequence[int]
) -> list[list[_Path]]:
    """The paths that the beam holds at each depth, best first, begun after ``read`` tokens."""
    layers = [_children([(_Path(0.0, (), NO_TOKEN, NO_TOKEN, 0.0), NO_TOKEN)], log_q, candidates.width)]
    cache: Any = None
    rows: dict[int, int] = {}  # of the cache, by place in the layer before
    for k in range(1, candidates.depth):
        going = [(path, w) for w, path in enumerate(layers[-1]) if path.token not in stop_ids]
        if not going:
            break
        if cache is None:
            cache = copy.deepcopy(context)
            cache.batch_repeat_interleave(len(going))
        else:
            cache.batch_select_indices(torch.tensor([rows[path.parent] for path, _ in going], device=drafter.device))
        rows = {w: row for row, (_, w) in enumerate(going)}
        log_q = _step(drafter, [[path.token] for path, _ in going], read + k - 1, cache)
        layers.append(_children(going, log_q, candidates.width))
    return layers


def _children(parents: list[tuple[_Path, int]], log_q: Rows, width: int) -> list[_Path]:
    """The best paths that go on from ``parents``, which have their places in the layer before, by rows of ``log_q``."""
    lists = log_q.lists(width, "log_q")
    found = [
        _Path(parent.value - float(value), (*parent.ranks, rank), place, int(token), float(value))
        for (parent, place), tokens, values in zip(parents, lists["ids"], lists["log_q"], strict=True)
        for rank, (token, value) in enumerate(zip(tokens, values, strict=True))
        if token != NO_TOKEN
    ]
    return sorted(found, key=lambda path: (path.value, path.ranks))[:width]
