"""Values that no distribution has, though each of them may stand in a store: sentinels, and mass that is missing."""

from __future__ import annotations

import numpy as np

from markov_spec.arrays import Array, locate
from markov_spec.store.findings import Report, Severity
from markov_spec.store.values import Rows

# What serving stacks and masks write for log 0, as float32.
SENTINELS = np.array(
    [-100, -999, -1000, -9999, -10000, -65504, -99999, -1e5, -1e6, -1e9, -1e10, -1e30, -3.3895314e38, -3.4028235e38],
    dtype=np.float32,
)
# Rounding to bfloat16 moves the sum of a list by less.
MASS_TOLERANCE = 0.01
# Sampled drafts that are all certain are none from so many on.
FEWEST_DRAFTS = 100
# Share of the lists from which on a wrong sum is no accident.
MASS_SHARE = 0.01


class SentinelWatch:
    """Log-probabilities that stand for log 0: exactly a known sentinel, and half as far down no other value."""

    def __init__(self) -> None:
        self._counts = np.zeros(SENTINELS.size, dtype=np.int64)
        self._first = [""] * SENTINELS.size
        self._lowest = 0.0

    def add(self, values: Array, rows: Rows) -> None:
        """Look at values with a row for each position of some rollouts."""
        low = (values < -50) & (values > -np.inf)
        if not low.any():
            return
        found = values[low]
        own = ~np.isin(found, SENTINELS)
        self._lowest = min(self._lowest, float(found[own].min(initial=0)))
        for i in np.flatnonzero(np.isin(SENTINELS, found)):
            cells = values == SENTINELS[i]
            row = int(np.argmax(cells.reshape(len(values), -1).any(axis=1)))
            self._first[i] = self._first[i] or locate(rows.indptr, int(rows.offsets[0]) + row, rows.ids)
            self._counts[i] += np.count_nonzero(cells)

    def tell(self, severity: Severity, where: str, name: str, report: Report) -> bool:
        """Report each sentinel; tell whether there is one."""
        some = False
        for value, count, first in zip(SENTINELS.tolist(), self._counts.tolist(), self._first, strict=True):
            if count and self._lowest > value / 2:
                some = True
                times = f"{count} time{'s' * (count > 1)}"
                meant = "the token was generated, so its log-probability is unknown: record it again"
                if severity != "error":
                    meant = "store -inf where the probability is 0, and record again what is unknown"
                report.add(
                    severity,
                    where,
                    f"{name}: {first}: found {value:.8g}, {times}, a sentinel for log 0; {meant}",
                )
        return some


class MassWatch:
    """Whether the probabilities of a list and of what is outside it sum to 1."""

    def __init__(self) -> None:
        self._lists = self._wrong = 0
        self._first = ""

    def add(self, columns: dict[str, Array], rows: Rows) -> None:
        """Look at the lists of some rollouts; one of NaN was not recorded."""
        logs = columns["log_p"] if "log_p" in columns else columns["log_q"]
        with np.errstate(over="ignore"):
            mass = np.exp(logs.astype(np.float64)).sum(axis=-1)
        some = mass > 0  # a lookup that proposes nothing has an empty list
        wrong = mass > 1 + MASS_TOLERANCE
        if "tail_mass" in columns:
            wrong = np.abs(mass + columns["tail_mass"] - 1) > MASS_TOLERANCE
        wrong &= some
        self._lists += int(np.count_nonzero(some))
        self._wrong += int(np.count_nonzero(wrong))
        if wrong.any() and not self._first:
            cell = tuple(int(i) for i in np.argwhere(wrong)[0])
            self._first = f"{locate(rows.indptr, int(rows.offsets[0]) + cell[0], rows.ids)}"
            self._first += f", depth {cell[1] + 1}" if len(cell) > 1 else ""
            tail = f" and tail_mass {columns['tail_mass'][cell]:.4g}" if "tail_mass" in columns else ""
            self._first += f": found a sum of {mass[cell]:.4g}{tail}"

    def tell(self, where: str, name: str, report: Report) -> None:
        """Report sums that are wrong in more than a few lists."""
        if self._wrong > MASS_SHARE * self._lists:
            report.add(
                "warning",
                where,
                f"{name}: {self._first}; together 1 is right, which {self._wrong} of {self._lists} lists miss by more "
                f"than {MASS_TOLERANCE:g}: cut off, or renormalised; list log-probabilities of the whole vocabulary, "
                "tail_mass the rest",
            )


class ZeroWatch:
    """Whether all log-probabilities are 0."""

    def __init__(self) -> None:
        self._count = 0
        self._zero = True

    def add(self, values: Array) -> None:
        """Look at some values; NaN is none."""
        some = values[~np.isnan(values)]
        self._count += some.size
        self._zero = self._zero and not some.any()

    def all_of(self, fewest: int) -> bool:
        """Whether they are, and at least so many."""
        return self._zero and self._count >= fewest
