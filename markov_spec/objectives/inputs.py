"""The arrays that every objective takes, checked; and which cells a mask leaves.

``draft_logits[b, m, k-1]`` is depth ``k`` of the block begun at start ``s`` of rollout ``b`` and predicts
``tokens[b, s+k-1]``, as ``target_logits[b, s+k-1]`` does. Without ``starts`` block ``m`` begins at ``s = m``. Cells
past a rollout's end, and blocks whose start is below 0, take no part whatever they hold.

Shapes and types are checked always; values only on the CPU and outside ``torch.compile``, since a look at a device's
values would make it wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, TypedDict

import torch
from torch import Tensor

from markov_spec.arrays import LOG_TOLERANCE, RequestError
from markov_spec.objectives._tiles import positions, read_cells
from markov_spec.objectives.masks import label_mask

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


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
    check_float(draft_logits, "draft_logits", 4, "(B, M, K, V)")
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
    if not (isinstance(temperature, int | float) and 0 < temperature < math.inf):
        raise RequestError(f"temperature: found {temperature!r}; allowed: a number above 0")
    if readable(tokens):
        inside = torch.arange(size) < lengths[:, None]
        wrong = inside & ((tokens < 0) | (tokens >= vocabulary))
        refuse(wrong, tokens, "tokens", f"token ids 0 to {vocabulary - 1}")
    at, valid = positions(starts, tuple(draft_logits.shape), lengths, size)
    if mask is None and mask_frame is not None:
        raise RequestError(f"mask_frame: found {mask_frame!r} without a mask; allowed: with one")
    if mask is not None:
        kept = label_mask(mask, mask_frame, (rows, size))
        valid = valid & torch.gather(kept, 1, at.flatten(1)).view(at.shape)
    tokens = tokens.clamp(0, vocabulary - 1)
    return Cells(draft_logits, target_logits, tokens, lengths, starts, float(temperature), at, valid)


def open_cells(
    draft_logits: Tensor, target_logits: Tensor | None, tokens: Tensor, lengths: Tensor, common: Common
) -> tuple[Cells, str]:
    """Check the inputs of a baseline; give its cells and its reduction."""
    unknown = [name for name in common if name not in Common.__annotations__]
    if unknown:
        allowed = ", ".join(Common.__annotations__)
        raise TypeError(f"{unknown[0]}: unknown option; allowed: {allowed}, and the objective's own")
    given = {name: value for name, value in common.items() if name != "reduction"}
    return check_cells(draft_logits, target_logits, tokens, lengths, **given), common.get("reduction", "paper")  # type: ignore[arg-type]


def check_float(values: Tensor, name: str, dimensions: int, shape: str) -> None:
    """Refuse what is no float tensor of so many dimensions."""
    if not isinstance(values, Tensor) or values.ndim != dimensions:
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"{name}: found {found}; allowed: a tensor {shape}")
    if values.dtype not in FLOATS:
        raise ValueError(f"{name}: found dtype {values.dtype}; allowed: float64, float32, bfloat16, float16")


def check_integers(values: Tensor, name: str, dimensions: int, shape: str, rows: int) -> Tensor:
    """Refuse what is no integer tensor of so many dimensions and rows; give it in int64, as narrow types wrap."""
    if not isinstance(values, Tensor) or values.ndim != dimensions or values.shape[0] != rows:
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"{name}: found {found}; allowed: a tensor {shape} with B = {rows}")
    if values.is_floating_point() or values.dtype == torch.bool:
        raise ValueError(f"{name}: found dtype {values.dtype}; allowed: integers")
    return values.long()


def check_devices(**given: Tensor | None) -> None:
    """Refuse tensors of several devices."""
    first, *others = ((name, values) for name, values in given.items() if isinstance(values, Tensor))
    for name, values in others:
        if values.device != first[1].device:
            raise ValueError(f"{name}: found on {values.device}; allowed: {first[1].device}, that of {first[0]}")


def check_log_q(log_q: Tensor, valid: Tensor, name: str) -> None:
    """Refuse what is no log-probability at cells that count."""
    if readable(log_q):
        refuse(valid & ~(log_q <= LOG_TOLERANCE), log_q, name, "log-probabilities, at most 0; -inf is one")


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


def check_stops(stop_ids: Sequence[int], vocabulary: int) -> tuple[int, ...]:
    """Give the stop tokens, all of the vocabulary."""
    if not isinstance(stop_ids, Iterable):
        raise RequestError(f"stop_ids: found {stop_ids!r}; allowed: a sequence of token ids")
    for stop in stop_ids:
        if isinstance(stop, bool) or not isinstance(stop, Integral) or not 0 <= stop < vocabulary:
            raise RequestError(f"stop_ids: found {stop!r}; allowed: token ids 0 to {vocabulary - 1}")
    return tuple(int(stop) for stop in stop_ids)


def readable(values: Tensor) -> bool:
    """Whether values may be looked at without making a device wait or breaking a compiled graph."""
    return not torch.compiler.is_compiling() and values.device.type == "cpu"


def refuse(wrong: Tensor, values: Tensor, name: str, allowed: str) -> None:
    """Raise for the first wrong value, by its place."""
    if wrong.any():
        place = tuple(torch.nonzero(wrong)[0].tolist())
        where = f"rollout {place[0]}" + (f", position {', '.join(map(str, place[1:]))}" if place[1:] else "")
        raise ValueError(f"{name}: {where}: found {values[place].item()}; allowed: {allowed}")
