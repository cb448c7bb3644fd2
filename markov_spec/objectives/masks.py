"""Which tokens are learned, which blocks have any, and what a block may see: three questions of frames.

A mask of the learned tokens stands in one of two frames. By ``label``: entry ``t`` is about token ``t``. By ``input``:
entry ``t`` is about what is predicted where token ``t`` is the last one read, which is token ``t + 1``; its last entry
is about a token that is not there. Objectives compare drafts with the tokens themselves, hence work by label. A mask
whose frame is not said is refused, since nothing in it tells.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from markov_spec.arrays import RequestError
from markov_spec.objectives.checks import readable, refuse

FRAMES = ("label", "input")


def label_mask(mask: Tensor, mask_frame: Literal["label", "input"] | None, shape: tuple[int, ...]) -> Tensor:
    """Bring a mask of the learned tokens into the label frame.

    Parameters
    ----------
    mask : Tensor, (B, T)
        Booleans, or numbers 0 and 1; of labels that say -100 where nothing is learned, ``labels != -100``.
    mask_frame : {"label", "input"}
        Which of both frames the mask is in; None is refused.
    shape : tuple of int
        ``(B, T)``.

    Returns
    -------
    Tensor of bool, (B, T)
        Whether token ``t`` is learned. From the input frame, token 0 is not: no token stands before it.

    Raises
    ------
    ValueError
        If the frame is missing or unknown, the shape is another, or, on the CPU, a number is neither 0 nor 1.

    Examples
    --------
    >>> import torch
    >>> label_mask(torch.tensor([[0, 1, 1, 1, 0]]), "input", (1, 5)).int().tolist()
    [[0, 0, 1, 1, 1]]
    """
    if mask_frame not in FRAMES:
        raise RequestError(f"mask_frame: found {mask_frame!r} with a mask; allowed: {', '.join(FRAMES)}")
    if not isinstance(mask, Tensor) or tuple(mask.shape) != tuple(shape):
        found = f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"mask: found {found}; allowed: {tuple(shape)}, a tensor as the tokens")
    kept = mask if mask.dtype == torch.bool else mask != 0
    if kept is not mask and readable(mask):
        refuse(kept & (mask != 1), mask, "mask", "booleans, or 0 and 1; of labels, labels != -100")
    if mask_frame == "label":
        return kept
    return torch.cat([torch.zeros_like(kept[:, :1]), kept[:, :-1]], 1)


def supervised_starts(mask: Tensor, mask_frame: Literal["label", "input"]) -> Tensor:
    """Say where blocks may begin whose first draft is of a learned token.

    Parameters
    ----------
    mask : Tensor, (B, T)
        Learned tokens.
    mask_frame : {"label", "input"}
        The frame of the mask.

    Returns
    -------
    Tensor of bool, (B, T)
        Whether a block may begin at start ``s``, its first draft being of token ``s``. The token before it, ``s - 1``,
        is what trainers call its anchor.

    Raises
    ------
    ValueError
        If the frame is unknown.

    Examples
    --------
    >>> import torch
    >>> starts = supervised_starts(torch.tensor([[0, 0, 1, 1, 1]]), "label")[0].nonzero()[:, 0]
    >>> (starts - 1).tolist()  # the anchors
    [1, 2, 3]
    """
    return label_mask(mask, mask_frame, tuple(np.shape(mask)))


def block_visibility(starts: Tensor, depth: int, size: int) -> Tensor:
    """Say which tokens and slots each slot of parallel blocks may attend to.

    Parameters
    ----------
    starts : Tensor of int, (M,) or (B, M)
        Where the blocks begin: a block at ``s`` has tokens ``0..s-1`` before it; -1 for none, which sees itself alone.
    depth : int
        Slots in a block.
    size : int
        Tokens of the sequence, ``T``.

    Returns
    -------
    Tensor of bool, (M * depth, T + M * depth), or with B before
        For each slot, of its block's tokens and of all blocks' slots, those that it may see: what stands before its own
        block, and its own block. Never a token that another block drafts, nor another block.

    Raises
    ------
    ValueError
        If ``starts`` are no integers of one or two dimensions.

    Examples
    --------
    >>> import torch
    >>> seen = block_visibility(torch.tensor([1, 2]), 1, 3)
    >>> seen.int().tolist()
    [[1, 0, 0, 1, 0], [1, 1, 0, 0, 1]]
    """
    wrong = not isinstance(starts, Tensor) or starts.ndim not in (1, 2)
    if wrong or starts.is_floating_point() or starts.dtype == torch.bool:
        found = f"{tuple(starts.shape)} of {starts.dtype}" if isinstance(starts, Tensor) else type(starts).__name__
        raise ValueError(f"starts: found {found}; allowed: a tensor of integers, (M,) or (B, M)")
    owner = torch.arange(starts.shape[-1], device=starts.device).repeat_interleave(depth)
    before = torch.arange(size, device=starts.device) < starts.repeat_interleave(depth, -1)[..., None]
    own = owner[:, None] == owner
    return torch.cat([before, own.expand(*starts.shape[:-1], *own.shape)], -1)
