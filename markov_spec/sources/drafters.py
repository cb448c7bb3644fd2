"""Drafters to record: their specs, and what each would draft from every start of a rollout.

Each gives ``proposals``: for depth after depth, the starts at which it drafts and the distribution it drafts from. An
autoregressive drafter's distribution depends on the position only, so it gives a single depth.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from markov_spec.arrays import Array, RequestError
from markov_spec.sources.models import CausalLM, load_hf, round_weights, skip_layers
from markov_spec.sources.rows import Rows
from markov_spec.sources.vocabulary import FORMS as MAPS
from markov_spec.sources.vocabulary import IDENTITY, DraftVocabulary

FORMS = {
    "hf": r".+",
    "skip": r"\d+(,\d+)*",
    "round": r"\d+",
    "ngram": r"[1-9]\d*(,[1-9]\d*)?",
    "py": r"[\w.]+:\w+",
}
SPECS = "hf:PATH, skip:10,14,18, round:5, ngram:3 or ngram:3,10, py:module:object"
OPTIONS = rf"|d2t=({'|'.join(MAPS)})|pad=\d+"
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
    vocabulary : DraftVocabulary, optional
        Which of the target's ids its ``V`` columns stand for; without it, they are the target's.
    """

    depth: int
    hidden_layers: Sequence[int]

    def log_probs(self, tokens: Tensor, hidden: Tensor | None, starts: Tensor) -> Tensor:
        """Log-probabilities of the blocks begun at each start, at temperature 1, in any float type.

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
            Rows whose probabilities sum to 1 within 1 %; they are divided by their sum in float64. Depths past the end
            (``start+k > L``) are kept in lists, for draft trees: give NaN there, as any row that is no distribution,
            where a depth reads tokens that are not there.
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
    depth: int = 10

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


def check_spec(spec: str, *, target: bool = False) -> tuple[str, str]:
    """Split a spec into its kind and the rest, and refuse what no model could make valid.

    Parameters
    ----------
    spec : str
    target : bool
        Whether it names a target, which only ``hf:PATH`` does.

    Returns
    -------
    kind, rest : str

    Raises
    ------
    RequestError
        Giving the allowed forms.
    """
    kind, _, rest = spec.partition(":")
    form = FORMS.get(kind)
    if form is None or not re.fullmatch(form, rest) or (target and (kind != "hf" or "?" in rest)):
        role, allowed = ("target", "hf:PATH, a model folder or GGUF file on disk") if target else ("drafter", SPECS)
        raise RequestError(f"{role}: found {spec!r}; allowed: {allowed}")
    if kind == "hf" and not re.fullmatch(OPTIONS, rest.partition("?")[2]):
        raise RequestError(f"drafter: found {spec!r}; allowed: hf:PATH, hf:PATH?d2t={'|'.join(MAPS)}, hf:PATH?pad=N")
    return kind, rest


def parse_drafter(spec: str, target: CausalLM) -> Drafter:
    """Make the drafter of a spec.

    Parameters
    ----------
    spec : str
        ``hf:PATH`` (a model; ``hf:PATH?d2t=offsets`` or ``?d2t=absolute``: its head is of the part of the target's
        vocabulary that the tensor ``d2t`` of its checkpoint tells; ``hf:PATH?pad=128``: the two vocabularies differ by
        up to 128 columns of padding), ``skip:10,14,18`` (the target without these layers), ``round:5`` (its linear
        weights rounded to 5 bits), ``ngram:3`` or ``ngram:3,10`` (prompt lookup of up to 3 tokens, proposing up to 10)
        or ``py:module:object`` (a `BlockDrafter`, or a callable that makes one from the target; the working directory
        is searched too).
    target : CausalLM

    Returns
    -------
    CausalLM, Lookup or BlockDrafter

    Raises
    ------
    RequestError
        If the spec is not understood, or names what is not there.
    """
    kind, rest = check_spec(spec)
    if kind == "hf":
        path, _, option = rest.partition("?")
        name, _, value = option.partition("=")
        d2t, pad = (value, 0) if name == "d2t" else (None, int(value or 0))
        return load_hf(path, target=target, d2t=d2t, pad=pad)
    if kind == "py":
        module, name = rest.split(":")
        return _make_block(module, name, target)
    numbers = [int(number) for number in rest.split(",")]
    if kind == "skip":
        return skip_layers(target, numbers)
    if kind == "round":
        return round_weights(target, numbers[0])
    return Lookup(*numbers)


def find_object(module: str, name: str) -> Any:
    """Import what a ``py:module:object`` spec names; the working directory is searched too."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise RequestError(f"drafter: py:{module}:{name}: {error}") from error


