"""The verb compare on a store: contenders, their evaluations as vectors, and what these say of themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from markov_spec.arrays import RequestError
from markov_spec.comparison import Comparison, compare_vectors
from markov_spec.evaluation.contender import Contender, as_contender, check_price
from markov_spec.evaluation.evaluating import evaluate
from markov_spec.evaluation.result import Evaluation
from markov_spec.evaluation.workload import NGRAM, REPETITIVE
from markov_spec.latency import Price, Table
from markov_spec.metrics import pooled_length
from markov_spec.store import Store, open_store

MOST_NAMED = 8


def compare(
    store: Store | str | Path,
    contenders: Sequence[Contender | str] | None = None,
    *,
    baseline: Contender | str | None = None,
    price: Price | None = None,
    unit: Literal["rounds", "price"] | None = None,
    first_start: int = 0,
    level: float = 0.95,
    margin: float | None = None,
    resamples: int = 9999,
    rng: int | np.random.Generator = 0,
) -> Comparison:
    """Compare contenders on the rollouts of a store, prompt by prompt.

    Parameters
    ----------
    store : Store or path
    contenders : sequence of Contender or str, optional
        Chains, lengths, rules and trees mixed freely; all drafters by default.
    baseline : Contender or str, optional
        What the best of the others is compared with; without it the best is compared with the best of another drafter,
        or with the runner-up where all are of one. It is added if it is none of the contenders.
    price : Price, optional
        Of a round: compares the expected price of the rollouts, too, and gives speed-ups over no speculation. Its
        attribute ``unit``, if it has one, is told with the figures.
    unit : {"rounds", "price"}, optional
        What decides who is best: the price, if one is given.
    first_start : int
        0 when the first token is drafted too, 1 when the prefill emits it.
    level, margin, resamples, rng
        As in ``comparison.compare_vectors``.

    Returns
    -------
    Comparison

    Raises
    ------
    RequestError, ValueError
        As `evaluate` and ``comparison.compare_vectors``.

    Notes
    -----
    Decoding luck is not in the figures: they are expectations given the rollouts. The prompts are.

    Examples
    --------
    >>> import markov_spec as ms
    >>> print(ms.compare("data/demo", ["quant5", "drop1"], baseline="quant5").headline)  # doctest: +ELLIPSIS
    Near-tie of drop1 and quant5 (may be below 1 %): 3.6558 against 3.5404 tokens per round, +3.3 % ...
    """
    options: dict[str, Any] = {"unit": unit, "level": level, "margin": margin, "resamples": resamples, "rng": rng}
    return compared(store, contenders, baseline=baseline, price=price, first_start=first_start, **options).comparison


@dataclass(frozen=True)
class Compared:
    """A comparison with the contenders and the evaluations that it is of."""

    contenders: list[Contender]
    evaluations: list[Evaluation]
    comparison: Comparison


def compared(
    store: Store | str | Path,
    contenders: Sequence[Contender | str] | None,
    *,
    baseline: Contender | str | None,
    price: Price | None,
    first_start: int,
    on_step: Callable[[str], None] = lambda told: None,
    **options: Any,
) -> Compared:
    """Compare as `compare`, and keep what it is of; ``on_step`` is told of each step."""
    opened = store if isinstance(store, Store) else open_store(store)
    given, first = _settled(opened, contenders, baseline)
    results = []
    for one in given:
        on_step(f"evaluating {one}")
        results.append(evaluate(opened, one, first_start=first_start, price=_of_contender(price, one)))
    if len(given) < 2:
        name = given[0].drafter if given else "NAME"
        raise RequestError(
            f"contenders: found {given[0] if given else 'none'}; allowed: two or more, such as some draft lengths "
            f"({name}:K=1-8 on the command line), or no speculation beside it ({name}:rule=none)"
        )
    plain = None
    if price is not None:
        none = Contender(given[0].drafter, rule="none")
        plain = evaluate(opened, none, first_start=first_start, price=_of_contender(price, none))
    on_step("comparing")
    options["unit"] = options.get("unit") or ("rounds" if price is None else "price")
    frame = pl.concat([_vectors(result, plain) for result in results])
    found = compare_vectors(frame, baseline=None if first is None else str(first), **options)
    notes = (*found.notes, *_notes(results), *_price_notes(opened, given, price))
    unit = getattr(price, "unit", None)
    return Compared(given, results, replace(found, notes=notes, price_unit=None if unit is None else str(unit)))


def _settled(
    store: Store, contenders: Sequence[Contender | str] | None, baseline: Contender | str | None
) -> tuple[list[Contender], Contender | None]:
    """Settle what is evaluated: all drafters by default, and the baseline, which is added if it is none of them."""
    if isinstance(contenders, str | Contender) or not isinstance(contenders, Iterable | None):
        raise RequestError(f"contenders: found {contenders!r}; allowed: a list of them, such as ['quant5', 'drop1']")
    given = [as_contender(one) for one in (store.drafters if contenders is None else contenders)]
    first = None if baseline is None else as_contender(baseline)
    if first is not None and str(first) not in map(str, given):
        given = [first, *given]
    names = [str(one) for one in given]
    if again := [name for i, name in enumerate(names) if name in names[:i]]:
        raise RequestError(f"contenders: found {again[0]} more than once; allowed: each once")
    return given, first


@dataclass(frozen=True)
class _Priced:
    """A price whose refusals name the contender."""

    price: Price
    contender: Contender

    def of(self, depth: Any, drafted: Any, context: Any) -> Any:
        try:
            return self.price.of(depth, drafted, context)
        except ValueError as error:
            raise RequestError(f"contender {self.contender}: option price: {error}") from error


def _of_contender(price: Price | None, contender: Contender) -> Price | None:
    check_price(price)
    return None if price is None else _Priced(price, contender)


def _vectors(result: Evaluation, plain: Evaluation | None) -> pl.DataFrame:
    prices = {"price": result.price, "price_variance": result.price_variance}
    prices["plain_price"] = None if plain is None else plain.price
    return (
        result.to_frame()
        .rename({"committed_tokens": "tokens", "expected_rounds": "rounds"})
        .with_columns(exactness=pl.lit(result.exactness), family=pl.lit(result.drafter))
        .with_columns(pl.Series(name, values) for name, values in prices.items() if values is not None)
    )


def _notes(results: Sequence[Evaluation]) -> list[str]:
    """Give the notes of all contenders, each once, and what repetitive rollouts do to their pooled lengths."""
    named: dict[str, list[str]] = {}
    for result in results:
        for note in result.notes:
            named.setdefault(note, []).append(result.contender)
    told = [f"{_listed(names)}: {note}" for note, names in named.items()]
    repetitive = results[0].repetitive
    count, kept = int(repetitive.sum()), ~repetitive
    if count:
        lengths = ((one.contender, pooled_length(one.committed[kept], one.rounds[kept])) for one in results)
        without = _listed([f"{name} {'-' if length is None else f'{length:.4f}'}" for name, length in lengths])
        told.append(
            f"{count} of {len(repetitive)} rollouts {'is' if count == 1 else 'are'} repetitive (more than "
            f"{REPETITIVE:.0%} of their {NGRAM}-grams repeat); tokens per round without: {without}"
        )
    return told


def _price_notes(store: Store, given: Sequence[Contender], price: Price | None) -> list[str]:
    """Tell that a table makes all drafters, or all depths, equally dear, though they are not."""
    if not isinstance(price, Table):
        return []
    drafting = {one.drafter: None for one in given if one.rule != "none" and one.draft_length != 0}
    kinds = {name: store.facts()["drafters"][name]["kind"] for name in drafting}
    if price.per_depth:
        blocks = [name for name, kind in kinds.items() if kind == "block"]
        told = (
            f"{_listed(blocks)}: charged per_depth for each depth, though a block drafter, or a lookup, makes one pass"
        )
        return [told] if blocks else []
    if len(drafting) < 2 and "autoregressive" not in kinds.values():
        return []
    return [
        "the price has no per_depth, so drafting costs the same whatever the drafter and K; FILE?per_depth=0.006 adds "
        "6 ms for each depth, as for an autoregressive drafter's pass"
    ]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
