"""What builders read: lists of likely tokens, and where the rollout's next tokens stand in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from markov_spec._jit import split_rollouts
from markov_spec.arrays import ABSENT, LOG_TOLERANCE, Array, RequestError, as_float, check_indptr, check_integer
from markov_spec.drafting import _numba
from markov_spec.drafting.ranks import TreeRanks

Path = tuple[int, ...]
MOST_CELLS = 1 << 28  # numbers of one table: 2 GiB


@runtime_checkable
class Builder(Protocol):
    """Which nodes are drafted: an entry of ``BUILDERS``, with its settings.

    A node is named by its *rank path*, the places from 0 in the lists of depths 1, 2, ... that lead to it.
    """

    @property
    def name(self) -> str:
        """Its key in ``BUILDERS``."""

    def paths(self, log_q: Array, budget: int) -> list[Path]:
        """Give the nodes of one tree in the order in which they are ranked, a parent before its children.

        Parameters
        ----------
        log_q : ndarray of float, (D, M)
            Each depth's list, best first; ``-inf`` where there is no token.
        budget : int

        Returns
        -------
        list of tuple of int
            At most ``budget``.
        """

    def ranks(self, lists: Lists, budget: int) -> TreeRanks:
        """Give the ranks of the rollout's prefixes from every start, up to ``budget``."""


@dataclass(frozen=True, eq=False)
class Lists:
    """Lists of the likeliest tokens of every start and depth, checked. Made by ``read``.

    Parameters
    ----------
    log_q : ndarray of float, (N, D, M)
    hit : ndarray of int32, (N, D)
        Place from 0 of the rollout's token in its list, ``UNLISTED`` or ``NEVER`` (see ``_numba``).
    recorded : ndarray of int64, (N,)
        Depths that have lists.
    complete : bool
        Whether nothing beyond the lists is ever drafted.
    threads : int or None
    """

    log_q: Array
    hit: Array
    recorded: Array
    complete: bool
    threads: int | None

    @classmethod
    def read(cls, top_ids: Any, top_log_q: Any, tokens: Any, *, complete: bool, threads: int | None) -> Lists:
        """Check the arguments of ``tree_ranks``."""
        ids, words = check_tokens(top_ids, tokens)
        log_q = as_float(top_log_q, "top_log_q")
        if log_q.shape != ids.shape:
            raise ValueError(f"top_log_q: found shape {log_q.shape}; allowed: {ids.shape}, that of top_ids")
        hit, recorded = places(ids, words, threads), np.empty(len(ids), np.int64)
        bad: list[int] = []

        def run(first: int, last: int) -> None:
            found = _numba.settle(ids, log_q, words, complete, first, last, hit, recorded)
            if found >= 0:
                bad.append(found)

        split_starts(run, len(ids), threads, log_q.nbytes)
        if bad:
            raise _bad_list(ids, log_q, *divmod(min(bad), ids.shape[1]))
        if (log_q[..., 0] > 0).any():
            log_q = np.minimum(log_q, 0)
        return cls(log_q, hit, recorded, complete, threads)

    def width(self, asked: int, name: str) -> int:
        """Give how many of ``asked`` tokens each list has.

        Raises
        ------
        ValueError
            If the lists are shorter and not complete.
        """
        listed = int(self.log_q.shape[2])
        if asked > listed and not self.complete:
            raise ValueError(
                f"{name}: found {asked}; allowed: at most the {listed} tokens of each list, unless nothing else is "
                "drafted (complete)"
            )
        return min(asked, listed)

    def fill(self, kernel: Any, *settings: Any, budget: int) -> TreeRanks:
        """Run a kernel of ``_numba`` over all starts, on the rollouts' tokens and on the first ones of all lists."""
        rows, depths = self.hit.shape
        rank, reach = np.empty((rows, depths), np.int32), np.empty((rows, depths), np.int32)
        sure, nodes, aside = (np.empty(rows, np.int32) for _ in range(3))
        # The path of first places is the best one to every depth.
        best = np.where(self.log_q[..., 0] > -np.inf, np.int32(0), np.int32(_numba.NEVER))

        def run(first: int, last: int) -> None:
            kernel(self.log_q, best, self.recorded, *settings, budget, first, last, reach, aside, nodes)
            kernel(self.log_q, self.hit, self.recorded, *settings, budget, first, last, rank, sure, nodes)

        split_starts(run, rows, self.threads, self.log_q.nbytes)
        return TreeRanks(rank, max_budget=budget, exact_to=sure, nodes=nodes, reach=self.onwards(reach))

    def onwards(self, reach: Array) -> Array:
        """Let a tree go on to depths that are not recorded, as soon as it can."""
        depths = np.arange(reach.shape[1])
        for d in np.flatnonzero((self.recorded[:, None] <= depths).any(axis=0)).tolist():
            before = reach[:, d - 1] if d else np.zeros(len(reach), np.int32)
            reach[:, d] = np.where(self.recorded <= d, np.minimum(before, ABSENT - 1) + 1, reach[:, d])
        return reach