def _make_block(module: str, name: str, target: CausalLM) -> BlockDrafter:
    found = find_object(module, name)
    if callable(found) and (isinstance(found, type) or not isinstance(found, BlockDrafter)):
        try:
            found = found(target)
        except Exception as error:
            raise RequestError(f"drafter: py:{module}:{name}: called with the target: {error!r}") from error
    if not isinstance(found, BlockDrafter):
        lacking = [part for part in ("depth", "hidden_layers", "log_probs") if not hasattr(found, part)]
        raise RequestError(f"drafter: py:{module}:{name}: {type(found).__name__} lacks {', '.join(lacking)}")
    return found


def _ask(drafter: BlockDrafter, tokens: Tensor, hidden: Tensor | None, starts: Tensor, width: int) -> Tensor:
    try:
        with torch.inference_mode():
            blocks = drafter.log_probs(tokens, hidden, starts).to(tokens.device)
    except Exception as error:
        raise ValueError(f"block drafter: log_probs raised {type(error).__name__}: {error}") from error
    wanted = (*starts.shape, drafter.depth, width)
    if tuple(blocks.shape) != wanted:
        raise ValueError(f"block drafter: log_probs gave shape {tuple(blocks.shape)}; allowed: {wanted}")
    return blocks


def vocabulary_of(drafter: Drafter) -> DraftVocabulary:
    """What the drafter says of its columns."""
    found: DraftVocabulary = getattr(drafter, "vocabulary", IDENTITY)
    return found


def width_of(drafter: Drafter, vocab_size: int) -> int:
    """Number of columns that the drafter's rows have to have, or have."""
    if isinstance(drafter, CausalLM):
        return drafter.vocab_size
    ids = vocabulary_of(drafter).ids
    return vocab_size if ids is None else int(ids.size)


@dataclass(frozen=True, eq=False)
class Proposal:
    """What depth ``k`` of some blocks is drawn from.

    Parameters
    ----------
    starts : ndarray of int64
        Counted from the rollout's first.
    column : int
        ``k - 1``.
    drafts : Rows
    off : float
        How far the log of a row's sum was from 0, at most.
    past : bool
        Whether depth ``k`` of these starts lies past the end of the rollout, or in it.
    """

    starts: Array
    column: int
    drafts: Rows
    off: float
    past: bool


