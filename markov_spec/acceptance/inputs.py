"""What a rule may ask for, and what a rule is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from markov_spec._jit import split_rollouts
from markov_spec.arrays import (
    LOG_TOLERANCE,
    Array,
    Exactness,
    RoundLaw,
    as_float,
    check_draft_length,
    check_log_probs,
    locate,
)

CHUNK_CELLS = 1 << 16  # 512 KB of float64, so that a chunk stays in a core's cache


@dataclass(frozen=True, eq=False)
class Inputs:
    """The arguments of ``round_law`` as given; each method validates what it hands out.

    Parameters
    ----------
    rule : str
        For error messages.
    indptr : ndarray of int64, (R+1,)
    log_p, log_q, hit, draft_length
        As in ``round_law``.
    """

    rule: str
    indptr: npt.NDArray[np.int64]
    log_p: Any = None
    log_q: Any = None
    hit: Any = None
    draft_length: Any = None

    def _given(self, name: str) -> Any:
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"{name}: absent; rule {self.rule!r} needs it")
        return value

    def _check_rows(self, values: Array, name: str, dimensions: tuple[int, ...]) -> None:
        rows = int(self.indptr[-1])
        if values.ndim not in dimensions or values.shape[0] != rows:
            shapes = " or ".join({1: f"({rows},)", 2: f"({rows}, K)"}[n] for n in dimensions)
            raise ValueError(f"{name}: found shape {values.shape}; allowed: {shapes}, one row for each position")

    def target_log_probs(self) -> Array:
        """Give ``log_p``, float64 ``(N,)``, every value finite."""
        values = as_float(self._given("log_p"), "log_p")
        self._check_rows(values, "log_p", (1,))
        check_log_probs(values, self.indptr, "log_p")
        return values.astype(np.float64, copy=False)

    def draft_log_probs(self) -> Array:
        """Give ``log_q``, ``(N, K)`` or ``(N,)``, of the right shape; its values are the kernel's to check."""
        values = as_float(self._given("log_q"), "log_q")
        self._check_rows(values, "log_q", (1, 2))
        return values

    def hits(self) -> Array:
        """Give ``hit``, bool ``(N, K)`` or ``(N,)``."""
        values = np.asarray(self._given("hit"))
        if values.dtype != bool:
            raise ValueError(f"hit: found dtype {values.dtype}; allowed: bool")
        self._check_rows(values, "hit", (1, 2))
        return values

    def lengths(self, values: Array) -> int | Array:
        """Give the draft length for drafts recorded as ``values``: at most ``K``, required in the ``(N,)`` form."""
        return check_draft_length(self.draft_length, self.indptr, values.shape[1] if values.ndim == 2 else None)


@dataclass(frozen=True)
class Rule:
    """An acceptance rule: one entry of the registry.

    Parameters
    ----------
    name : str
    label : str
        Its equation in the table of acceptance rules.
    needs : tuple of str
        Arguments of ``round_law`` that it reads.
    exactness : {"exact", "bound", "heuristic", "teacher-forced"}
    law : callable
    """

    name: str
    label: str
    needs: tuple[str, ...]
    exactness: Exactness
    law: Callable[[Inputs], RoundLaw]


def _chunks(indptr: npt.NDArray[np.int64], first: int, last: int, rows: int) -> Iterator[tuple[int, int]]:
    # Ranges of rollouts of at most ``rows`` positions, or of one rollout.
    while first < last:
        stop = int(np.searchsorted(indptr, indptr[first] + rows, side="right")) - 1
        stop = min(max(stop, first + 1), last)
        yield first, stop
        first = stop


def ratio_cells(kernel: Callable[..., int], inputs: Inputs, log_q: Array, length: int | Array, depth: int) -> Array:
    """Run a kernel over the cells ``(s, k)`` of the ratio ``r = q/p``.

    Parameters
    ----------
    kernel : callable
        As in ``_numba``; returns ``row * depth + k - 1`` of the first bad ``log_q``, or -1.
    inputs : Inputs
    log_q : ndarray of float, (N, K) or (N,)
        The ``(N,)`` form is read at ``s+k-1``.
    length : int or ndarray of int32, (N,)
    depth : int
        Width of the result.

    Returns
    -------
    ndarray, (N, depth)
        The acceptance in the float type of ``log_q``; 0 in cells past an end or deeper than ``length``.
    """
    log_p = inputs.target_log_probs()
    accept = np.empty((log_p.size, depth), dtype=log_q.dtype)
    row = log_q.shape[1] if log_q.ndim == 2 else 1
    lengths = np.asarray(length, dtype=np.int32).reshape(-1)
    flat, step = log_q.reshape(-1), int(np.ndim(length) == 1)
    bad: list[int] = []

    def run(first: int, last: int) -> None:
        for i, j in _chunks(inputs.indptr, first, last, CHUNK_CELLS // max(depth, 1)):
            rows = slice(int(inputs.indptr[i]), int(inputs.indptr[j]))
            logs = np.empty((rows.stop - rows.start, depth))
            found = kernel(log_p, flat, row, lengths, step, inputs.indptr, i, j, logs)
            if found >= 0:
                bad.append(found)
                return
            np.exp(logs, out=accept[rows], casting="same_kind")  # numpy's exp is vectorised, a kernel's is not

    split_rollouts(run, inputs.indptr, threads=None, nbytes=accept.nbytes)
    if bad:
        found = min(bad)
        raise bad_cell(inputs, log_q, found // depth, found % depth + 1, f"at most {LOG_TOLERANCE}, or -inf")
    return accept


def bad_cell(inputs: Inputs, log_q: Array, row: int, depth: int, allowed: str) -> ValueError:
    """Make the error for the draft of depth ``depth`` begun at ``row``."""
    if log_q.ndim == 1:
        row += depth - 1
        where, value = locate(inputs.indptr, row), log_q[row]
    else:
        where, value = f"{locate(inputs.indptr, row)}, depth {depth}", log_q[row, depth - 1]
    return ValueError(f"log_q: {where}: found {value}; allowed: {allowed}")
