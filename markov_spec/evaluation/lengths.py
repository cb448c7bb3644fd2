"""Every draft length of a contender at once, and what each costs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from markov_spec.arrays import Array, RequestError, RoundLaw, check_integer
from markov_spec.chain import solve
from markov_spec.evaluation.contender import LONGEST_DRAFT, Contender, as_contender, check_price
from markov_spec.evaluation.laws import plans
from markov_spec.evaluation.runs import LENGTHS, PRICED, quotients
from markov_spec.latency import Price
from markov_spec.store import Store, open_store

LONGEST = 8  # of an autoregressive drafter, which records none
SCHEMA: dict[str, Any] = {
    "draft_length": pl.Int64,
    **dict.fromkeys(("rounds", *LENGTHS, "drafted", "wasted", *PRICED), pl.Float64),
    "exactness": pl.String,
}


def length_curve(
    store: Store | str | Path,
    contender: Contender | str,
    *,
    longest: int | None = None,
    price: Price | None = None,
    first_start: int = 0,
    level: float = 0.95,
) -> pl.DataFrame:
    """Compute rounds, drafts and price of a contender at every draft length, from one reading of the record.

    Parameters
    ----------
    store : Store or path
    contender : Contender or str
        ``"block"``, ``"quant5:rule=block"``: a chain, without a draft length.
    longest : int, optional
        The largest draft length; by default what was recorded, 8 for an autoregressive drafter.
    price : Price, optional
        Of a round.
    first_start : int
        0 when the first token is drafted too, 1 when the prefill emits it.
    level : float
        Of the intervals, by leaving prompts out, as ``comparison.ratio_interval``.

    Returns
    -------
    polars.DataFrame
        A row for each draft length from 0, no speculation: draft_length, rounds (expected), pooled_length and its
        interval, drafted (proposed drafts) and wasted (those not accepted), expected_price and price_per_token in the
        price's unit, speedup over no speculation and its interval (null without a price), exactness.

    Raises
    ------
    RequestError
        If the contender has a draft length or a tree, the record is shorter than ``longest``, or lacks what the rule
        needs.
    ValueError
        If the store is damaged, or the price has no value for a round.

    Notes
    -----
    ``O(N K^2)``.

    Examples
    --------
    >>> import markov_spec as ms
    >>> curve = ms.length_curve("data/demo", "quant5", longest=3)
    >>> [round(length, 3) for length in curve["pooled_length"]]
    [1.0, 1.786, 2.399, 2.874]
    """
    opened, given = store if isinstance(store, Store) else open_store(store), as_contender(contender)
    if given.draft_length is not None or given.tree is not None:
        raise RequestError(f"contender {given}: found a draft length or a tree; allowed: neither, as all are computed")
    check_price(price)
    depth = longest
    if depth is None:
        facts = opened.facts()["drafters"].get(given.drafter) or {"depth": None}
        depth = LONGEST if facts["depth"] is None else facts["depth"]
    check_integer(depth, "longest", 0)
    if depth > LONGEST_DRAFT:
        raise RequestError(f"longest: found {depth}; allowed: 0 to {LONGEST_DRAFT}")
    found: dict[str, list[Array]] = {name: [] for name in ("rounds", "drafted", "accepted", "price")}
    prompts: list[str] = []
    tokens: list[Array] = []
    exactness = "exact"
    for chosen in plans(opened, replace(given, draft_length=depth)):
        for first, last in chosen.chunks():
            law, rows = chosen.law(first, last), []
            exactness = law.exactness
            prompts += chosen.rollouts.prompt_ids[first:last]
            for k in range(depth + 1):
                cut = shortened(law, k)
                cost = None if price is None else chosen.prices(price, cut, first, last)
                solved = solve(cut, first_start=first_start, price=cost)
                accepted = solved.accepted_histogram @ np.arange(cut.depth + 1)
                rows.append((solved.expected, solved.drafted, accepted, solved.price))
            tokens.append(solved.committed)
            for name, columns in zip(found, zip(*rows, strict=True), strict=True):
                if columns[0] is not None:
                    found[name].append(np.stack(columns))
    joined = {name: np.concatenate(parts, axis=1) for name, parts in found.items() if parts}
    committed = np.concatenate(tokens)
    return pl.DataFrame(
        [_row(k, joined, committed, prompts, level) | {"exactness": exactness} for k in range(depth + 1)], schema=SCHEMA
    )


def _row(k: int, joined: dict[str, Array], tokens: Array, prompts: list[str], level: float) -> dict[str, Any]:
    rounds, drafted = joined["rounds"][k], math.fsum(joined["drafted"][k])
    paid = (joined["price"][k], joined["price"][0]) if "price" in joined else None
    return {
        "draft_length": k,
        "rounds": math.fsum(rounds),
        "drafted": drafted,
        "wasted": drafted - math.fsum(joined["accepted"][k]),
        **quotients(tokens, rounds, paid, prompts, level),
    }


def shortened(law: RoundLaw, depth: int) -> RoundLaw:
    """Give the law of rounds that draft at most ``depth`` tokens."""
    length = np.minimum(np.asarray(law.draft_length), depth)
    accept = law.accept if law.form == "positions" else law.accept[:, :depth]
    return RoundLaw.trusted(accept, law.indptr, length if length.ndim else int(length), law.exactness)
