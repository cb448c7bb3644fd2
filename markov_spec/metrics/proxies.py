"""Trainers' and calculators' stand-ins for the pooled length, each under its own name; none is the pooled length.

``a[s,k]`` is the acceptance of depth ``k`` from start ``s``, ``S[s,k]`` its running product over ``k``, ``o[s]`` the
overlap ``sum_v min(p, q)``, ``hit[s,k]`` whether the drafter's likeliest token is the rollout's::

    eal                   sum_k prod_{i<=k} mean_s hit[s,i]          no bonus token; SpecForge: simulated_acc_len
    marginal length       1 + sum_k prod_{i<=k} mean_s a[s,i]
    tau                   mean_s (1 + sum_k prod_{i<=k} o[s,i])
    uniform start length  mean_s (1 + sum_k S[s,k])
    iid length            sum_{k=0..K} alpha^k = (1 - alpha^(K+1)) / (1 - alpha)

The pooled length weighs starts by the probability that a round begins there, and rounds begin where drafts were just
rejected. All of these weigh starts alike, and none knows that the last round of a rollout is cut.
"""

from __future__ import annotations

from math import fsum
from typing import Any

import numpy as np
import numpy.typing as npt

from markov_spec.metrics.rates import infinite_horizon_length, prefix_rates


def eal(correct: Any, observed: Any) -> float | None:
    """Multiply accuracies by depth and add up: the expected accepted length that speculators prints while training.

    Parameters
    ----------
    correct : array_like of float, (K,)
        Starts whose draft at depth ``k`` is the token.
    observed : array_like of int, (K,)
        Starts that have a token at depth ``k``: a depth past the end of a rollout is no data.

    Returns
    -------
    float or None
        Drafts per round, the target's own token left out; None if a depth was never observed: its accuracy is unknown,
        not the 0 that a trainer's division by at least 1 makes of it.

    Raises
    ------
    ValueError
        If the shapes differ, or more are correct than observed.

    Notes
    -----
    Peers: ``eal`` of vLLM speculators (its ``models/dflash/metrics.py``), there averaged over batches; SpecForge's and
    AngelSpec's ``simulated_acc_len`` is the same formula on an evaluation set. Both judge the target's likeliest token,
    which is the rollout's only if that was decoded greedily. What it gets wrong: hits come in runs, so the chance of
    ``k`` in a row is not a product of means; starts count alike; sampled drafts are accepted by another rule.

    Examples
    --------
    >>> eal([50, 50, 50], [100, 100, 100])  # half of the blocks all right, half all wrong: 1.5 are accepted on average
    0.875
    """
    rates = _marginal_rates(correct, observed)
    return None if rates is None else fsum(prefix_rates(rates, kind="conditional"))


def marginal_length(accepted: Any, observed: Any) -> float | None:
    """Multiply mean acceptances by depth, add up, and add the target's own token.

    Parameters
    ----------
    accepted : array_like of float, (K,)
        Acceptance of depth ``k``, summed over starts.
    observed : array_like of int, (K,)
        Starts that have a token at depth ``k``.

    Returns
    -------
    float or None
        Tokens per round, the target's own included; None if a depth was never observed.

    Raises
    ------
    ValueError
        If the shapes differ, or more are accepted than observed.

    Notes
    -----
    Peers: what follows from the ``accept_rate@k`` that DeepSpec and speculators log, which are means over the starts
    with a token at depth ``k``. What it gets wrong: as `eal`, but for the rule.

    Examples
    --------
    >>> marginal_length([50, 50, 50], [100, 100, 100])
    1.875
    """
    rates = _marginal_rates(accepted, observed)
    return None if rates is None else infinite_horizon_length(rates, kind="conditional")


def start_lengths(accept: Any) -> npt.NDArray[np.float64]:
    """Give ``1 + sum_k prod_{i<=k} accept[s,i]`` of every start.

    Parameters
    ----------
    accept : array_like of float, (N, K)
        From 0 to 1; NaN past the end of a rollout, where the product ends.

    Returns
    -------
    ndarray of float64, (N,)
        Tokens, from 1 to ``K+1``.

    Raises
    ------
    ValueError
        If ``accept`` has another shape, or a value outside [0, 1].

    Notes
    -----
    ``O(N K)``.

    Examples
    --------
    >>> import numpy as np
    >>> start_lengths([[.5, .5], [1, np.nan]])
    array([1.75, 2.  ])
    """
    cells = np.asarray(accept, dtype=np.float64)
    if cells.ndim != 2:
        raise ValueError(f"accept: found shape {cells.shape}; allowed: (N, K), depth 1..K")
    outside = (cells < 0) | (cells > 1)
    if outside.any():
        s, k = np.unravel_index(int(np.argmax(outside)), cells.shape)
        raise ValueError(f"accept: start {s}, depth {k + 1}: found {cells[s, k]}; allowed: 0 to 1, NaN past an end")
    lengths: npt.NDArray[np.float64] = 1 + np.cumprod(np.nan_to_num(cells), axis=1).sum(axis=1)
    return lengths


