"""What the rounds of rollouts cost, from every start."""

from __future__ import annotations

from typing import Any

import numpy as np

from markov_spec.latency.inputs import Floats, Price


def round_prices(price: Price, *, drafted: Any, indptr: Any, prompt_lengths: Any) -> Floats:
    """Give the price of a round from every start of every rollout, drafts in a chain.

    Parameters
    ----------
    price : Price
    drafted : int or array of int, (N,)
        Drafts proposed at each start; those past a rollout's end are neither made nor paid.
    indptr : array of int, (R+1,)
        Rollout ``i`` owns rows ``indptr[i]:indptr[i+1]``.
    prompt_lengths : array of int, (R,)
        Tokens of each rollout's prompt.

    Returns
    -------
    ndarray of float64, (N,)

    Raises
    ------
    ValueError
        If shapes disagree, offsets fall, or the price has no value for a round.

    Notes
    -----
    ``O(N)`` prices. For a tree, or an engine that pays for drafts past the end, call ``price.of``.

    Examples
    --------
    >>> from markov_spec.latency import Affine, round_prices
    >>> round_prices(Affine(10.0, per_draft=1.0, per_context=.01), drafted=2, indptr=[0, 3, 4], prompt_lengths=[100, 7])
    array([13.  , 13.01, 12.02, 11.07])
    """
    offsets = np.asarray(indptr)
    if (
        offsets.ndim != 1
        or offsets.dtype.kind not in "iu"
        or offsets[:1].tolist() != [0]
        or (np.diff(offsets) < 0).any()
    ):
        raise ValueError(f"indptr: found {offsets!r}; allowed: R+1 integers from 0 that never fall")
    prompts, proposed = np.asarray(prompt_lengths), np.asarray(drafted)
    if prompts.shape != (offsets.size - 1,) or (prompts.dtype.kind not in "iu" and prompts.size):
        allowed = f"integers, ({offsets.size - 1},)"
        raise ValueError(f"prompt_lengths: found shape {prompts.shape}, dtype {prompts.dtype}; allowed: {allowed}")
    if proposed.shape not in ((), (int(offsets[-1]),)):
        raise ValueError(f"drafted: found shape {proposed.shape}; allowed: an integer or ({offsets[-1]},)")
    lengths, rows = np.diff(offsets), np.arange(offsets[-1])
    start = rows - np.repeat(offsets[:-1], lengths)
    chain = np.minimum(proposed, np.repeat(lengths, lengths) - start)
    return price.of(chain, chain, np.repeat(prompts.astype(np.int64), lengths) + start)
