"""Drafters to record: their specs, and what each would draft from every start of a rollout.

Each gives ``proposals``: for depth after depth, the starts at which it drafts and the distribution it drafts from. An
autoregressive drafter's distribution depends on the position only, so it gives a single depth.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from markov_spec.sources.models import CausalLM, load_hf, round_weights, skip_layers

SPECS = "hf:PATH, skip:10,14,18, round:5, ngram:3 or ngram:3,10, py:module:object"
CELL_BYTES = 256 << 20
SUM_TOLERANCE = 0.01


@runtime_checkable
class BlockDrafter(Protocol):
    """A drafter whose whole block depends on where it starts.

    Attributes
    ----------
    depth : int
        Draft length ``K``.
    hidden_layers : sequence of int
        Which of the target's hidden states it reads (0: embeddings, -1: the last); may be empty.
    """

    depth: int
    hidden_layers: Sequence[int]

    def log_probs(self, tokens: Tensor, hidden: Tensor | None, starts: Tensor) -> Tensor:
        """Log-probabilities of the blocks begun at each start, at temperature 1.

        Parameters
        ----------
        tokens : Tensor of int64, (B, L)
            Prompt and rollout. Depth ``k`` may read ``tokens[:, : start+k-1]`` only.
        hidden : Tensor, (B, L, H * len(hidden_layers)), or None
            Row ``t`` is the target's state after reading token ``t``. Only rows strictly before the start may be read;
            a deployed drafter has the last of them, ``start-1``, at the first round only (the newest token is read by
            the target in the round to come).
        starts : Tensor of int64, (B, M)
            Index into ``tokens`` of the first token that the block proposes.

        Returns
        -------
        Tensor, (B, M, K, V)
        """


@dataclass(frozen=True, eq=False)
class Lookup:
    """Prompt lookup: propose what followed the earliest earlier occurrence of the longest repeated suffix.

    Parameters
    ----------
    ngram : int
        Longest suffix that is looked up; shorter ones follow, down to one token.
    depth : int
        Most tokens proposed. The proposal ends before a stop token, as ``transformers`` does it.
    """

    ngram: int
    depth: int

    def propose(self, sequence: Sequence[int], stop_ids: Sequence[int]) -> list[int]:
        """Tokens proposed after ``sequence``, possibly none.

        Parameters
        ----------
        sequence : sequence of int
        stop_ids : sequence of int

        Returns
        -------
        list of int

        Examples
        --------
        >>> Lookup(2, 3).propose([7, 8, 9, 5, 7, 8], stop_ids=[])
        [9, 5, 7]
        """
        tokens = np.asarray(sequence)
        for size in range(min(self.ngram, tokens.size - 1), 0, -1):
            windows = np.lib.stride_tricks.sliding_window_view(tokens[:-1], size)
            found = np.flatnonzero((windows == tokens[-size:]).all(1))
            if found.size:
                begin = int(found[0]) + size
                proposed: list[int] = tokens[begin : begin + self.depth].tolist()
                stops = [i for i, token in enumerate(proposed) if token in stop_ids]
                return proposed[: stops[0]] if stops else proposed
        return []


Drafter = CausalLM | Lookup | BlockDrafter


def parse_target(spec: str) -> CausalLM:
    """Load the target of a spec.

    Parameters
    ----------
    spec : str
        ``hf:PATH``.

    Returns
    -------
    CausalLM

    Raises
    ------
    ValueError
        If the spec is of another kind, or nothing is there.
    """
    kind, _, rest = spec.partition(":")
    if kind != "hf" or not rest:
        raise ValueError(f"target: found {spec!r}; allowed: hf:PATH, a model folder or GGUF file on disk")
    return load_hf(rest)


def parse_drafter(spec: str, target: CausalLM) -> Drafter:
    """Make the drafter of a spec.

    Parameters
    ----------
    spec : str
        ``hf:PATH`` (a model), ``skip:10,14,18`` (the target without these layers), ``round:5`` (its linear weights
        rounded to 5 bits), ``ngram:3`` or ``ngram:3,10`` (prompt lookup of up to 3 tokens, proposing up to 10) or
        ``py:module:object`` (a `BlockDrafter`, or a callable that makes one from the target; the working directory is
        searched too).
    target : CausalLM

    Returns
    -------
    CausalLM, Lookup or BlockDrafter

    Raises
    ------
    ValueError
        Saying which part of the spec was not understood, and the allowed forms.
    """
    kind, _, rest = spec.partition(":")
    try:
        if kind == "hf" and rest:
            return load_hf(rest)
        if kind == "skip":
            return skip_layers(target, [int(layer) for layer in rest.split(",")])
        if kind == "round":
            return round_weights(target, int(rest))
        if kind == "ngram":
            ngram, depth = (int(n) for n in (rest if "," in rest else f"{rest},10").split(","))
            if ngram > 0 and depth > 0:
                return Lookup(ngram, depth)
        module, _, name = rest.partition(":")
        if kind == "py" and module and name:
            return _import_drafter(module, name, target)
    except ValueError as error:
        if "invalid literal" not in str(error) and "unpack" not in str(error):
            raise
    raise ValueError(f"drafter: found {spec!r}; allowed: {SPECS}")


def _import_drafter(module: str, name: str, target: CausalLM) -> BlockDrafter:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"drafter: py:{module}:{name}: {error}") from error
    if isinstance(found, type) or not isinstance(found, BlockDrafter):
        if not callable(found):
            raise ValueError(f"drafter: py:{module}:{name}: neither a BlockDrafter nor a callable that makes one")
        try:
            found = found(target)
        except Exception as error:
            raise ValueError(f"drafter: py:{module}:{name}: called with the target: {error}") from error
    if not isinstance(found, BlockDrafter):
        raise ValueError(f"drafter: py:{module}:{name}: lacks depth, hidden_layers or log_probs")
    return found


def block_proposals(
    drafter: BlockDrafter, sequence: Sequence[int], first: int, hidden: Tensor | None
) -> Iterator[tuple[slice, int, Tensor]]:
    """Ask a block drafter for its blocks at every start of one rollout.

    Parameters
    ----------
    drafter : BlockDrafter
    sequence : sequence of int, (L,)
        Prompt and rollout.
    first : int
        Prompt length: the first start.
    hidden : Tensor, (L, H), or None

    Yields
    ------
    rows : slice
        Starts, counted from the rollout's first.
    depth : int
        Column ``k - 1``.
    logits : Tensor, (rows, V)
        What depth ``k`` of the blocks begun there is drawn from, for starts whose depth ``k`` lies in the rollout.

    Raises
    ------
    ValueError
        If the answer has the wrong shape or is not a distribution.
    """
    tokens = torch.tensor([list(sequence)], device=None if hidden is None else hidden.device)
    state = None if hidden is None else hidden[None]
    length = len(sequence) - first
    begin, step = 0, 1
    while begin < length:
        starts = torch.arange(begin, min(begin + step, length), device=tokens.device)
        with torch.inference_mode():
            blocks = drafter.log_probs(tokens, state, first + starts[None])
        wanted = (1, len(starts), drafter.depth)
        if blocks.shape[:-1] != wanted:
            raise ValueError(f"block drafter: log_probs gave shape {tuple(blocks.shape)}; allowed: {(*wanted, 'V')}")
        for k in range(min(drafter.depth, length - begin)):
            inside = min(len(starts), length - k - begin)
            rows = blocks[0, :inside, k]
            off = (rows.float().logsumexp(-1)).abs().amax().item()
            if not off <= SUM_TOLERANCE:
                raise ValueError(
                    f"block drafter: depth {k + 1} after {first + begin} tokens: log of the sum of probabilities: "
                    f"found {off:.3g}; allowed: 0 within {SUM_TOLERANCE}"
                )
            yield slice(begin, begin + inside), k, rows
        begin += len(starts)
        step = max(1, CELL_BYTES // (drafter.depth * blocks.shape[-1] * 4))


def check_causal(drafter: BlockDrafter, sequence: Sequence[int], first: int, hidden: Tensor | None) -> None:
    """Refuse a block drafter that reads what is not known when it drafts.

    Parameters
    ----------
    drafter : BlockDrafter
    sequence : sequence of int, (L,)
    first : int
    hidden : Tensor, (L, H), or None

    Raises
    ------
    ValueError
        If the first or the last depth changes when tokens or hidden states that it must not read are exchanged.
    """
    start = (first + len(sequence)) // 2
    starts = torch.tensor([[start]])
    tokens = torch.tensor([list(sequence)])
    state = None if hidden is None else hidden[None].clone()
    with torch.inference_mode():
        known = drafter.log_probs(tokens, state, starts)
        if state is not None:
            state[:, start:] = state[:, start:].flip(-1) + 1
        for k in (0, drafter.depth - 1):
            other = tokens.clone()
            other[:, start + k :] = other[:, :1] + (other[:, start + k :] == other[:, :1]).long()
            seen = drafter.log_probs(other, state, starts)
            if not torch.allclose(seen[0, 0, k], known[0, 0, k], rtol=1e-3, atol=1e-3):
                raise ValueError(
                    f"block drafter: depth {k + 1} of the block begun at {start} changes with tokens from "
                    f"{start + k} on, or with hidden states from {start} on; it may read tokens before {start + k} and "
                    f"hidden states before {start} only"
                )
