"""What chance does to quotients of sums over prompts: prompts drawn again, and contenders exchanged within prompts.

*Bootstrap.* Prompts are drawn with replacement, all contenders keeping what they did on them. The interval is the
bias-corrected and accelerated one: with ``z0 = Phi^-1(share of the draws below the estimate)``, the skewness ``a`` of
what leaving one prompt out does, and ``z`` the lower end of a standard normal interval, its ends are the quantiles

    Phi(z0 + (z0 + z) / (1 - a (z0 + z)))   and the same of -z

Draws of ``P`` prompts vary less than samples of that size do, so ``z`` is Student's times ``sqrt(P / (P-1))``.

*Sign flips.* If two contenders are alike, exchanging them on any prompts is as likely as not. ``p`` is the share of the
exchanges whose absolute log ratio is at least the one found: of all ``2^k`` where at most 14 prompts tell them apart,
else of random ones and the one found, which therefore counts in any case. It is never 0.

*Holm.* Of ``m`` p-values the ``i``-th smallest is multiplied by ``m-i+1``, and none is less than one before it.
Source: Efron, JASA 82 (1987), the interval; Hesterberg, Am. Stat. 69 (2015), its width; Phipson and Smyth, Stat. Appl.
Genet. Mol. Biol. 9 (2010), p-values of draws; Holm, Scand. J. Stat. 6 (1979).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

from markov_spec.comparison.vectors import Array

MOST_ENUMERATED = 14
BLOCK = 1 << 20  # prompts drawn at a time
ROUNDING = 1e-12  # of a log ratio


def bootstrap_sums(sums: Array, resamples: int, rng: np.random.Generator) -> Array:
    """Draw prompts with replacement: what each row of sums by prompt, (N, P), then comes to, (N, B)."""
    rows, count = sums.shape
    found = np.empty((rows, resamples))
    for first, last in _blocks(resamples, count):
        drawn = rng.integers(0, count, (last - first, count))
        cells = drawn + np.arange(last - first)[:, None] * count
        times = np.bincount(cells.ravel(), minlength=cells.size).reshape(cells.shape).astype(np.float64)
        # einsum, since BLAS may round otherwise at another number of threads.
        found[:, first:last] = np.einsum("np,bp->nb", sums, times)
    return found


def flipped_sums(sums: Array, resamples: int, rng: np.random.Generator) -> Array:
    """Give each prompt a random sign: what each row of sums by prompt, (N, P), then comes to, (N, B)."""
    rows, count = sums.shape
    found = np.empty((rows, resamples))
    for first, last in _blocks(resamples, count):
        signs = 1.0 - 2.0 * rng.integers(0, 2, (last - first, count), dtype=np.int8)
        found[:, first:last] = np.einsum("np,bp->nb", sums, signs)
    return found


def bca_interval(drawn: Array, found: float, left_out: Array, level: float) -> tuple[float, float]:
    """Ends of the bias-corrected and accelerated interval; NaN where no draw is on one side of the estimate.

    Parameters
    ----------
    drawn : ndarray, (B,)
        The estimate of each draw.
    found : float
        The estimate.
    left_out : ndarray, (P,)
        The estimate without each prompt in turn.
    level : float

    Returns
    -------
    tuple of float
    """
    share = (np.sum(drawn < found) + np.sum(drawn <= found)) / (2 * drawn.size)
    apart = np.mean(left_out) - left_out
    spread = float(np.sum(apart**2))
    skewness = float(np.sum(apart**3)) / spread**1.5 / 6 if spread > 0 else 0.0
    bias = ndtri(share)
    if not np.isfinite(bias) or not np.isfinite(skewness):
        return np.nan, np.nan
    count = left_out.size
    wide = stdtrit(count - 1, (1 + level) / 2) * np.sqrt(count / (count - 1))
    ends = bias + np.array([-wide, wide])
    low, high = np.quantile(drawn, ndtr(bias + ends / (1 - skewness * ends)))
    return float(low), float(high)


def sign_flip_p(
    top: tuple[Array, Array], bottom: tuple[Array, Array], flips: tuple[Array, Array, Array, Array]
) -> tuple[float, bool]:
    """Two-sided p-value of two contenders' log ratio, and whether it is of all exchanges.

    Parameters
    ----------
    top, bottom : tuple of ndarray, (P,) each
        Sums by prompt of both contenders.
    flips : tuple of ndarray, (B,) each
        Signed sums as from `flipped_sums`: both contenders' top, both contenders' bottom.

    Returns
    -------
    p : float
    exact : bool
    """
    wholes = sum(map(np.sum, top)), sum(map(np.sum, bottom))
    apart = np.stack((top[0] - top[1], bottom[0] - bottom[1]))
    telling = np.any(apart != 0, axis=0)
    found = abs(_log_ratio(wholes, apart.sum(1)))
    count = int(telling.sum())
    exact = count <= MOST_ENUMERATED
    if exact:
        # Exchanging all prompts changes the sign only, so the first one may stay.
        half = 2 ** max(count - 1, 0)
        signs = 1.0 - 2.0 * (np.arange(half)[:, None] >> np.arange(count) & 1)
        signed = np.einsum("sp,bp->sb", apart[:, telling], signs[:, ::-1])
    else:
        signed = np.stack((flips[0] - flips[1], flips[2] - flips[3]))
    reached = int(np.sum(np.abs(_log_ratio(wholes, signed)) >= found - ROUNDING))
    return (reached / signed.shape[1] if exact else (1 + reached) / (1 + signed.shape[1])), exact


def holm(p: Array) -> Array:
    """Correct p-values for their number, so that any false finding among them is as rare as one alone.

    Parameters
    ----------
    p : ndarray, (m,)

    Returns
    -------
    ndarray, (m,)
    """
    order = np.argsort(p, kind="stable")
    found = np.empty(p.size)
    found[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)), 1.0)
    return found


def _log_ratio(wholes: tuple[float, float], apart: Array) -> Array:
    # Of sums a, b with a + b = whole and a - b = apart, top over bottom.
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = [np.log(whole + side) - np.log(whole - side) for whole, side in zip(wholes, apart, strict=True)]
        found: Array = ratios[0] - ratios[1]
    return found


def _blocks(resamples: int, count: int) -> Iterator[tuple[int, int]]:
    step = max(BLOCK // max(count, 1), 1)
    for first in range(0, resamples, step):
        yield first, min(first + step, resamples)
