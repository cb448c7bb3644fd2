"""What a store's rollouts are like, where that decides how far a pooled figure can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from markov_spec._jit import kernel
from markov_spec.arrays import Array, check_indptr
from markov_spec.comparison.winners import DOMINANT, SHIFT
from markov_spec.metrics import largest_share, leave_one_out, pooled_length

NGRAM = 4
REPETITIVE = 0.9  # share of repeated n-grams above which a rollout is degenerate


@kernel
def _count_repeated(tokens: Array, indptr: Array, length: int, repeated: Array) -> None:
    """Count, for each rollout, the n-grams that occurred in it before: a hash table of where each was first seen."""
    longest = 0
    for i in range(indptr.size - 1):
        longest = max(longest, indptr[i + 1] - indptr[i])
    size = 16
    while size < 2 * longest:
        size *= 2
    seen = np.empty(size, np.int64)
    for i in range(indptr.size - 1):
        seen[:] = -1
        count = 0
        for s in range(indptr[i], indptr[i + 1] - length + 1):
            code = np.uint64(0)
            for j in range(length):
                code = (code ^ np.uint64(tokens[s + j])) * np.uint64(0x9E3779B97F4A7C15)
                code ^= code >> np.uint64(29)
            slot = np.int64(code & np.uint64(size - 1))
            while seen[slot] >= 0:
                same = True
                for j in range(length):
                    if tokens[seen[slot] + j] != tokens[s + j]:
                        same = False
                        break
                if same:
                    count += 1
                    break
                slot = (slot + 1) & (size - 1)
            else:
                seen[slot] = s
        repeated[i] = count


def repeated_share(tokens: Any, indptr: Any) -> npt.NDArray[np.float64]:
    """Share of each rollout's 4-grams that occurred in it before.

    Parameters
    ----------
    tokens : array of int, (N,)
        Token ids, rollout after rollout.
    indptr : array of int, (R+1,)

    Returns
    -------
    ndarray of float64, (R,)
        0 for a rollout of fewer than 4 tokens.

    Notes
    -----
    ``O(N)``. Degenerate text, such as random prompts without a chat template bring about, is easy to draft: above 0.9
    a rollout is called repetitive.

    Examples
    --------
    >>> repeated_share([7] * 500 + [1, 2, 3, 4, 5], [0, 500, 505])
    array([0.99798793, 0.        ])
    """
    values = np.ascontiguousarray(tokens, dtype=np.int64)
    offsets = check_indptr(indptr, len(values))
    repeated = np.empty(offsets.size - 1, np.int64)
    _count_repeated(values, offsets, NGRAM, repeated)
    share: npt.NDArray[np.float64] = repeated / np.maximum(np.diff(offsets) - NGRAM + 1, 1)
    return share


def workload_warnings(committed: Array, rounds: Array, prompt_ids: Sequence[str], repetitive: Array) -> list[str]:
    """Tell what a pooled length hides: degenerate rollouts, and one prompt that decides it.

    Parameters
    ----------
    committed, rounds : ndarray, (R,)
        Tokens and expected rounds.
    prompt_ids : sequence of str, (R,)
    repetitive : ndarray of bool, (R,)

    Returns
    -------
    list of str
    """
    told = []
    count, whole = int(repetitive.sum()), pooled_length(committed, rounds)
    if count and whole is not None:
        kept = pooled_length(committed[~repetitive], rounds[~repetitive])
        left = (
            "no rollout is left"
            if kept is None
            else f"pooled length {kept:.4f} without {'it' if count == 1 else 'them'}"
        )
        told.append(
            f"{count} of {len(repetitive)} rollouts {'is' if count == 1 else 'are'} repetitive (more than "
            f"{REPETITIVE:.0%} of their {NGRAM}-grams repeat): {left}, {whole:.4f} with"
        )
    lengths = leave_one_out(committed, rounds, prompt_ids)
    if len(lengths) > 1 and whole is not None:
        prompt, share = largest_share(committed, prompt_ids)
        low, high = min(lengths.values()), max(lengths.values())
        if share > DOMINANT or max(whole - low, high - whole) > SHIFT * whole:
            told.append(
                f"few prompts decide the pooled length: prompt {prompt!r} holds {share:.0%} of the tokens, and leaving "
                f"one prompt out gives {low:.4f} to {high:.4f}"
            )
    return told
