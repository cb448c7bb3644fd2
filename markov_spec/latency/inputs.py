"""What a price is, and the checks that all prices share."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
FINITE = "a finite number >= 0"


class Price(Protocol):
    """What a round costs: `Affine`, `Table`, `Roofline`, or anything with this method."""

    def of(self, depth: Any, drafted: Any, context: Any) -> Floats:
        """Give the price of rounds, of counts that broadcast; see `Affine.of`."""


def check_prices(given: Any, name: str) -> Floats:
    """Refuse what are not finite numbers of 0 or more."""
    values = np.asarray(given)
    if values.dtype.kind not in "iuf":
        raise ValueError(f"{name}: found dtype {values.dtype}; allowed: finite numbers >= 0")
    bad = ~((values >= 0) & (values < np.inf))
    if bad.any():
        raise ValueError(f"{name}: found {values[bad][0]}; allowed: {FINITE}")
    return values.astype(np.float64)


def check_price(given: Any, name: str) -> None:
    """Refuse what is not one finite number of 0 or more."""
    if (shape := check_prices(given, name).shape) != ():
        raise ValueError(f"{name}: found shape {shape}; allowed: {FINITE}")


def check_count(given: Any, name: str) -> None:
    """Refuse what is not an integer of 1 or more; a bool is none."""
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 1:
        raise ValueError(f"{name}: found {given!r}; allowed: an integer >= 1")


def rising(given: Any, name: str, least: int) -> Integers:
    """Give integers that rise from ``least`` or more."""
    values = np.asarray(given)
    if values.ndim != 1 or values.dtype.kind not in "iu" or values.size == 0:
        raise ValueError(f"{name}: found shape {values.shape}, dtype {values.dtype}; allowed: one integer or more")
    if values[0] < least or (np.diff(values) <= 0).any():
        raise ValueError(f"{name}: found {values.tolist()}; allowed: integers that rise, from {least} or more")
    return values.astype(np.int64)


def counts(*given: Any) -> list[Integers]:
    """Check depth, drafted tokens and context, each in its own shape: a grid is cheap along its axes."""
    arrays = [np.asarray(values) for values in given]
    for name, values in zip(("depth", "drafted", "context"), arrays, strict=True):
        if values.dtype.kind not in "iu" or (values.size and values.min() < 0):
            found = values.dtype if values.dtype.kind not in "iu" else values[values < 0].flat[0]
            raise ValueError(f"{name}: found {found}; allowed: integers >= 0")
    return [values.astype(np.int64, copy=False) for values in arrays]


def drafting(depth: Integers, drafted: Integers, per_call: float, per_depth: float) -> Floats:
    """Give what drafting costs: ``per_call`` where anything is drafted, and ``per_depth`` for each depth."""
    if not per_depth:
        return np.asarray(per_call * (drafted > 0))
    return np.asarray(per_call * (drafted > 0) + per_depth * depth)


def as_rounds(prices: Floats, *given: Integers) -> Floats:
    """Give prices the shape that depth, drafted tokens and context have together."""
    shape = np.broadcast_shapes(*(values.shape for values in given))
    return np.asarray(prices) if prices.shape == shape else np.array(np.broadcast_to(prices, shape))
