"""Checks of arrays and offsets that every constructor shares; each error names the rollout and position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
ABSENT = np.iinfo(np.int32).max
LOG_TOLERANCE = 1e-6


class RequestError(ValueError):
    """What was asked for is unknown or not allowed; no data are at fault."""


def as_float(values: Any, name: str) -> Array:
    """Give ``values`` as a C-contiguous float32 or float64 array; bfloat16 and float16 widen exactly to float32.

    Parameters
    ----------
    values : array_like or torch.Tensor
        Any shape. A bfloat16 tensor or ``ml_dtypes`` array is widened; 8-bit floats are refused.
    name : str
        What the values are, for the error.

    Returns
    -------
    ndarray of float32 or float64

    Raises
    ------
    ValueError
        If the values are not floats of 16 bits or more, or integers.
    """
    kind = str(getattr(values, "dtype", "")).removeprefix("torch.")
    if "float8" in kind:
        raise ValueError(f"{name}: found dtype {kind}; allowed: float64, float32, float16, bfloat16")
    if hasattr(values, "detach"):
        values = values.detach()
        values = (values.float() if kind in ("bfloat16", "float16") else values).cpu().numpy()
    elif kind == "bfloat16":
        values = values.astype(np.float32)
    array = np.asarray(values)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype == np.float16:
        array = array.astype(np.float32)
    elif array.dtype.kind in "iub":
        array = array.astype(np.float64)
    if array.dtype not in (np.float32, np.float64):
        raise ValueError(f"{name}: found dtype {array.dtype}; allowed: float64, float32, float16, bfloat16")
    return np.ascontiguousarray(array)


def check_indptr(indptr: Any, rows: int | None = None) -> npt.NDArray[np.int64]:
    """Validate row offsets: int64 ``(R+1,)``, starting at 0, never falling, ending at ``rows``.

    Parameters
    ----------
    indptr : array_like of int, (R+1,)
    rows : int, optional
        The number ``N`` of positions that the offsets must cover.

    Returns
    -------
    ndarray of int64, (R+1,)

    Raises
    ------
    ValueError
        Naming the first rollout whose offsets are wrong.
    """
    found = np.asarray(indptr)
    if found.ndim != 1 or found.size == 0 or found.dtype.kind not in "iu":
        raise ValueError(f"indptr: found shape {found.shape}, dtype {found.dtype}; allowed: R+1 integers")
    found = np.ascontiguousarray(found, dtype=np.int64)
    if found[0] != 0:
        raise ValueError(f"indptr: rollout 0 starts at {found[0]}; allowed: 0")
    falls = np.flatnonzero(np.diff(found) < 0)
    if falls.size:
        i = int(falls[0])
        raise ValueError(f"indptr: rollout {i} runs from {found[i]} back to {found[i + 1]}; offsets must not fall")
    if rows is not None and found[-1] != rows:
        raise ValueError(
            f"indptr: the last rollout ({found.size - 2}) ends at {found[-1]}, but there are {rows} positions"
        )
    return found


def locate(indptr: npt.NDArray[np.int64], row: int, ids: Sequence[str] | None = None) -> str:
    """Name a row by its rollout and position, for error messages.

    Parameters
    ----------
    indptr : ndarray of int64, (R+1,)
    row : int
        Index into the concatenated positions.
    ids : sequence of str, optional
        Rollout ids; without them the rollout's number is given.

    Returns
    -------
    str
        Such as ``"rollout 3, position 17"``.
    """
    i = int(np.searchsorted(indptr, row, side="right")) - 1
    who = f"{i}" if ids is None else f"{ids[i]!r}"
    return f"rollout {who}, position {row - int(indptr[i])}"


def check_log_probs(values: Array, indptr: npt.NDArray[np.int64], name: str, ids: Sequence[str] | None = None) -> None:
    """Refuse NaN, values above 0 (beyond 1e-6) and ``-inf`` in log-probabilities of realised tokens.

    Parameters
    ----------
    values : ndarray of float, (N,)
        Log-probabilities in nats of tokens that were generated, hence of positive probability.
    indptr : ndarray of int64, (R+1,)
    name : str
        What the values are, for the error.
    ids : sequence of str, optional

    Raises
    ------
    ValueError
        Naming the rollout and position of the first bad value.
    """
    bad = ~((values <= LOG_TOLERANCE) & (values > -np.inf))
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(
            f"{name}: {locate(indptr, row, ids)}: found {values[row]}; allowed: a finite log-probability <= 0 "
            "(the target generated this token, so its probability is positive)"
        )


def check_draft_length(given: Any, indptr: npt.NDArray[np.int64], depth: int | None) -> int | Array:
    """Validate ``L[s]``, the number of drafts proposed from each start.

    Parameters
    ----------
    given : int or array_like of int, (N,)
    indptr : ndarray of int64, (R+1,)
    depth : int or None
        The recorded ``K``, which is also what an absent length means; None where depths are not bounded by a record.

    Returns
    -------
    int or ndarray of int32, (N,)

    Raises
    ------
    ValueError
        Naming the rollout and position of the first length outside 0 to ``depth``.
    """
    if given is None:
        if depth is None:
            raise ValueError("draft_length: absent; allowed: an integer or an (N,) array, since acceptance is (N,)")
        return depth
    lengths = np.asarray(given)
    if lengths.dtype.kind not in "iu" or lengths.shape not in ((), (int(indptr[-1]),)):
        raise ValueError(
            f"draft_length: found shape {lengths.shape}, dtype {lengths.dtype}; allowed: integer or (N,) integers"
        )
    bad = (lengths < 0) | (lengths > (ABSENT if depth is None else depth))
    if bad.any():
        where = "" if lengths.ndim == 0 else f"{locate(indptr, int(np.argmax(bad)))}: "
        found = lengths if lengths.ndim == 0 else lengths[np.argmax(bad)]
        allowed = "0 or more" if depth is None else f"0 to the recorded {depth}"
        raise ValueError(f"draft_length: {where}found {found}; allowed: {allowed}")
    return int(lengths) if lengths.ndim == 0 else np.ascontiguousarray(lengths, dtype=np.int32)


def check_integer(value: Any, name: str, least: int) -> None:
    """Refuse what is not an integer of at least ``least``; a bool is none.

    Raises
    ------
    ValueError
        Naming the argument, what was found and what is allowed.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name}: found {value!r}; allowed: an integer >= {least}")


def check_first_start(first_start: Any, rows: int) -> int:
    """Validate ``s0``, the tokens committed before the first round.

    Parameters
    ----------
    first_start : int
    rows : int
        Positions of all rollouts; a larger ``s0`` means the same as this one.

    Returns
    -------
    int

    Raises
    ------
    ValueError
        Unless it is an integer of 0 or more.
    """
    check_integer(first_start, "first_start", 0)
    return int(min(first_start, rows))
