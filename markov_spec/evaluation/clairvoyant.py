"""The least price of all ways to choose a contender for each round: drafters, draft lengths and trees mixed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from markov_spec.acceptance import RULES
from markov_spec.arrays import Array, Exactness, RequestError, RoundLaw
from markov_spec.chain import choose, optimal_choice, solve
from markov_spec.evaluation.contender import Contender, check_price
from markov_spec.evaluation.laws import plan
from markov_spec.evaluation.learned import settled
from markov_spec.evaluation.trees import whole_tree_plan
from markov_spec.latency import Price
from markov_spec.store import Store, open_store

RANGE_BYTES = 64 << 20
NONE, BEST = "none", "clairvoyant"


@dataclass(frozen=True, eq=False, repr=False)
class Clairvoyant:
    """The least expected price of every rollout when each round may follow any of several contenders.

    Parameters
    ----------
    names : tuple of str, (C,)
        The choices; the first is no speculation.
    ids, prompt_ids : tuple of str, (R,)
    tokens : ndarray, (R,)
    price : ndarray of float64, (R,)
        The least one.
    alone : ndarray of float64, (R, C)
        Expected price of always the same choice.
    rounds : ndarray of float64, (R, C)
        Expected rounds that the cheapest way has of each choice.
    exactness : {"exact", "bound", "teacher-forced"}
    """

    names: tuple[str, ...]
    ids: tuple[str, ...]
    prompt_ids: tuple[str, ...]
    tokens: Array
    price: Array
    alone: Array
    rounds: Array
    exactness: Exactness

    def to_frame(self) -> pl.DataFrame:
        """Give a row for each choice, and for the cheapest way to mix them.

        Returns
        -------
        polars.DataFrame
            choice, expected_price over all rollouts, price_per_token, speedup over no speculation, regret (price over
            the least, less 1), share of the cheapest way's rounds.
        """
        tokens, none, least = float(self.tokens.sum()), math.fsum(self.alone[:, 0]), math.fsum(self.price)
        sums = [math.fsum(column) for column in self.alone.T]
        used = self.rounds.sum(axis=0)
        shares = [*(used / max(used.sum(), 1e-300)).tolist(), None]
        return pl.DataFrame(
            [
                {
                    "choice": name,
                    "expected_price": total,
                    "price_per_token": total / tokens if tokens else None,
                    "speedup": none / total if total else None,
                    "regret": total / least - 1 if least else None,
                    "share_of_rounds": share,
                }
                for name, total, share in zip((*self.names, BEST), (*sums, least), shares, strict=True)
            ],
            schema_overrides=dict.fromkeys(("price_per_token", "speedup", "regret", "share_of_rounds"), pl.Float64),
        )

    def __repr__(self) -> str:
        frame = self.to_frame()
        best = frame[:-1].sort("expected_price")[0].to_dicts()[0]
        return (
            f"Clairvoyant({len(self.names)} choices: least price {math.fsum(self.price):.6g} ({self.exactness}); "
            f"best alone {best['choice']} {best['expected_price']:.6g}, regret {best['regret'] or 0:.2%})"
        )

    def _repr_html_(self) -> str:
        return self.to_frame()._repr_html_()


def clairvoyant(
    store: Store | str | Path,
    contenders: Sequence[Contender | str] | Contender | str,
    *,
    price: Price,
    first_start: int = 0,
) -> Clairvoyant:
    """Compute the least expected price of all ways to choose one of several contenders for each round.

    Parameters
    ----------
    store : Store or path
    contenders : sequence of Contender or str
        What may be chosen, of any drafters, rules, draft lengths and trees: ``["quant5:K=1-5", "lookup",
        "block:tree=best-first,budget=16"]``. No speculation is added.
    price : Price
        Of a round.
    first_start : int
        0 when the first token is drafted too, 1 when the prefill emits it.

    Returns
    -------
    Clairvoyant
        What no rule that chooses among these goes below, beside each contender alone.

    Raises
    ------
    RequestError
        If a contender cannot be evaluated on the store, or its rule is lossy.
    ValueError
        If the store is damaged, or the price has no value for a round.

    Notes
    -----
    ``O(C N K)``. The choice may depend on the start and knows the rollout, but not the luck of the round.

    Examples
    --------
    >>> import markov_spec as ms
    >>> from markov_spec.latency import Affine
    >>> best = ms.clairvoyant("data/demo", ["quant5:K=1-4", "lookup:K=4"], price=Affine(1.0, per_depth=.05))
    >>> best.names
    ('none', 'quant5:K=1', 'quant5:K=2', 'quant5:K=3', 'quant5:K=4', 'lookup:K=4')
    >>> bool(best.price.sum() < best.alone.sum(axis=0).min())
    True
    """
    opened = store if isinstance(store, Store) else open_store(store)
    check_price(price)
    if price is None:
        raise RequestError("price: found None; allowed: latency.Table, read_price(FILE), or what has their method of")
    given = [contenders] if isinstance(contenders, str | Contender) else list(contenders)
    named = [one for text in given for one in (Contender.parse_all(text) if isinstance(text, str) else [text])]
    if not named:
        raise RequestError("contenders: found none; allowed: one or more")
    wanted = [settled(opened, one, one.budget or 0) for one in named]
    parts = list(_solved(opened, wanted, price, first_start))
    columns: dict[str, Any] = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    labels = [label for label in columns.pop("exactness") if label != "exact"]
    columns |= {key: tuple(columns[key].tolist()) for key in ("ids", "prompt_ids")}
    return Clairvoyant((NONE, *map(str, named)), **columns, exactness=labels[0] if labels else "exact")


def _solved(store: Store, wanted: list[Contender], price: Price, first_start: int) -> Iterator[dict[str, Array]]:
    facts = store.facts()["drafters"]
    depth = max((facts.get(one.drafter, {}).get("depth") or 8) for one in wanted)
    positions = max(1, RANGE_BYTES // (8 * (depth + 1) * (len(wanted) + 1)))
    for batch in store.batches(positions) if len(store) else (store,):
        laws, prices = _choices(batch, wanted, price)
        best = optimal_choice(laws, prices, first_start=first_start)
        alone = [solve(law, price=own, first_start=first_start) for law, own in zip(laws, prices, strict=True)]
        mixed = solve(choose(laws, best.choice), first_start=first_start)
        rollouts = batch.rollouts()
        at = np.repeat(np.arange(len(rollouts)), np.diff(rollouts.indptr)) * len(laws) + best.choice
        used = np.bincount(at, mixed.occupancy, minlength=len(rollouts) * len(laws))
        yield {
            "ids": np.array(rollouts.ids, dtype=object),
            "prompt_ids": np.array(rollouts.prompt_ids, dtype=object),
            "tokens": alone[0].committed,
            "price": best.value,
            "alone": np.stack([np.asarray(one.price) for one in alone], axis=1),
            "rounds": used.reshape(len(rollouts), len(laws)),
            "exactness": np.array([best.exactness], dtype=object),
        }


def _choices(batch: Store, wanted: list[Contender], price: Price) -> tuple[list[RoundLaw], list[Array]]:
    """Laws and prices of no speculation and of all contenders on a range of rollouts."""
    laws: list[RoundLaw] = []
    prices: list[Array] = []
    for one in (replace(wanted[0], rule="none", tree=None, budget=None, draft_length=None, settings={}), *wanted):
        made = plan(batch, one) if one.tree is None else whole_tree_plan(batch, one)
        if RULES[made.rule].exactness == "teacher-forced":
            raise RequestError(f"contender {one}: found the lossy rule {made.rule!r}; allowed: lossless rules")
        laws.append(made.law(0, len(made.rollouts)))
        prices.append(made.prices(price, laws[-1], 0, len(made.rollouts)))
    return laws, prices
