"""Checks of single tensors: types and shapes always, values only where a look at them makes nothing wait."""

from __future__ import annotations

import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def check_float(values: Tensor, name: str, dimensions: int, shape: str) -> None:
    """Refuse what is no float tensor of so many dimensions."""
    if not isinstance(values, Tensor) or values.ndim != dimensions:
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"{name}: found {found}; allowed: a tensor {shape}")
    if values.dtype not in FLOATS:
        raise ValueError(f"{name}: found dtype {values.dtype}; allowed: float64, float32, bfloat16, float16")


def check_blocks(draft_logits: Tensor) -> None:
    """Refuse what are no logits of blocks."""
    flat = isinstance(draft_logits, Tensor) and draft_logits.ndim == 3
    axis = "; of one draft a start, add the depth axis K = 1: draft_logits[:, :, None]" if flat else ""
    check_float(draft_logits, "draft_logits", 4, f"(B, M, K, V){axis}")


def check_integers(values: Tensor, name: str, dimensions: int, shape: str, rows: int) -> Tensor:
    """Refuse what is no integer tensor of so many dimensions and rows; give it in int64, as narrow types wrap."""
    if not isinstance(values, Tensor) or values.ndim != dimensions or values.shape[0] != rows:
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"{name}: found {found}; allowed: a tensor {shape} with {shape[1]} = {rows}")
    if values.is_floating_point() or values.dtype == torch.bool:
        raise ValueError(f"{name}: found dtype {values.dtype}; allowed: integers")
    return values.long()


def check_devices(**given: Tensor | None) -> None:
    """Refuse tensors of several devices."""
    first, *others = ((name, values) for name, values in given.items() if isinstance(values, Tensor))
    for name, values in others:
        if values.device != first[1].device:
            raise ValueError(f"{name}: found on {values.device}; allowed: {first[1].device}, that of {first[0]}")


def readable(values: Tensor) -> bool:
    """Whether values may be looked at without making a device wait or breaking a compiled graph."""
    return not torch.compiler.is_compiling() and values.device.type == "cpu"


def refuse(wrong: Tensor, values: Tensor, name: str, allowed: str) -> None:
    """Raise for the first wrong value, by its place."""
    if wrong.any():
        place = tuple(torch.nonzero(wrong)[0].tolist())
        where = f"rollout {place[0]}" + (f", position {', '.join(map(str, place[1:]))}" if place[1:] else "")
        raise ValueError(f"{name}: {where}: found {values[place].item()}; allowed: {allowed}")
