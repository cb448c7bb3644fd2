"""What a rule may ask for, and what a rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from markov_spec._jit import split_rollouts
from markov_spec.acceptance.literal import Round, Tokens
from markov_spec.arrays import (
    LOG_TOLERANCE,
    Array,
    Exactness,
    RoundLaw,
    as_float,
    cells_inside,
    check_draft_length,
    check_integer,
    check_log_probs,
    locate,
    rollout_spans,
)

Kernel = Callable[..., int]
Finish = Callable[[Array, slice, Array], None]
CHUNK_CELLS = 1 << 16  # 512 KB of float64, so that a chunk stays in a core's cache


@dataclass(frozen=True, eq=False)
class Inputs:
    """The arguments of ``round_law`` as given; each method validates what it hands out.

    Parameters
    ----------
    rule : str
        For error messages.
    indptr : ndarray of int64, (R+1,)
    log_p, log_q, draft_length, hit, drafts, scale, log_accept
        As in ``round_law``.
    """

    rule: str
    indptr: npt.NDArray[np.int64]
    log_p: Any = None
    log_q: Any = None
    draft_length: Any = None
    hit: Any = None
    drafts: Any = None
    scale: Any = None
    log_accept: Any = None

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

    @cached_property
    def target_log_probs(self) -> Array:
        """Give ``log_p``, float64 ``(N,)``, every value finite."""
        values = as_float(self._given("log_p"), "log_p")
        self._check_rows(values, "log_p", (1,))
        check_log_probs(values, self.indptr, "log_p")
        return values.astype(np.float64, copy=False)

    def log_probs(self, name: str = "log_q") -> Array:
        """Give ``log_q`` or ``log_accept``, ``(N, K)`` or ``(N,)``; the values are the kernel's to check."""
        values = as_float(self._given(name), name)
        self._check_rows(values, name, (1, 2))
        return values

    def hits(self) -> Array:
        """Give ``hit``, bool ``(N, K)`` or ``(N,)``."""
        values = np.asarray(self._given("hit"))
        if values.dtype != bool:
            raise ValueError(f"hit: found dtype {values.dtype}; allowed: bool")
        self._check_rows(values, "hit", (1, 2))
        return values

    def draft_count(self) -> int:
        """Give ``drafts``, 1 when absent."""
        found = 1 if self.drafts is None else self.drafts
        check_integer(found, "drafts", 1)
        return int(found)

    def scales(self, log_q: Array, *, zero: bool) -> Array:
        """Give ``scale``, ``()``, ``(N,)`` or ``(N, K)``: at least 1, or 0 if ``zero``, and 1 in ignored cells."""
        given = self._given("scale")
        values = as_float(given, "scale").reshape(np.shape(given))
        rows = (int(self.indptr[-1]),)
        if values.shape not in ((), rows, log_q.shape):
            shapes = " or ".join(str(shape) for shape in dict.fromkeys((rows, log_q.shape)))
            raise ValueError(f"scale: found shape {values.shape}; allowed: a number, or {shapes}")
        bad = ~((values >= 1 - LOG_TOLERANCE) & (values < np.inf))
        if zero:
            bad &= values != 0
        if not bad.any():
            return values
        wrong = bad & cells_inside(self.indptr, values.shape[1], self.lengths(log_q)) if values.ndim == 2 else bad
        if wrong.any():
            allowed = "a finite number >= 1" + (", or 0 where target and drafter share no token" if zero else "")
            if values.ndim == 0:
                raise ValueError(f"scale: found {values}; allowed: {allowed}")
            row, column = divmod(int(np.argmax(wrong)), values.shape[1] if values.ndim == 2 else 1)
            raise bad_cell(self.indptr, values, "scale", row, column + 1, allowed)
        return np.where(bad, 1, values)

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
    takes : tuple of str
        Arguments that it reads when they are given.
    verify : callable, optional
        Its literal decision of one round: the tokens committed. Absent where only acceptances are recorded.
    several : bool
        Whether ``verify`` plays rounds of several drafts at each depth.
    """

    name: str
    label: str
    needs: tuple[str, ...]
    exactness: Exactness
    law: Callable[[Inputs], RoundLaw]
    takes: tuple[str, ...] = ()
    verify: Callable[[Round], Tokens] | None = None
    several: bool = False


def exponential(logs: Array, rows: slice, out: Array) -> None:
    """Write the acceptance of a range of rows from its logarithm; numpy's exp is vectorised, a kernel's is not."""
    np.exp(logs, out=out, casting="same_kind")


def ratio_cells(
    kernel: Kernel,
    inputs: Inputs,
    values: Array,
    length: int | Array,
    depth: int,
    *,
    log_p: Array,
    name: str = "log_q",
    finish: Finish = exponential,
) -> Array:
    """Run a kernel over the cells ``(s, k)`` of the ratio ``r = q/p``.

    Parameters
    ----------
    kernel : callable
        As in ``_numba``; returns ``row * depth + k - 1`` of the first bad value, or -1.
    inputs : Inputs
    values : ndarray of float, (N, K) or (N,)
        ``log q``; the ``(N,)`` form is read at ``s+k-1``.
    length : int or ndarray of int32, (N,)
    depth : int
        Width of the result.
    log_p : ndarray of float64, (N,)
    name : str
        What ``values`` are, for the error.
    finish : callable
        Called with the kernel's result for a range of rows, the range and where its acceptance goes. It may overwrite
        the kernel's result.

    Returns
    -------
    ndarray, (N, depth)
        The acceptance in the float type of ``values``; 0 in cells past an end or deeper than ``length``.
    """
    accept = np.empty((log_p.size, depth), dtype=values.dtype)
    row = values.shape[1] if values.ndim == 2 else 1
    lengths = np.asarray(length, dtype=np.int32).reshape(-1)
    flat, step = values.reshape(-1), int(np.ndim(length) == 1)
    bad: list[int] = []

    def run(first: int, last: int) -> None:
        for i, j in rollout_spans(inputs.indptr, first, last, CHUNK_CELLS // max(depth, 1)):
            rows = slice(int(inputs.indptr[i]), int(inputs.indptr[j]))
            logs = np.empty((rows.stop - rows.start, depth))
            found = kernel(log_p, flat, row, lengths, step, inputs.indptr, i, j, logs)
            if found >= 0:
                bad.append(found)
                return
            finish(logs, rows, accept[rows])

    split_rollouts(run, inputs.indptr, threads=None, nbytes=accept.nbytes)
    if bad:
        at, column = divmod(min(bad), depth)
        raise bad_cell(inputs.indptr, values, name, at, column + 1, f"at most {LOG_TOLERANCE}, or -inf")
    return accept


def bad_cell(indptr: npt.NDArray[np.int64], values: Array, name: str, row: int, depth: int, allowed: str) -> ValueError:
    """Make the error for the value of depth ``depth`` of the round begun at ``row``."""
    if values.ndim == 1:
        row += depth - 1
        where, value = locate(indptr, row), values[row]
    else:
        where, value = f"{locate(indptr, row)}, depth {depth}", values[row, depth - 1]
    return ValueError(f"{name}: {where}: found {value}; allowed: {allowed}")
