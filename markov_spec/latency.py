"""Prices of a round, in seconds or any other unit, from what it drafts and how long its context is.

A round from start ``s`` of a rollout whose prompt has ``P`` tokens drafts ``D`` tokens to depth ``k`` and reads a
context of ``P + s``. A chain has ``D = k = min(K, L[s], T-s)``; in a tree ``D`` counts its nodes. The target verifies
``D + 1`` tokens in one pass.

    affine   base + per_depth k + per_draft D + per_context (P + s)
    table    what was measured at D + 1 verified tokens, and at a context where several were measured

A price of a pass need neither rise nor be convex in its tokens: kernels are switched and tiles filled, so a pass of 9
may cost less than one of 8. A table is therefore read where it was measured, and between two sizes only when told to.
Source of the affine form: Liu et al. 2024, SmartSpec, later TurboSpec (arXiv 2406.14066).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


class Price(Protocol):
    """What a round costs: `Affine`, `Table`, or anything with this method."""

    def of(self, depth: Any, drafted: Any, context: Any) -> Floats:
        """Give the price of rounds, of counts that broadcast; see `Affine.of`."""


@dataclass(frozen=True)
class Affine:
    """A price that rises evenly with the depth, the drafts and the context.

    Parameters
    ----------
    base : float
        Of a round without drafts and context; 0 or more, as are the others.
    per_depth : float
        Of each depth, such as one pass of an autoregressive drafter.
    per_draft : float
        Of each drafted token.
    per_context : float
        Of each token of the context.

    Raises
    ------
    ValueError
        If a coefficient is negative or not finite.

    Examples
    --------
    >>> Affine(20.0, per_depth=1.5, per_draft=.25).of([0, 4], [0, 4], 1000)
    array([20., 27.])
    """

    base: float
    per_depth: float = 0.0
    per_draft: float = 0.0
    per_context: float = 0.0

    def __post_init__(self) -> None:
        for name in ("base", "per_depth", "per_draft", "per_context"):
            _check_prices(np.asarray(getattr(self, name)), name)

    def of(self, depth: Any, drafted: Any, context: Any) -> Floats:
        """Give the price of rounds.

        Parameters
        ----------
        depth, drafted, context : int or array of int
            Depths drafted one after another, drafted tokens, and tokens before the round, of shapes that broadcast.

        Returns
        -------
        ndarray of float64

        Raises
        ------
        ValueError
            If a count is negative or no integer.
        """
        k, d, c = _counts(depth, drafted, context)
        return np.asarray(self.base + self.per_depth * k + self.per_draft * d + self.per_context * c, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Table:
    """A measured price by the number of verified tokens, and by the context if it was measured at several.

    Parameters
    ----------
    sizes : array of int, (S,)
        Verified tokens, drafts and one, rising; 1 is a pass without drafts.
    prices : array of float, (S,) or (C, S)
        0 or more; drafting included or not, as measured.
    contexts : array of int, (C,), optional
        Rising. Between two of them the price is interpolated linearly, as what attention reads grows linearly.
    interpolate : bool
        Whether the price between two sizes is interpolated linearly; otherwise only listed sizes have one.

    Raises
    ------
    ValueError
        If shapes disagree, sizes or contexts do not rise, or a price is negative or not finite.

    Examples
    --------
    >>> table = Table([1, 8, 9], [1.0, 2.97, 2.38])
    >>> table.of(8, [0, 7, 8], 0)
    array([1.  , 2.97, 2.38])
    >>> Table([1, 5], [1.0, 2.0], interpolate=True).of(2, 2, 0)
    array(1.5)
    """

    sizes: Any
    prices: Any
    _: KW_ONLY
    contexts: Any = None
    interpolate: bool = False

    def __post_init__(self) -> None:
        sizes, prices = _rising(self.sizes, "sizes", 1), np.asarray(self.prices)
        contexts = None if self.contexts is None else _rising(self.contexts, "contexts", 0)
        shape = (sizes.size,) if contexts is None else (contexts.size, sizes.size)
        if prices.shape != shape:
            raise ValueError(f"prices: found shape {prices.shape}; allowed: {shape}, one for each context and size")
        _check_prices(prices, "prices")
        for name, value in (("sizes", sizes), ("prices", prices.astype(np.float64)), ("contexts", contexts)):
            object.__setattr__(self, name, value)

    def of(self, depth: Any, drafted: Any, context: Any) -> Floats:
        """Give the price of rounds.

        Parameters
        ----------
        depth, drafted, context : int or array of int
            As for `Affine`; the depth changes nothing, nor does the context if the table has none.

        Returns
        -------
        ndarray of float64

        Raises
        ------
        ValueError
            If a size or context lies outside the table, or a size between two listed ones without ``interpolate``; if
            a count is negative or no integer.

        Notes
        -----
        ``O(log S + log C)`` each.
        """
        _, drafts, tokens = _counts(depth, drafted, context)
        low, part = _place(drafts + 1, self.sizes, "drafted + 1")
        if not self.interpolate and part.any():
            at = np.flatnonzero(part)[0]
            below, above = self.sizes[low.flat[at] :][:2]
            raise ValueError(
                f"drafted + 1: found {drafts.flat[at] + 1}; allowed: {below} or {above}, which the table lists, or any "
                "between with interpolate=True"
            )
        if self.contexts is None:
            return _read(self.prices[None], np.zeros_like(low), low, part)
        row, share = _place(tokens, self.contexts, "context")
        after = np.minimum(row + 1, self.contexts.size - 1)
        return np.asarray(
            (1 - share) * _read(self.prices, row, low, part) + share * _read(self.prices, after, low, part)
        )


PRICES: dict[str, type[Price]] = {"affine": Affine, "table": Table}


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


def _check_prices(values: npt.NDArray[Any], name: str) -> None:
    if values.dtype.kind not in "iuf":
        raise ValueError(f"{name}: found dtype {values.dtype}; allowed: finite numbers >= 0")
    bad = ~((values >= 0) & (values < np.inf))
    if bad.any():
        raise ValueError(f"{name}: found {values[bad][0]}; allowed: a finite number >= 0")


def _rising(given: Any, name: str, least: int) -> Integers:
    values = np.asarray(given)
    if values.ndim != 1 or values.dtype.kind not in "iu" or values.size == 0:
        raise ValueError(f"{name}: found shape {values.shape}, dtype {values.dtype}; allowed: one integer or more")
    if values[0] < least or (np.diff(values) <= 0).any():
        raise ValueError(f"{name}: found {values.tolist()}; allowed: integers that rise, from {least} or more")
    return values.astype(np.int64)


def _counts(*given: Any) -> list[Integers]:
    """Broadcast depth, drafted tokens and context."""
    arrays = [np.asarray(values) for values in given]
    for name, values in zip(("depth", "drafted", "context"), arrays, strict=True):
        if values.dtype.kind not in "iu" or (values < 0).any():
            found = values.dtype if values.dtype.kind not in "iu" else values[values < 0].flat[0]
            raise ValueError(f"{name}: found {found}; allowed: integers >= 0")
    return [np.asarray(values, dtype=np.int64) for values in np.broadcast_arrays(*arrays)]


def _place(values: Integers, listed: Integers, name: str) -> tuple[Integers, Floats]:
    """Find each value between two listed ones: the lower one's index, and the share of the way to the next."""
    outside = (values < listed[0]) | (values > listed[-1])
    if outside.any():
        found = values[outside].flat[0]
        raise ValueError(f"{name}: found {found}; allowed: {listed[0]} to {listed[-1]}, as the table lists")
    low = np.searchsorted(listed, values, side="right") - 1
    step = np.append(np.diff(listed), 1)
    return low, (values - listed[low]) / step[low]


def _read(prices: Floats, row: Integers, low: Integers, part: Floats) -> Floats:
    """Interpolate between two sizes in the given rows."""
    high = np.minimum(low + 1, prices.shape[1] - 1)
    return np.asarray((1 - part) * prices[row, low] + part * prices[row, high])
