"""The arrays that every objective takes, checked; and which cells a mask leaves.

``draft_logits[b, m, k-1]`` is depth ``k`` of the block begun at start ``s`` of rollout ``b`` and predicts
``tokens[b, s+k-1]``, as ``target_logits[b, s+k-1]`` does. Without ``starts`` block ``m`` begins at ``s = m``. Cells
past a rollout's end, and blocks whose start is below 0, take no part whatever they hold.

Shapes and types are checked always; values only on the CPU and outside ``torch.compile``, since a look at a device's
values would make it wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, TypedDict

import torch
from torch import Tensor

from markov_spec.arrays import LOG_TOLERANCE, RequestError
from markov_spec.objectives._tiles import positions, read_cells
from markov_spec.objectives.checks import check_blocks, check_devices, check_float, check_integers, readable, refuse
from markov_spec.objectives.masks import label_mask
from markov_spec.objectives.result import COMMON, ObjectiveResult, name_of, refuse_unknown


class Common(TypedDict, total=False):
    """What every baseline takes by name.

    ``starts``
        Where the blocks begin, (B, M) integers, -1 for none; without them ``M = T`` and block ``m`` begins at ``m``.
    ``mask``, ``mask_frame``
        Which tokens are learned, (B, T) booleans, in the frame of `label_mask`; all of a rollout without.
    ``reduction``
        One of `REDUCTIONS`; ``"paper"``, the default, is what the objective's source does.
    ``temperature``
        Divides both models' logits.
    """

    starts: Tensor | None
    mask: Tensor | None
    mask_frame: Literal["label", "input"] | None
    reduction: str
    temperature: float


@dataclass(frozen=True)
class Cells:
    """Checked inputs: all that a formula needs, (B, M, K)."""

    draft: Tensor
    target: Tensor | None
    tokens: Tensor
    lengths: Tensor
    starts: Tensor | None
    temperature: float
    at: Tensor  # positions, clipped
    valid: Tensor

    def read(self, measures: str = "", *, hits: bool = False) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        """Give ``log q(x)``, the measures of `_tiles`, and whether ``x`` is the draft's likeliest token."""
        return read_cells(
            self.draft, self.target if measures else None, self.tokens, self.lengths, self.starts,
            temperature=self.temperature, measures=measures, hits=hits,
        )  # fmt: skip


def check_cells(
    draft_logits: Tensor, target_logits: Tensor | None, tokens: Tensor, lengths: Tensor, *,
    starts: Tensor | None = None, mask: Tensor | None = None, mask_frame: Literal["label", "input"] | None = None,
    temperature: float = 1.0,
) -> Cells:  # fmt: skip
    """Check the inputs of an objective and lay out its cells."""
    check_blocks(draft_logits)
    rows, _, _, vocabulary = draft_logits.shape
    if not vocabulary:
        raise ValueError(f"draft_logits: found shape {tuple(draft_logits.shape)}; allowed: (B, M, K, V) of V >= 1")
    tokens = check_integers(tokens, "tokens", 2, "(B, T)", rows)
    size = tokens.shape[1]
    if target_logits is not None:
        check_float(target_logits, "target_logits", 3, "(B, T, V)")
        if tuple(target_logits.shape) != (rows, size, vocabulary):
            allowed = (rows, size, vocabulary)
            raise ValueError(f"target_logits: found shape {tuple(target_logits.shape)}; allowed: {allowed}, (B, T, V)")
    lengths = check_lengths(lengths, rows, size)
    starts = check_starts(starts, tuple(draft_logits.shape[:2]), size)
    check_devices(
        draft_logits=draft_logits, target_logits=target_logits, tokens=tokens, lengths=lengths, starts=starts, mask=mask
    )
    check_temperature(temperature)
    if readable(tokens):
        inside = torch.arange(size) < lengths[:, None]
        wrong = inside & ((tokens < 0) | (tokens >= vocabulary))
        instead = "" if mask is None else "; true ids also where the mask leaves a token out"
        refuse(wrong, tokens, "tokens", f"token ids 0 to {vocabulary - 1}{instead}")
    at, valid = positions(starts, tuple(draft_logits.shape), lengths, size)
    if mask is None and mask_frame is not None:
        raise RequestError(f"mask_frame: found {mask_frame!r} without a mask; allowed: with one")
    if mask is not None:
        kept = label_mask(mask, mask_frame, (rows, size))
        valid = valid & torch.gather(kept, 1, at.flatten(1)).view(at.shape)
    tokens = tokens.clamp(0, vocabulary - 1)
    return Cells(draft_logits, target_logits, tokens, lengths, starts, float(temperature), at, valid)


