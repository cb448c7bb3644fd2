"""The node budget of a contender's trees: what each costs, the best one, and how far it is from the best there is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from markov_spec.arrays import Array, RequestError, check_integer
from markov_spec.comparison.cells import Cells, html_lines, html_table
from markov_spec.drafting import (
    BUDGET_RULES,
    BestFirst,
    Chain,
    Sequoia,
    TreeRounds,
    clairvoyant_budgets,
    tree_rounds,
)
from markov_spec.evaluation.contender import Contender, as_contender, check_price
from markov_spec.evaluation.learned import LEARNED_HERE, is_learned, settled
from markov_spec.evaluation.lists import check_rollouts, held_out
from markov_spec.evaluation.ranked import Ranked, expected, ranked
from markov_spec.evaluation.runs import SCHEMA, Runs, fixed_budgets, gathered
from markov_spec.latency import Price
from markov_spec.store import Store, open_store

MOST_FOR_RULES = 8192
NONE, FIXED, ORACLE, CLAIRVOYANT = "none", "fixed", "per-round oracle", "clairvoyant"
CHOSEN_HERE = "the fixed budget was chosen on the rollouts that it is quoted on; holdout=0.5 chooses it on others"


def budget_curve(
    store: Store | str | Path,
    contender: Contender | str,
    *,
    budgets: Iterable[int],
    price: Price | None = None,
    first_start: int = 0,
    rollouts: Any = None,
    level: float = 0.95,
) -> pl.DataFrame:
    """Compute rounds, pooled length and price of a contender's trees at every budget, from one reading of the record.

    Parameters
    ----------
    store : Store or path
    contender : Contender or str
        A drafter whose lists were recorded, ``"block"`` (best-first) or ``"block:tree=eagle2,beam=8"``; no budget.
    budgets : iterable of int
        Nodes, the root not counted. 0, no speculation, is added.
    price : Price, optional
        Of a round, such as ``latency.read_price("measured.csv")``.
    first_start : int
        0 when the first token is drafted too, 1 when the prefill emits it.
    rollouts : array of bool, (R,), optional
        Which rollouts the figures are of; all by default. What ``static``, ``medusa`` and ``sequoia`` trees are made of
        is measured on these, too.
    level : float
        Of the intervals, by leaving prompts out, as ``comparison.ratio_interval``.

    Returns
    -------
    polars.DataFrame
        A row for each budget: budget, rounds, nodes_per_round, pooled_length and its interval pooled_low to
        pooled_high, expected_price and price_per_token in the price's unit, speedup over no speculation and its
        interval (null without a price), uncertain_rounds, exactness.

    Raises
    ------
    RequestError
        If the store has not what the trees are made of, or a budget is no integer of 0 or more.
    ValueError
        If the store is damaged, or the price has no value for a round.

    Notes
    -----
    The ranks of all budgets at once (see ``drafting.tree_ranks``), and a walk through each rollout for each budget.

    Examples
    --------
    >>> import tempfile, numpy as np, markov_spec as ms
    >>> from markov_spec.latency import Affine
    >>> lists = {"ids": np.array([[[5, 6]], [[7, 6]], [[5, 7]]]), "log_q": np.log([[[.6, .3]]] * 3)}
    >>> drafts = ms.Drafts("block", "block", "rejection", np.log([[.6], [.3], [.3]]), parts={"lists": lists})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ms.write_store(f"{folder}/run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.array([5, 6, 7]),
    ...         indptr=[0, 3], log_p=np.log([.5, .9, .4]), drafters={"block": drafts})
    ...     curve = ms.budget_curve(store, "block", budgets=[1, 2], price=Affine(10.0, per_draft=2.0))
    >>> curve.select("budget", "rounds", "pooled_length", "expected_price", "speedup").rows()
    [(0, 3, 1.0, 30.0, 1.0), (1, 2, 1.5, 24.0, 1.25), (2, 2, 1.5, 28.0, 1.0714285714285714)]
    """
    opened, wanted, sizes = _asked(store, contender, budgets, price, level)
    chosen = check_rollouts(opened, rollouts)
    made = settled(opened, wanted, sizes[-1], chosen)
    runs = gathered(fixed_budgets(opened, made, sizes, price, first_start), first_start)
    rows = [{"budget": n, **runs.row(i, chosen, level)} for i, n in enumerate(sizes)]
    return pl.DataFrame(rows, schema=SCHEMA)


@dataclass(frozen=True, eq=False, repr=False)
class BudgetOptimum:
    """The best fixed budget, rules that set one for each round, and the best of all choices. From ``optimal_budget``.

    Parameters
    ----------
    contender : str
    budget : int
        The best fixed budget, chosen on the training rollouts if some were held out; 0 is no speculation.
    frame : polars.DataFrame
        A row for each rule, of training and of held-out rollouts: see ``optimal_budget``.
    notes : tuple of str
        What the figures do not say by themselves.
    held_out : tuple of str
        Prompts that chose and trained nothing.
    """

    contender: str
    budget: int
    frame: pl.DataFrame
    notes: tuple[str, ...]
    held_out: tuple[str, ...] = ()

    def to_frame(self) -> pl.DataFrame:
        """Give ``frame``."""
        return self.frame

    def __repr__(self) -> str:
        group = self.frame["rollouts"][-1]
        rows = self.frame.filter(pl.col("rollouts") == group).to_dicts()
        told = ", ".join(f"{row['rule']} {row['speedup']:.4f}" for row in rows if row["speedup"] is not None)
        notes = "".join(f"\nnote: {note}" for note in self.notes)
        return f"BudgetOptimum({self.contender}: best fixed budget {self.budget}; speed-up, {group}: {told}){notes}"

    def _repr_html_(self) -> str:
        forms = {
            "budget": "{}", "rounds": "{}", "nodes_per_round": "{:.2f}", "pooled_length": "{:.4f}",
            "price_per_token": "{:.4g}", "speedup": "{:.4f}", "regret": "{:+.2%}", "exactness": "{}",
        }  # fmt: skip
        rows = [
            (
                row["rollouts"],
                row["rule"],
                *("-" if row[k] is None else form.format(row[k]) for k, form in forms.items()),
            )
            for row in self.frame.to_dicts()
        ]
        titles = ("rollouts", "rule", *(name.replace("_", " ") for name in forms))
        told = f"{self.contender}: best fixed budget {self.budget}"
        notes = html_lines(f"note: {note}" for note in self.notes)
        return html_lines([told]) + html_table(Cells(titles, "ll" + "r" * (len(forms) - 1) + "l", rows)) + notes


def optimal_budget(
    store: Store | str | Path,
    contender: Contender | str,
    *,
    budgets: Iterable[int],
    price: Price,
    holdout: float = 0.0,
    seed: int = 0,
    first_start: int = 0,
    level: float = 0.95,
) -> BudgetOptimum:
    """Find the budget of the least expected price, and compare rules that set one for each round.

    Parameters
    ----------
    store : Store or path
    contender : Contender or str
        As in `budget_curve`.
    budgets : iterable of int
        To choose the fixed one from, besides 0. Rules and the clairvoyant choose from all up to the largest.
    price : Price
        Of a round.
    holdout : float
        Share of the prompts to be held out: what is chosen or learned is so on the others, and all is quoted on both.
    seed : int
        Of the split.
    first_start, level
        As in `budget_curve`.

    Returns
    -------
    BudgetOptimum
        Rules: ``none``, no speculation; ``fixed``, the best budget (of equal ones the smallest); those of
        ``drafting.BUDGET_RULES``, which read the drafter's own probabilities, of ``best-first`` and ``chain`` trees,
        ``marginal`` with the tokens per unit that the best fixed budget attains; ``per-round oracle``, the most tokens
        committed per unit in each round by itself; ``clairvoyant``, the least price of all choices by start. ``regret``
        is the price over the clairvoyant's, less 1. ``sequoia``, whose trees are not nested, has the first two. For one
        request ``prefix`` is ``first-drop`` but where throughput stays equal.

    Raises
    ------
    RequestError, ValueError
        As `budget_curve`; if the share held out leaves no prompt on a side.

    Notes
    -----
    ``O(N n)`` for the rules. The clairvoyant knows the rollout: no engine attains it. The per-round oracle knows it,
    too, and may do worse, as an acceptance can land on a worse start.

    Examples
    --------
    >>> import markov_spec as ms
    >>> from markov_spec.latency import Table
    >>> price = Table([1, 5, 9], [1.0, 1.2, 2.0], between="stair")
    >>> best = ms.optimal_budget("data/demo", "block", budgets=[4, 8], price=price, holdout=0.5)
    >>> best.budget
    4
    """
    opened, wanted, sizes = _asked(store, contender, budgets, price, level)
    if price is None:
        raise RequestError("price: found None; allowed: latency.Table, read_price(FILE), or what has their method of")
    train = ~held_out(opened, holdout, seed)
    made = settled(opened, wanted, sizes[-1], train)
    fixed = gathered(fixed_budgets(opened, made, sizes, price, first_start), first_start)
    paid: Any = fixed.price
    sums = [math.fsum(column) for column in paid[train].T]
    best = min(range(len(sizes)), key=lambda i: sums[i])
    ways = {NONE: (fixed, 0), FIXED: (fixed, best)}
    if sizes[-1] > MOST_FOR_RULES:
        raise RequestError(
            f"budgets: found {sizes[-1]}; allowed: up to {MOST_FOR_RULES}, as rules look at all up to it"
        )
    if not isinstance(made.tree, Sequoia):
        lam = float(fixed.tokens[train].sum()) / sums[best] if sums[best] > 0 else 0.0
        names, ruled = _ruled(opened, made, sizes[-1], price, lam, first_start)
        ways |= {name: (ruled, i) for i, name in enumerate(names) if name != NONE}
    groups = {"all": train} if train.all() else {"train": train, "held-out": ~train}
    frame = pl.DataFrame(
        [
            row
            if row["rule"] not in (FIXED, "marginal") or not fixed.uncertain[train].any()
            else {**row, "exactness": "bound"}
            for group, chosen in groups.items()
            for row in _rows(group, chosen, ways, sizes[best], level)
        ],
        schema={"rollouts": pl.String, "rule": pl.String, **SCHEMA, "regret": pl.Float64},
    )
    held = tuple(dict.fromkeys(name for name, own in zip(fixed.prompt_ids, train, strict=True) if not own))
    return BudgetOptimum(str(wanted), sizes[best], frame, tuple(_notes(frame, wanted)), held)


def _asked(
    store: Store | str | Path, contender: Contender | str, budgets: Iterable[int], price: Any, level: float
) -> tuple[Store, Contender, list[int]]:
    if not isinstance(budgets, Iterable) or not isinstance(level, float) or not 0 < level < 1:
        raise RequestError(f"budgets, level: found {budgets!r}, {level!r}; allowed: integers, and a number from 0 to 1")
    check_price(price)
    given, sizes = as_contender(contender), list(budgets)
    if given.budget is not None:
        raise RequestError(f"contender {given}: found budget={given.budget}; allowed: none, as budgets tells them")
    for n in sizes:
        check_integer(n, "budgets", 0)
    wanted = given if given.tree is not None else replace(given, tree=BestFirst.name)
    return store if isinstance(store, Store) else open_store(store), wanted, sorted({0, *map(int, sizes)})


def _ruled(
    store: Store, contender: Contender, most: int, price: Price, lam: float, first_start: int
) -> tuple[list[str], Runs]:
    """Decode with no speculation and with the budgets of rules; the names of the rules, and what all take."""
    names: list[str] = []

    def parts() -> Iterator[tuple[Ranked, TreeRounds]]:
        for some in ranked(store, contender, most, cells=8 * (most + 1)):
            nodes = np.arange(most + 1)
            if some.ranks.gaps is not None:
                nodes = nodes - _counts_to(some.ranks.gaps, most)
            nodes = np.minimum(nodes, np.asarray(some.ranks.nodes)[:, None])
            prices = price.of(_counts_to(some.ranks.reach, most), nodes, some.contexts[:, None])
            ways = _choices(some, contender.tree, most, prices, lam, first_start)
            names[:] = ways
            chosen, doubted = (np.stack(own, axis=1) for own in zip(*ways.values(), strict=True))
            paid, offsets = np.take_along_axis(prices, chosen, axis=1), some.rollouts.indptr
            yield (
                some,
                tree_rounds(some.ranks, offsets, budgets=chosen, prices=paid, doubted=doubted, first_start=first_start),
            )

    runs = gathered(parts(), first_start)
    return names, runs


def _choices(
    some: Ranked, builder: Any, most: int, prices: Array, lam: float, first_start: int
) -> dict[str, tuple[Array, Array]]:
    """Budgets by start of every rule, (N,), and whether what is recorded leaves them open."""
    rows = len(prices)
    never = np.zeros(rows, dtype=bool)
    found = {NONE: (np.zeros(rows, np.int64), never)}
    worth = expected(some, builder, most)
    if worth is not None:
        values, sure = worth
        for name, rule in BUDGET_RULES.items():
            budgets = rule(values, prices, **({"lam": lam} if name == "marginal" else {}))
            looked = most if name == "full-scan" else np.minimum(budgets + 1, most)
            found[name] = budgets, sure < looked
    unsure = np.asarray(some.ranks.exact_to) < most  # both look at all budgets
    gained = np.minimum(1 + _counts_to(some.ranks.rank, most), some.left[:, None])
    rate = gained / np.maximum(prices, np.finfo(float).tiny)
    found[ORACLE] = np.argmax(rate, axis=1), unsure
    offsets = some.rollouts.indptr
    later = np.concatenate([[0], np.cumsum(unsure)])  # the choice from a start looks at all later ones
    best = clairvoyant_budgets(some.ranks, offsets, budgets=np.arange(most + 1), prices=prices, first_start=first_start)
    reachable = np.repeat(later[offsets[1:]], np.diff(offsets)) - later[:-1]
    found[CLAIRVOYANT] = best.choice.astype(np.int64), reachable > 0
    return found


def _counts_to(ranks: Any, most: int) -> Array:
    """How many of each row's ranks are at most 0, 1, ..., ``most``: (N, most + 1)."""
    steps = np.zeros((len(ranks), most + 2), np.int32)
    for column in np.minimum(ranks, most + 1).T:
        steps[np.arange(len(steps)), column] += 1
    counts: Array = np.cumsum(steps[:, : most + 1], axis=1)
    return counts


