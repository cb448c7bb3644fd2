"""Hypothesis strategies for ragged rollouts and laws that reach the edges."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from markov_spec.arrays import RoundLaw

settings.register_profile("kernels", deadline=None)  # the first call of a kernel compiles it
settings.load_profile("kernels")

PROBABILITIES = st.one_of(st.sampled_from([0.0, 1.0, 0.5, 0.25]), st.floats(0, 1, width=32))
LOG_Q = st.one_of(st.sampled_from([-np.inf, 0.0, -1.0, -0.5]), st.floats(-20, 0, width=32))
LOG_P = st.one_of(st.sampled_from([0.0, -1.0, -0.5]), st.floats(-20, 0, width=32))
FLOATS = st.sampled_from([np.float32, np.float64])


@st.composite
def offsets(draw: st.DrawFn) -> np.ndarray:
    """Row offsets of up to four rollouts, empty and one-token ones among them."""
    return np.concatenate(([0], np.cumsum(draw(st.lists(st.integers(0, 7), min_size=1, max_size=4)), dtype=np.int64)))


def filled(draw: st.DrawFn, values: st.SearchStrategy[float], shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """An array of drawn values."""
    size = int(np.prod(shape))
    return np.array(draw(st.lists(values, min_size=size, max_size=size)), dtype=dtype).reshape(shape)


def lengths(draw: st.DrawFn, rows: int, depth: int) -> int | np.ndarray:
    """A constant or per-start draft length of at most ``depth``."""
    if draw(st.booleans()):
        return draw(st.integers(0, depth))
    return filled(draw, st.integers(0, depth), (rows,), np.int64)  # type: ignore[arg-type] # of integers


@st.composite
def drafts(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, int | np.ndarray]:
    """``log_p``, ``log_q`` (cells or positions), ``indptr`` and a draft length; K may exceed every rollout."""
    indptr = draw(offsets())
    rows, depth, dtype = int(indptr[-1]), draw(st.integers(0, 9)), draw(FLOATS)
    shape = (rows, depth) if draw(st.booleans()) else (rows,)
    log_q = filled(draw, LOG_Q, shape, dtype)
    return filled(draw, LOG_P, (rows,), dtype), log_q, indptr, lengths(draw, rows, depth)


@st.composite
def laws(draw: st.DrawFn) -> RoundLaw:
    """Round laws in both forms and float types."""
    indptr = draw(offsets())
    rows, depth, dtype = int(indptr[-1]), draw(st.integers(0, 9)), draw(FLOATS)
    shape = (rows, depth) if draw(st.booleans()) else (rows,)
    return RoundLaw(filled(draw, PROBABILITIES, shape, dtype), indptr, lengths(draw, rows, depth))
