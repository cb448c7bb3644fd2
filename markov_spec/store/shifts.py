"""Whether what stands at each position belongs there, or to the position before or after it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from markov_spec.arrays import Array
from markov_spec.store.sampled import RARE

# Neighbouring positions depend on each other; pieces of this many hardly do.
PIECE = 16
# By how much another shift must fit better: share of equal tokens, and correlation.
EQUAL_MARGIN, CORRELATION_MARGIN = 0.1, 0.2
WHERE = {
    -1: "stand one position too late: row t holds what belongs to token t-1",
    1: "stand one position too early: row t holds what belongs to token t+1",
}


class Neighbours(NamedTuple):
    """What stands at some positions (n,), the references (n, 3) before, at and after them, and their pieces (n,)."""

    own: Array
    near: Array
    piece: Array


def neighbours(own: Array, reference: Array, usable: Array, indptr: Array, first: int) -> Neighbours:
    """Gather the ``usable`` positions (N,) that have one before and after them, of rollouts ``first..``."""
    lengths = np.diff(indptr)
    at = np.arange(indptr[-1]) - np.repeat(indptr[:-1], lengths)
    inner = usable & (at > 0) & (at < np.repeat(lengths, lengths) - 1)
    rows = np.flatnonzero(inner)
    number = np.repeat(np.arange(first, first + lengths.size), lengths)[rows]
    near = np.column_stack([reference[rows - 1], reference[rows], reference[rows + 1]])
    return Neighbours(own[rows], near, (number << 32) + at[rows] // PIECE)


def _joined(parts: Sequence[Neighbours]) -> Neighbours:
    return Neighbours(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def id_shift(parts: Sequence[Neighbours]) -> str | None:
    """Say how token ids (-1: none) stand that equal the tokens of another position clearly more often."""
    if not parts:
        return None
    own, near, piece = _joined(parts)
    equal = (near == own[:, None]).astype(np.float64)
    return _told(equal, piece, EQUAL_MARGIN, "{:.0%} of the likeliest tokens equal that one, {:.0%} their own")


def chance_shift(parts: Sequence[Neighbours]) -> str | None:
    """Say how probabilities stand that correlate clearly more with those of another position."""
    if not parts:
        return None
    own, near, piece = _joined(parts)
    spreads = own.std() if own.size else 0.0, near.std() if near.size else 0.0
    if not all(spread > RARE for spread in spreads):
        return None
    fits = (own - own.mean())[:, None] * (near - near.mean()) / (spreads[0] * spreads[1])
    return _told(fits, piece, CORRELATION_MARGIN, "correlation {:.2f} there, {:.2f} at their own")


def _told(fits: Array, piece: Array, margin: float, figures: str) -> str | None:
    """Compare the mean fit (n, 3) at the three shifts, piece by piece."""
    means = fits.mean(axis=0) if len(fits) else np.zeros(3)
    shift = int(np.argmax(means)) - 1
    _, place = np.unique(piece, return_inverse=True)
    if shift == 0 or means[shift + 1] - means[1] <= margin:
        return None
    gains = np.bincount(place, fits[:, shift + 1] - fits[:, 1])
    # As if the pieces' signs were thrown: Hoeffding's bound of a sum of independent symmetric terms.
    if gains.sum() <= math.sqrt(-2 * math.log(RARE) * float((gains**2).sum())):
        return None
    return f"{WHERE[shift]} ({figures.format(means[shift + 1], means[1])})"