def tau(overlap: Any) -> float | None:
    """Average over starts the running products of overlaps: DeepSpec's ``tau_probabilistic``.

    Parameters
    ----------
    overlap : array_like of float, (N, K)
        ``sum_v min(p, q)``, one less the total variation, at ``(s, k)``; NaN past the end of a rollout.

    Returns
    -------
    float or None
        Tokens per round, the target's own included; None without starts.

    Raises
    ------
    ValueError
        If ``overlap`` has another shape, or a value outside [0, 1].

    Notes
    -----
    Peers: ``tau_probabilistic`` of DeepSpec (``modeling/dspark/loss.py``), ``accept_len`` of speculators' DSpark and
    of SpecForge's. They too end a product where a block leaves the answer, and count the block. What it gets wrong:
    an accepted draft is distributed as ``min(p, q)`` and not as the target's token, so overlaps must not be multiplied
    along the target's rollouts (`uniform_start_length`, by the tokens' own acceptance, is unbiased for its starts);
    starts count alike.

    Examples
    --------
    >>> tau([[.6, 1], [.6, 0]])  # p = (.5, .5), q = (.9, .1); the models agree after the first token only. Exact: 2.1
    1.9
    """
    return _mean(start_lengths(overlap))


def uniform_start_length(accept: Any) -> float | None:
    """Average over all starts the tokens of a round that begins there.

    Parameters
    ----------
    accept : array_like of float, (N, K)
        Acceptance ``a[s,k]`` of the rollout's token; NaN past the end of a rollout.

    Returns
    -------
    float or None
        Tokens per round, the target's own included; None without starts.

    Raises
    ------
    ValueError
        If ``accept`` has another shape, or a value outside [0, 1].

    Notes
    -----
    Peers: ``tau_greedy`` of DeepSpec's EAGLE-3 and the ``accept_len`` of SpecForge's block drafters, over random
    anchors; blocks that leave the answer end there, and count. What it gets wrong: each round is right, but rounds do
    not start everywhere alike. A round leaps over easy text and stops in hard text, so most figures come out too high.

    Examples
    --------
    >>> uniform_start_length([[1, 1], [.2, 0]])  # the case of `tau`, by the tokens' own min(1, q/p)
    2.1
    """
    return _mean(start_lengths(accept))


def iid_length(alpha: float, draft_length: int) -> float:
    """Give the length of endless rounds that accept each draft with the same chance.

    Parameters
    ----------
    alpha : float
        Mean acceptance or mean overlap of a drafter, from 0 to 1.
    draft_length : int
        ``K``.

    Returns
    -------
    float
        ``(1 - alpha^(K+1)) / (1 - alpha)`` tokens per round, the target's own included; ``K+1`` for ``alpha = 1``.

    Raises
    ------
    ValueError
        If ``alpha`` is outside [0, 1].

    Notes
    -----
    Peers: Leviathan et al. 2023 (arXiv 2211.17192), DSI (arXiv 2405.14105), and the calculators after them. What it
    gets wrong: acceptance varies from token to token and comes in runs, and falls with depth for block drafters.

    Examples
    --------
    >>> iid_length(.5, 2)
    1.75
    """
    return infinite_horizon_length([alpha] * draft_length, kind="conditional")


def _marginal_rates(accepted: Any, observed: Any) -> list[float] | None:
    sums, counts = np.asarray(accepted, dtype=np.float64), np.asarray(observed, dtype=np.float64)
    if sums.ndim != 1 or sums.shape != counts.shape:
        raise ValueError(f"observed: found shape {counts.shape} for {sums.shape} sums; allowed: both (K,)")
    bad = ~((sums >= 0) & (sums <= counts))
    if bad.any():
        k = int(np.argmax(bad))
        raise ValueError(f"depth {k + 1}: found {sums[k]:g} of {counts[k]:g} starts; allowed: 0 to all of them")
    return None if (counts == 0).any() else (sums / counts).tolist()


def _mean(values: npt.NDArray[np.float64]) -> float | None:
    return fsum(values) / values.size if values.size else None