def _rows(
    group: str, chosen: Array, ways: dict[str, tuple[Runs, int]], budget: int, level: float
) -> Iterator[dict[str, Any]]:
    rows = {name: runs.row(column, chosen, level) for name, (runs, column) in ways.items()}
    least = rows[CLAIRVOYANT]["expected_price"] if CLAIRVOYANT in rows else None
    for name, row in rows.items():
        regret = row["expected_price"] / least - 1 if least else None
        yield {"rollouts": group, "rule": name, "budget": {NONE: 0, FIXED: budget}.get(name), **row, "regret": regret}


def _notes(frame: pl.DataFrame, contender: Contender) -> Iterator[str]:
    group = frame["rollouts"][-1]
    price = {row["rule"]: row["expected_price"] for row in frame.to_dicts() if row["rollouts"] == group}
    if group == "all":
        yield CHOSEN_HERE
        if is_learned(contender):
            yield LEARNED_HERE
    if isinstance(contender.tree, str) and contender.tree in (BestFirst.name, Chain.name) and "full-scan" not in price:
        yield "rules that read the drafter's probabilities need its lists or beams, which are not there"
    if "first-drop" in price and price["full-scan"] < price["first-drop"]:
        more = price["first-drop"] / price["full-scan"] - 1
        yield f"to stop at the first drop of throughput costs {more:.2%} more than a full scan: the price has stairs"
    if ORACLE in price and price[ORACLE] > price[CLAIRVOYANT]:
        more = price[ORACLE] / price[CLAIRVOYANT] - 1
        yield f"the best of each round by itself costs {more:.2%} more than the best of all choices: it is no bound"
