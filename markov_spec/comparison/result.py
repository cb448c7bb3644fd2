"""The result of a comparison, and how it reads."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any, Literal

import polars as pl

from markov_spec.comparison.cells import (
    MOST_PAIRS,
    basis,
    contender_cells,
    figure,
    html_lines,
    html_table,
    pair_cells,
    unit,
)
from markov_spec.comparison.measures import Name
from markov_spec.comparison.pairs import NEAR

Frame = Literal["pairs", "contenders", "benchmarks", "winners", "variance_account"]
OPENING = {
    "better": "{contender} is better than {baseline}",
    "worse": "{contender} is worse than {baseline}",
    "near-tie": "Near-tie of {contender} and {baseline} (may be below {near:.2g} %)",
    "equivalent": "{contender} and {baseline} are equivalent within {margin:.2g} %",
    "undecided": "No difference shown between {contender} and {baseline}",
}


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Contenders compared pair by pair. Made by ``compare_vectors``, which lists the columns of the frames.

    Parameters
    ----------
    measure : {"tokens_per_round", "price_per_token"}
        What the winner and the primary pair are chosen by.
    primary : tuple of str
        Contender and baseline of the pair that the comparison is about.
    baseline : str or None
        As it was declared.
    pairs, contenders, benchmarks, winners, variance_account : polars.DataFrame
    prompts, rollouts : int
        Of each contender, with something to decode.
    level : float
    margin : float or None
    price_unit : str or None
        Of a price, such as ``"seconds"``, if it is known.
    notes : tuple of str
        What the figures do not say by themselves.
    """

    measure: Name
    primary: tuple[str, str]
    baseline: str | None
    pairs: pl.DataFrame
    contenders: pl.DataFrame
    benchmarks: pl.DataFrame
    winners: pl.DataFrame
    variance_account: pl.DataFrame
    prompts: int
    rollouts: int
    level: float
    margin: float | None
    notes: tuple[str, ...]
    price_unit: str | None = None

    def own(self, name: Frame) -> pl.DataFrame:
        """Give the rows of a frame that are in the comparison's own measure."""
        frame: pl.DataFrame = getattr(self, name)
        return frame.filter(pl.col("measure") == self.measure)

    def pair(self, contender: str, baseline: str) -> dict[str, Any]:
        """Give the row of a pair, in the comparison's own measure.

        Parameters
        ----------
        contender, baseline : str
            As they stand in ``pairs``.

        Returns
        -------
        dict

        Raises
        ------
        ValueError
            If there is no such pair.
        """
        own = self.own("pairs")
        for row in own.iter_rows(named=True):
            if (row["contender"], row["baseline"]) == (contender, baseline):
                return row
        allowed = ", ".join(f"{a!r} against {b!r}" for a, b in own.select("contender", "baseline").rows())
        raise ValueError(f"pair: found {contender!r} against {baseline!r}; allowed: {allowed}")

    @property
    def headline(self) -> str:
        """The primary pair in a sentence."""
        row = self.pair(*self.primary)
        near = 100 * (self.margin or NEAR)
        told = OPENING[row["verdict"]].format(**row | {"margin": near, "near": near})
        values = (figure(row[name], self.measure) for name in ("value", "baseline_value"))
        return f"{told}: {' against '.join(values)} {unit(self)}, {self._effect(row)}{self._chance(row)}"

    def _effect(self, row: dict[str, Any]) -> str:
        ends = [row[name] for name in ("ratio", "ratio_low", "ratio_high") if row[name] is not None]
        effects = [100 * (end - 1) for end in ends]
        digits = 1 if max(map(abs, effects)) >= 1 else 2
        shown = [f"{effect:+.{digits}f}" for effect in effects]
        told = f"{100 * self.level:g} % interval {shown[1]} to {shown[2]}" if len(shown) == 3 else "no interval"
        return f"{shown[0]} % ({told})"

    def _chance(self, row: dict[str, Any]) -> str:
        if row["p"] is None:
            return ", not tested: one prompt"
        names = self.contenders["contender"].n_unique()
        count = names * (names - 1) // 2 if self.baseline is None else names - 1
        corrected = f", {row['p_holm']:.2g} corrected for {count} pairs" if count > 1 else ""
        alike = "" if row["p_equivalence"] is None else f", p of equivalence {row['p_equivalence']:.2g}"
        return f", p = {row['p']:.2g}{corrected}{alike}"

    def to_frame(self) -> pl.DataFrame:
        """Give ``pairs``."""
        return self.pairs

    def __repr__(self) -> str:
        count = self.contenders["contender"].n_unique()
        notes = "".join(f"\nnote: {note}" for note in self.notes)
        rollouts = f"{self.rollouts} rollout{'s' * (self.rollouts != 1)}"
        prompts = f"{self.prompts} prompt{'s' * (self.prompts != 1)}"
        return f"Comparison({count} contenders, {rollouts} of {prompts}: {self.headline}){notes}"

    def _repr_html_(self) -> str:
        cells = contender_cells(self), pair_cells(self, MOST_PAIRS)
        left = self.own("pairs").height - MOST_PAIRS
        lines = [basis(self)] + [f"{left} more pairs in .pairs"] * (left > 0) + [f"note: {note}" for note in self.notes]
        return f"<p><strong>{escape(self.headline)}</strong></p>{''.join(map(html_table, cells))}{html_lines(lines)}"