def check_cells(size: int, name: str, each: int, extra: int = 0) -> None:
    """Refuse a size whose table of ``(size + extra) each`` numbers would have more than ``MOST_CELLS``.

    Raises
    ------
    RequestError
        Naming the largest size that is allowed.
    """
    if (int(size) + extra) * each > MOST_CELLS:
        most = max(MOST_CELLS // each - extra, 0)
        raise RequestError(f"{name}: found {size}; allowed: at most {most} here, as a table has at most 2**28 numbers")


def split_starts(run: Any, rows: int, threads: int | None, nbytes: int) -> None:
    """Call ``run(first, last)`` over ranges of starts, in threads; see ``_jit.split_rollouts``."""
    split_rollouts(run, np.arange(rows + 1), threads=threads, nbytes=nbytes)


def check_tokens(top_ids: Any, tokens: Any) -> tuple[Array, Array]:
    """Give ``top_ids`` (N, D, M) and ``tokens`` (N, D) as int32.

    Raises
    ------
    ValueError
        If shapes or types disagree, an id is too large, or a token follows one past the end.
    """
    ids, words = check_ids(top_ids, "top_ids"), check_ids(tokens, "tokens")
    if ids.ndim != 3 or 0 in ids.shape[1:]:
        raise ValueError(f"top_ids: found shape {ids.shape}; allowed: (N, D, M), M tokens for each start and depth")
    if words.shape != ids.shape[:2]:
        raise ValueError(f"tokens: found shape {words.shape}; allowed: {ids.shape[:2]}, a token for each list")
    after = (words[:, 1:] >= 0) & (words[:, :-1] < 0)
    if after.any():
        s, d = divmod(int(np.argmax(after)), after.shape[1])
        raise ValueError(f"tokens: start {s}, depth {d + 2}: found {words[s, d + 1]} after the end; allowed: -1")
    return ids, words


def check_ids(given: Any, name: str) -> Array:
    """Give integers from -1 on as int32.

    Raises
    ------
    ValueError
        If they are no integers, or one is outside -1 to ``ABSENT``.
    """
    values = np.asarray(given)
    if values.dtype.kind not in "iu" and values.size:
        raise ValueError(f"{name}: found dtype {values.dtype}; allowed: integers")
    if values.dtype != np.int32 and values.size and not -1 <= values.min() <= values.max() <= ABSENT:
        raise ValueError(f"{name}: found {values.min()} to {values.max()}; allowed: -1 to {ABSENT}")
    return np.ascontiguousarray(values, dtype=np.int32)


def places(ids: Array, tokens: Array, threads: int | None) -> Array:
    """Give where each token stands in its list, int32 (N, D): ``UNLISTED`` if it does not, ``NEVER`` past the end."""
    hit = np.empty(tokens.shape, np.int32)
    split_starts(lambda first, last: _numba.find(ids, tokens, first, last, hit), len(ids), threads, ids.nbytes)
    return hit


def _bad_list(ids: Array, log_q: Array, s: int, d: int) -> ValueError:
    row = log_q[s, d]
    falls = np.concatenate(([row[0] <= LOG_TOLERANCE], row[1:] <= row[:-1]))
    m = int(np.argmin(falls & ((ids[s, d] >= 0) | (row == -np.inf))))
    limit = "0" if m == 0 else f"{row[m - 1]}, the entry before it"
    return ValueError(
        f"top_log_q: start {s}, depth {d + 1}, entry {m}: found {row[m]} for token {ids[s, d, m]}; allowed: at most "
        f"{limit}; -inf where the id is -1; NaN only in lists past the end"
    )


def next_tokens(tokens: Any, indptr: Any, depth: int) -> Array:
    """Give the tokens that follow each start, as ``tree_ranks`` takes them.

    Parameters
    ----------
    tokens : array of int, (N,)
    indptr : array of int, (R+1,)
        Rollout ``i`` owns rows ``indptr[i]:indptr[i+1]``.
    depth : int
        ``D``.

    Returns
    -------
    ndarray of int32, (N, D)
        Token ``s+k-1`` at ``[s, k-1]``, -1 past the end of the rollout.

    Raises
    ------
    ValueError
        If ``depth`` is below 1, the offsets do not cover the tokens, or these are no integers.

    Examples
    --------
    >>> from markov_spec.drafting import next_tokens
    >>> next_tokens([5, 6, 7], [0, 2, 3], 2)
    array([[ 5,  6],
           [ 6, -1],
           [ 7, -1]], dtype=int32)
    """
    check_integer(depth, "depth", 1)
    values = check_ids(tokens, "tokens")
    offsets = check_indptr(indptr, len(values) if values.ndim else None)
    at = np.arange(values.size)[:, None] + np.arange(depth)
    ends = np.repeat(offsets[1:], np.diff(offsets))[:, None]
    return np.where(at < ends, values[np.minimum(at, values.size - 1)], np.int32(-1))
