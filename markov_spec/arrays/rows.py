"""Ragged rows: which cells lie inside their rollouts, and ranges of whole rollouts of bounded size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from markov_spec.arrays.checks import Array

Offsets = npt.NDArray[np.int64]


def cells_inside(indptr: Offsets, width: int, length: int | Array | None = None) -> npt.NDArray[np.bool_]:
    """Tell which cells are neither past a rollout's end nor deeper than the draft length.

    Parameters
    ----------
    indptr : ndarray of int64, (R+1,)
    width : int
        Depths.
    length : int or ndarray of int, (N,), optional
        ``L[s]``; absent means all depths.

    Returns
    -------
    ndarray of bool, (N, width)
        Whether ``k <= T - s`` and ``k <= L[s]``, at ``[s, k-1]``.
    """
    left = np.repeat(indptr[1:], np.diff(indptr)) - np.arange(indptr[-1])
    deepest = left if length is None else np.minimum(length, left)
    return np.arange(1, width + 1) <= deepest[:, None]


def rollout_spans(indptr: Offsets, first: int, last: int, rows: int) -> Iterator[tuple[int, int]]:
    """Cut a range of rollouts into ranges of at most ``rows`` positions, or of one rollout.

    Parameters
    ----------
    indptr : ndarray of int64, (R+1,)
    first, last : int
        The range, ``last`` not included.
    rows : int

    Yields
    ------
    first, last : int
    """
    while first < last:
        stop = int(np.searchsorted(indptr, indptr[first] + rows, side="right")) - 1
        stop = min(max(stop, first + 1), last)
        yield first, stop
        first = stop