def open_cells(
    draft_logits: Tensor, target_logits: Tensor | None, tokens: Tensor, lengths: Tensor, common: Common,
    function: Callable[..., ObjectiveResult],
) -> tuple[Cells, str]:  # fmt: skip
    """Check the inputs of a baseline; give its cells and its reduction."""
    if not common.keys() <= COMMON.keys():
        refuse_unknown(function, common)
    given = {name: value for name, value in common.items() if name != "reduction"}
    return check_cells(draft_logits, target_logits, tokens, lengths, **given), common.get("reduction", "paper")  # type: ignore[arg-type]


def check_log_q(log_q: Tensor, valid: Tensor, name: str) -> None:
    """Refuse what is no log-probability at cells that count."""
    if readable(log_q):
        refuse(valid & ~(log_q <= LOG_TOLERANCE), log_q, name, "log-probabilities, at most 0; -inf is one")


def open_compared(
    draft_logits: Tensor, target_logits: Tensor | None, tokens: Tensor, lengths: Tensor, common: Common,
    function: Callable[..., ObjectiveResult],
) -> tuple[Cells, str]:  # fmt: skip
    """Check the inputs of a baseline that compares distributions."""
    if target_logits is None:
        found = f"found None; {name_of(function)} compares distributions"
        raise RequestError(f"target_logits: {found}, allowed: a tensor (B, T, V)")
    return open_cells(draft_logits, target_logits, tokens, lengths, common, function)


def check_lengths(lengths: Tensor, rows: int, size: int) -> Tensor:
    """Refuse lengths outside ``0..T``; give them in int64."""
    lengths = check_integers(lengths, "lengths", 1, "(B,)", rows)
    if readable(lengths):
        refuse((lengths < 0) | (lengths > size), lengths, "lengths", f"0 to T = {size}")
    return lengths


def check_starts(starts: Tensor | None, shape: tuple[int, ...], size: int) -> Tensor | None:
    """Refuse starts of another shape than the blocks, or beyond the tokens; give them in int64."""
    if starts is None:
        if shape[1] != size:
            raise ValueError(f"draft_logits: found {shape[1]} blocks for {size} tokens without starts; allowed: M = T")
        return None
    starts = check_integers(starts, "starts", 2, "(B, M)", shape[0])
    if tuple(starts.shape) != shape:
        raise ValueError(f"starts: found shape {tuple(starts.shape)}; allowed: {shape}, that of the blocks (B, M)")
    if readable(starts):
        refuse(starts >= size, starts, "starts", f"below T = {size}; less than 0 for none")
    return starts


def check_stops(stop_ids: Sequence[int], vocabulary: int | None = None) -> tuple[int, ...]:
    """Give the stop tokens, all of the vocabulary where it is known."""
    if isinstance(stop_ids, Tensor):
        raise RequestError("stop_ids: found a tensor; allowed: a sequence of token ids, as its tolist()")
    if not isinstance(stop_ids, Iterable):
        one = f", [{stop_ids}] of one" if isinstance(stop_ids, Integral) else ""
        raise RequestError(f"stop_ids: found {stop_ids!r}; allowed: a sequence of token ids{one}")
    allowed = "token ids" if vocabulary is None else f"token ids 0 to {vocabulary - 1}"
    for stop in stop_ids:
        wrong = isinstance(stop, bool) or not isinstance(stop, Integral)
        if wrong or stop < 0 or (vocabulary is not None and stop >= vocabulary):
            raise RequestError(f"stop_ids: found {stop!r}; allowed: {allowed}")
    return tuple(int(stop) for stop in stop_ids)


def check_temperature(temperature: float) -> float:
    """Give the temperature, above 0."""
    if not (isinstance(temperature, int | float) and 0 < temperature < math.inf):
        raise RequestError(f"temperature: found {temperature!r}; allowed: a number above 0")
    return float(temperature)