def block_proposals(
    drafter: BlockDrafter, tokens: Tensor, first: int, hidden: Tensor | None, vocab_size: int, *, past: bool
) -> Iterator[Proposal]:
    """Ask a block drafter for its blocks at every start of one rollout.

    Parameters
    ----------
    drafter : BlockDrafter
    tokens : Tensor of int64, (L,)
        Prompt and rollout.
    first : int
        Prompt length: the first start.
    hidden : Tensor, (L, H), or None
    vocab_size : int
        The target's.
    past : bool
        Whether to give depths past the end, too.

    Yields
    ------
    Proposal
        For some starts at a time, depth after depth. Past the end a row that is no distribution, and what comes after
        it in its block, is left out.

    Raises
    ------
    ValueError
        If an answer has the wrong shape or, in the rollout, is not a distribution.
    """
    state = None if hidden is None else hidden[None]
    length, width, vocabulary = len(tokens) - first, width_of(drafter, vocab_size), vocabulary_of(drafter)
    step = max(1, CELL_BYTES // (drafter.depth * width * 4))
    for begin in range(0, length, step):
        starts = torch.arange(begin, min(begin + step, length), device=tokens.device)
        blocks = _ask(drafter, tokens[None], state, first + starts[None], width)
        going = torch.ones_like(starts, dtype=torch.bool)
        for k in range(drafter.depth):
            inside = min(len(starts), max(0, length - k - begin))
            if inside:
                drafts = _possible(*vocabulary.rising(blocks[0, :inside, k]))
                off = drafts.sums.abs().amax().item()
                if not off <= SUM_TOLERANCE:
                    raise ValueError(
                        f"block drafter: depth {k + 1} after {first + begin} tokens: log of the sum of probabilities: "
                        f"found {off:.3g}; allowed: 0 within {SUM_TOLERANCE}"
                    )
                yield Proposal(np.arange(begin, begin + inside), k, drafts, off, False)
            if past and inside < len(starts):
                off_by = _off(blocks[0, inside:, k])
                going[inside:] &= off_by <= SUM_TOLERANCE
                some = going[inside:]
                if some.any():
                    drafts = _possible(*vocabulary.rising(blocks[0, inside:, k][some]))
                    own = begin + inside + some.nonzero()[:, 0].cpu().numpy()
                    yield Proposal(own, k, drafts, off_by[some].amax().item(), True)


def _off(rows: Tensor) -> Tensor:
    """How far the log of each row's sum is from 0; NaN if it has none."""
    return Rows(rows.float()).sums[:, 0].abs()


def _possible(rows: Tensor, ids: Tensor | None) -> Rows:
    """Leave out the columns that are impossible in all rows, if these are most: a drafter may know few tokens."""
    some = rows.amax(0) != -torch.inf
    if not 0 < 2 * int(some.sum()) <= len(some):
        return Rows(rows.float(), ids)
    kept = some.nonzero()[:, 0]
    return Rows(rows[:, kept].float(), kept if ids is None else ids[kept])


def check_causal(drafter: BlockDrafter, tokens: Tensor, first: int, hidden: Tensor | None, vocab_size: int) -> None:
    """Refuse a block drafter that reads what is not known when it drafts.

    Exchanges the hidden states from a start on, and the tokens from each depth on, at the first, middle and last start
    of a rollout: no depth may change that must not read them. The rollout is lengthened by ``K`` tokens, so that there
    is something to exchange behind every depth; and each start is asked for alone and among others.

    Parameters
    ----------
    drafter : BlockDrafter
    tokens : Tensor of int64, (L,)
    first : int
        Prompt length: the first start.
    hidden : Tensor, (L, H), or None
    vocab_size : int

    Raises
    ------
    ValueError
        Naming the depth and the start.
    """
    depth, end, width = drafter.depth, len(tokens), width_of(drafter, vocab_size)
    longer = torch.cat([tokens, tokens[:1].expand(depth)])
    state = None if hidden is None else torch.cat([hidden, hidden[:1].expand(depth, -1)])
    starts = torch.tensor(sorted({first, (first + end) // 2, end - 1}), device=tokens.device)
    given = None if state is None else state[None]
    together = _ask(drafter, longer[None], given, starts[None], width)[0]
    if torch.isnan(together).any():
        raise ValueError("block drafter: log_probs gave NaN; allowed: log-probabilities, -inf for 0")
    places = torch.arange(len(longer), device=tokens.device)
    for start, block in zip(starts.tolist(), together, strict=True):
        later = places >= start + torch.arange(depth, device=tokens.device)[:, None]
        exchanged = torch.where(later, (longer + 1) % vocab_size, longer)
        other = None
        if state is not None:
            unknown = (places >= start)[:, None]
            other = torch.where(unknown, state.flip(-1) + 1, state).expand(depth, -1, -1)
        alone = torch.full((depth, 1), start, device=tokens.device)
        seen = _ask(drafter, exchanged, other, alone, width)[:, 0]
        for k in range(depth):
            if not torch.allclose(seen[k:, k].float(), block[k].float(), rtol=1e-3, atol=1e-3):
                raise ValueError(
                    f"block drafter: depth {k + 1} of the block begun after {start} tokens changes with tokens from "
                    f"{start + k} on, with hidden states from {start} on, or with the other starts asked for; it may "
                    "read only what comes before them"
                )
