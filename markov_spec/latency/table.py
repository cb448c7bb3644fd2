"""A measured price, read where it was measured.

The price of a pass need neither rise nor be convex in its tokens, so what lies between two sizes is not known. A pass
can be padded to the next larger listed size: this price, the stair, is one that can be had. Linear interpolation is a
guess, which passes over steps.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from markov_spec.latency.inputs import (
    Floats,
    Integers,
    as_rounds,
    check_count,
    check_price,
    check_prices,
    counts,
    rising,
)

Between = Literal["refuse", "stair", "linear"]
BETWEEN: tuple[Between, ...] = get_args(Between)


@dataclass(frozen=True, eq=False)
class Table:
    """A measured price by the number of verified tokens, and by context and batch if it was measured at several.

    Parameters
    ----------
    sizes : array of int, (S,)
        Tokens of a request that the target verifies in one pass, drafts and one, rising; 1 is a pass without drafts.
    prices : array of float, (S,), (C, S), (B, S) or (B, C, S)
        Of the whole pass, of all requests of a batch, in any unit; 0 or more.
    contexts : array of int, (C,), optional
        Tokens before the round, rising. Between two of them the price is interpolated linearly, as what attention
        reads grows linearly. Without them the price is the same at every context.
    batches : array of int, (B,), optional
        Requests that a pass serves, rising; 1 if none are given.
    batch : int
        Which of them `of` prices.
    between : {"refuse", "stair", "linear"}
        Whether a size between two listed ones has no price, that of the next larger listed size, to which an engine can
        pad, or one interpolated linearly; ``"linear"`` also for a batch between two listed ones, which is otherwise
        refused. Outside the listed ones there is never a price.
    per_call : float or array of float
        Paid once by a round that drafts anything, such as the pass of a block drafter: in addition to ``prices``, and
        of a shape that broadcasts to theirs. At size 1 it is not paid, only the end of an interpolation.
    per_depth : float
        Paid for each depth, such as one pass of an autoregressive drafter.
    unit : str, optional
        Of all prices, such as ``"seconds"``: told with figures, and changes none.

    Raises
    ------
    ValueError
        If shapes disagree, sizes, contexts or batches do not rise, the batch is not listed, or a price is negative or
        not finite.

    Examples
    --------
    >>> from markov_spec.latency import Table
    >>> table = Table([1, 8, 9], [1.0, 2.97, 2.38], between="stair")
    >>> table.of(8, [0, 1, 7, 8], 0)
    array([1.  , 2.97, 2.97, 2.38])
    >>> Table([1, 5], [[1.0, 2.0], [3.0, 9.0]], batches=[1, 8], per_call=.5).at_batch(8).of(4, [0, 4], 0)
    array([3. , 9.5])
    """

    sizes: Any
    prices: Any
    _: KW_ONLY
    contexts: Any = None
    batches: Any = None
    batch: int = 1
    between: Between = "refuse"
    per_call: Any = 0.0
    per_depth: float = 0.0
    unit: str | None = None
    _drafts: Integers = field(init=False, repr=False)
    _paid: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.between not in BETWEEN:
            raise ValueError(f"between: found {self.between!r}; allowed: {', '.join(BETWEEN)}")
        sizes, prices = rising(self.sizes, "sizes", 1), check_prices(self.prices, "prices")
        contexts = None if self.contexts is None else rising(self.contexts, "contexts", 0)
        batches = None if self.batches is None else rising(self.batches, "batches", 1)
        shape = tuple(axis.size for axis in (batches, contexts, sizes) if axis is not None)
        if prices.shape != shape:
            each = "one for each batch, context and size"
            raise ValueError(f"prices: found shape {prices.shape}; allowed: {shape}, {each}")
        call = check_prices(self.per_call, "per_call")
        if call.ndim > len(shape) or any(n not in (1, m) for n, m in zip(call.shape[::-1], shape[::-1], strict=False)):
            raise ValueError(f"per_call: found shape {call.shape}; allowed: what broadcasts to {shape}, that of prices")
        check_price(self.per_depth, "per_depth")
        for name, value in (("sizes", sizes), ("prices", prices), ("contexts", contexts), ("batches", batches)):
            object.__setattr__(self, name, value)
        self._settle(call)

    def _settle(self, call: Floats) -> None:
        """Keep the prices of the chosen batch, (C, S) or (C, S+1), by drafts.

        A round without drafts pays no call, one of an interpolated size past it does: hence 0 drafts are listed twice.
        """
        drafts, paid = self.sizes - 1, self.prices + call
        if drafts[0] == 0:
            drafts = np.concatenate(([0], drafts))
            paid = np.concatenate((self.prices[..., :1], paid), axis=-1)
        row, share = self._batch()
        if self.batches is not None:
            after = min(row + 1, len(paid) - 1)
            paid = paid[row] if share == 0 else (1 - share) * paid[row] + share * paid[after]
        object.__setattr__(self, "_drafts", drafts)
        object.__setattr__(self, "_paid", paid.reshape(-1, drafts.size))

    def _batch(self) -> tuple[int, float]:
        """Find the chosen batch: the row of the lower listed one, and the share of the way to the next."""
        check_count(self.batch, "batch")
        listed = np.array([1]) if self.batches is None else self.batches
        outside = not listed[0] <= self.batch <= listed[-1]
        if outside or (self.between != "linear" and self.batch not in listed):
            told = "as no batch is listed" if self.batches is None else "which the table lists"
            raise ValueError(f"batch: found {self.batch}; allowed: {', '.join(map(str, listed))}, {told}")
        row, share = _place(np.asarray(self.batch), listed)
        return int(row), float(share)

    def at_batch(self, batch: int) -> Table:
        """Give this table with the prices of another batch.

        Parameters
        ----------
        batch : int
            Requests that a pass serves.

        Returns
        -------
        Table

        Raises
        ------
        ValueError
            If the batch is not listed, or, with ``between="linear"``, lies outside the listed ones.
        """
        return replace(self, batch=batch)

    def of(self, depth: Any, drafted: Any, context: Any) -> Floats:
        """Give the price of rounds.

        Parameters
        ----------
        depth, drafted, context : int or array of int
            As for `Affine`; the context changes nothing if the table has none.

        Returns
        -------
        ndarray of float64

        Raises
        ------
        ValueError
            If a size or context lies outside the table, or a size between two listed ones with ``between="refuse"``;
            if a count is negative or no integer.

        Notes
        -----
        ``O(log S + log C)`` each; on a grid, drafts along one axis and contexts along another, ``O(1)``.
        """
        k, d, c = counts(depth, drafted, context)
        _inside(d + 1, self.sizes, "drafted + 1")
        high = np.searchsorted(self._drafts, d)  # a round without drafts finds the first entry, which pays no call
        if self.between == "linear":
            low = np.maximum(high - 1, 0)
            step = self._drafts[high] - self._drafts[low]
            part = np.where(step == 0, 1.0, (d - self._drafts[low]) / np.maximum(step, 1))
            verified = self._at(c, low, 1 - part) + self._at(c, high, part)
        else:
            if self.between == "refuse":
                self._refuse_between(d, high)
            verified = self._at(c, high, None)
        total = verified + self.per_depth * k if self.per_depth else verified
        return as_rounds(np.asarray(total), k, d, c)

    def _refuse_between(self, drafts: Integers, high: Integers) -> None:
        between = self._drafts[high] != drafts
        if between.any():
            at, found = high[between].flat[0], drafts[between].flat[0] + 1
            raise ValueError(
                f"drafted + 1: found {found}; allowed: {self._drafts[at - 1] + 1} or {self._drafts[at] + 1}, which the "
                'table lists, or any between with between="stair" or "linear"'
            )

    def _at(self, context: Integers, column: Integers, weight: Floats | None) -> Floats:
        """Read a column at each context, times a weight."""
        flat, width = self._paid.ravel(), self._drafts.size
        if self.contexts is None:
            found = flat.take(column)
        else:
            _inside(context, self.contexts, "context")
            row, share = _place(context, self.contexts)
            after = np.minimum(row + 1, self.contexts.size - 1)
            found = (1 - share) * flat.take(row * width + column) + share * flat.take(after * width + column)
        return np.asarray(found if weight is None else weight * found)


def _inside(values: Integers, listed: Integers, name: str) -> None:
    if not values.size or (listed[0] <= values.min() and values.max() <= listed[-1]):
        return
    found = values[(values < listed[0]) | (values > listed[-1])].flat[0]
    raise ValueError(f"{name}: found {found}; allowed: {listed[0]} to {listed[-1]}, as the table lists")


def _place(values: Integers, listed: Integers) -> tuple[Integers, Floats]:
    """Find each value between two listed ones: the lower one's index, and the share of the way to the next."""
    low = np.searchsorted(listed, values, side="right") - 1
    step = np.append(np.diff(listed), 1)
    return low, (values - listed[low]) / step[low]
