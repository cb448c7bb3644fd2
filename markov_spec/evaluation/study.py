"""All that a report on several contenders of a store shows, gathered once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from markov_spec.arrays import Array
from markov_spec.chain import round_distribution
from markov_spec.comparison import Comparison
from markov_spec.evaluation.attribution import Attribution, attribute
from markov_spec.evaluation.comparing import compared
from markov_spec.evaluation.contender import Contender
from markov_spec.evaluation.lengths import LONGEST, SCHEMA, length_curve
from markov_spec.evaluation.result import Evaluation
from markov_spec.evaluation.tracing import range_law, settled_on, trace_rollout
from markov_spec.latency import Price
from markov_spec.store import Store, open_store

MOST_SHOWN = 8
SPREAD_ROLLOUTS, SPREAD_TOKENS, SPREAD_WIDTH = 128, 4096, 2.0
TRACED = 6


@dataclass(frozen=True, eq=False, repr=False)
class Study:
    """Contenders of a store, compared and looked into. Made by ``study``.

    Parameters
    ----------
    facts : mapping
        Of the store, as ``Store.facts``.
    comparison : Comparison
    evaluations : tuple of Evaluation
        Of every contender.
    shown : tuple of str
        Contenders that charts show: the primary pair and the best of the others, eight at most.
    spread : polars.DataFrame
        ``contender``, ``rounds_per_100``, ``share``: the distribution, over runs of decoding, of the rounds that 100
        tokens of a rollout take, in steps of two rounds; exact of the rollouts counted by ``spread_rollouts``.
    spread_rollouts : int
        Spread evenly over the store, of at most 4096 tokens.
    sweeps : polars.DataFrame
        As ``length_curve``, with the column ``contender``, of each shown drafter and rule that is a chain.
    sweep_of : mapping of str to str
        What a shown contender that is a chain is called in ``sweeps``.
    sweep_notes : tuple of str
    attribution : Attribution
        Of the primary pair: what its baseline loses or gains, rounds of the baseline less those of the contender.
    traces : mapping of str to (polars.DataFrame, polars.DataFrame)
        By rollout, those in which the primary pair differs most: ``trace_rollout`` of contender and baseline.
    price : Price or None
    """

    facts: Mapping[str, Any]
    comparison: Comparison
    evaluations: tuple[Evaluation, ...]
    shown: tuple[str, ...]
    spread: pl.DataFrame
    spread_rollouts: int
    sweeps: pl.DataFrame
    sweep_of: Mapping[str, str]
    sweep_notes: tuple[str, ...]
    attribution: Attribution
    traces: Mapping[str, tuple[pl.DataFrame, pl.DataFrame]]
    price: Price | None

    def __repr__(self) -> str:
        return f"Study({self.facts['store']}: {self.comparison.headline})"

    def _repr_html_(self) -> str:
        return self.comparison._repr_html_()


def study(
    store: Store | str | Path,
    contenders: Sequence[Contender | str] | None = None,
    *,
    baseline: Contender | str | None = None,
    price: Price | None = None,
    first_start: int = 0,
    level: float = 0.95,
    margin: float | None = None,
    resamples: int = 9999,
    rng: int = 0,
    on_step: Callable[[str], None] = lambda told: None,
) -> Study:
    """Compare contenders and gather what explains the difference: the content of a report.

    Parameters
    ----------
    store, contenders, baseline, price, first_start, level, margin, resamples, rng
        As in `compare`.
    on_step : callable, optional
        Called with a few words before each step, for progress.

    Returns
    -------
    Study
        ``report.write_report`` makes a page of it.

    Raises
    ------
    RequestError, ValueError
        As `compare`.

    Notes
    -----
    Some ten evaluations' time. Memory grows with the number of rollouts, not of tokens.

    Examples
    --------
    >>> import markov_spec as ms
    >>> found = ms.study("data/demo", ["quant5", "drop1", "lookup"])
    >>> found.shown, found.spread_rollouts
    (('drop1', 'quant5', 'lookup'), 128)
    """
    opened = store if isinstance(store, Store) else open_store(store)
    options: dict[str, Any] = {"level": level, "margin": margin, "resamples": resamples, "rng": rng}
    own = compared(
        opened, contenders, baseline=baseline, price=price, first_start=first_start, on_step=on_step, **options
    )
    found = own.comparison
    shown = _shown(found)
    named = {str(one): one for one in own.contenders}
    on_step("distribution of the rounds")
    rows = _spread_rows(opened)
    made = {name: settled_on(opened, named[name]) for name in shown}  # a learned tree is measured once
    spread = pl.concat([_spread(opened, name, one, rows, first_start) for name, one in made.items()])
    on_step("draft lengths")
    free = {name: replace(named[name], draft_length=None) for name in shown if named[name].tree is None}
    sweeps, notes = _sweeps(opened, [(named[name], one) for name, one in free.items()], price, first_start, level)
    on_step("attribution")
    why = attribute(opened, *(named[name] for name in found.primary), first_start=first_start)
    on_step("rollouts")
    traces = {}
    for name in why.rollouts["rollout"].head(TRACED):
        one, other = (trace_rollout(opened, made[each], name, first_start=first_start) for each in found.primary)
        traces[name] = (one, other)
    return Study(
        facts=opened.facts(), comparison=found, evaluations=tuple(own.evaluations), shown=shown, spread=spread,
        spread_rollouts=rows.size, sweeps=sweeps, sweep_of={name: str(one) for name, one in free.items()},
        sweep_notes=notes, attribution=why, traces=traces, price=price,
    )  # fmt: skip


def _shown(found: Comparison) -> tuple[str, ...]:
    ranked = found.own("contenders").sort("pooled", descending=found.measure == "tokens_per_round")["contender"]
    return tuple(dict.fromkeys([*found.primary, *ranked]))[:MOST_SHOWN]


def _spread_rows(store: Store) -> Array:
    lengths = np.diff(store.index[1])
    rows = np.flatnonzero((lengths > 0) & (lengths <= SPREAD_TOKENS))
    return rows[np.unique(np.linspace(0, rows.size - 1, SPREAD_ROLLOUTS).astype(int))] if rows.size else rows


def _spread(store: Store, name: str, made: Contender, rows: Array, first_start: int) -> pl.DataFrame:
    """Mix the distributions of ``rounds / tokens`` of the rollouts, each with the same weight."""
    bins: Array = np.zeros(int(100 / SPREAD_WIDTH) + 1)
    ranges = [(0, len(store))] if rows.size == len(store) else [(int(row), int(row) + 1) for row in rows]
    for first, last in ranges:
        found = round_distribution(range_law(store.batch(first, last), made).law, first_start=first_start)
        for mass in (found.pmf(i) for i in range(last - first)):
            if mass.size > 1:
                at = 100 * np.arange(mass.size) / (mass.size - 1) / SPREAD_WIDTH
                bins += np.bincount((at + 1e-9).astype(int), mass, minlength=bins.size)
    share: Array = bins / np.maximum(bins.sum(), np.finfo(float).tiny)
    kept = np.flatnonzero(share > 1e-6)
    inside = slice(max(int(kept.min()) - 1, 0), int(kept.max()) + 2) if kept.size else slice(0, 0)
    steps = np.arange(bins.size) * SPREAD_WIDTH
    return pl.DataFrame(
        {"contender": [name] * steps[inside].size, "rounds_per_100": steps[inside], "share": share[inside]},
        schema_overrides={"contender": pl.String},
    )


def _sweeps(
    store: Store,
    shown: Sequence[tuple[Contender, Contender]],
    price: Price | None,
    first_start: int,
    level: float,
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Every draft length of chains, given with and without their own, up to the longest asked for or recorded."""
    longest: dict[str, int] = {}
    chains, notes = {}, []
    for one, free in shown:
        chains[str(free)] = free
        longest[str(free)] = max(longest.get(str(free), LONGEST), one.draft_length or 0)
    curves = [pl.DataFrame(schema={"contender": pl.String, **SCHEMA})]
    for name, one in chains.items():
        fixed = store.facts()["drafters"][one.drafter]["depth"]
        most = None if fixed else longest[name]
        try:
            curve = length_curve(store, one, price=price, longest=most, first_start=first_start, level=level)
        except ValueError as error:
            if price is None:
                raise
            notes.append(f"{name}: not every draft length has a price, so tokens per round alone are told ({error})")
            curve = length_curve(store, one, longest=most, first_start=first_start, level=level)
        curves.append(curve.select(pl.lit(name).alias("contender"), pl.all()))
    return pl.concat(curves), tuple(notes)
