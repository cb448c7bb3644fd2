"""The verb evaluate on a store: read a drafter, make its round law, solve, aggregate."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from markov_spec.arrays import RequestError, RoundLaw
from markov_spec.evaluation.contender import Contender, as_contender, check_price
from markov_spec.evaluation.laws import plans, space_notes
from markov_spec.evaluation.learned import LEARNED_HERE, is_learned
from markov_spec.evaluation.result import Evaluation
from markov_spec.evaluation.solving import rollout_counts, solve_range
from markov_spec.evaluation.tracing import range_law, settled_on
from markov_spec.evaluation.trees import tree_plans
from markov_spec.latency import Price
from markov_spec.metrics import CONVENTIONS
from markov_spec.store import Store, open_store


def evaluate(
    store: Store | str | Path,
    contender: Contender | str | None = None,
    *,
    first_start: int | None = None,
    convention: str | None = None,
    price: Price | None = None,
) -> Evaluation:
    """Compute the exact expected decoding rounds of a contender on every rollout of a store.

    Parameters
    ----------
    store : Store or path
    contender : Contender or str
        A drafter's name, ``"block:K=7"``, ``"quant5:K=4,rule=block"``, ``"block:tree=best-first,budget=64"``, or a
        `Contender`.
    first_start : int, optional
        0: the first token is drafted too; 1: the prefill emits it. By default that of the convention, or 0.
    convention : {"edr", "deepspec", "vllm", "sglang", "specforge", "dflash", "ddtree", "speculators"}, optional
        Give the acceptance length as this engine or script counts it: ``metrics.CONVENTIONS`` tells how. An interval
        where it depends on what an engine accepts past the end of the record.
    price : Price, optional
        Price of a round, such as ``latency.Affine``: gives the expected price of a rollout and its variance.

    Returns
    -------
    Evaluation

    Raises
    ------
    RequestError
        If none is named, naming those there are, the store has no such drafter, its record is shorter than the draft
        length or lacks what the rule needs, there is no such convention, or it has another first start.
    ValueError
        If the store is damaged, or its log-probabilities are not those that tokens were drawn with.

    Notes
    -----
    ``O(N K)`` time. The store is read range by range, some 64 MB of drafts at a time, so memory grows with the number
    of rollouts and not with their tokens.

    Examples
    --------
    >>> import tempfile, numpy as np, markov_spec as ms
    >>> drafts = ms.Drafts("quant5", "autoregressive", "rejection", np.log([.25, .9, .4]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ms.write_store(f"{folder}/run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.array([5, 6, 7]),
    ...         indptr=[0, 3], log_p=np.log([.5, .9, .4]), drafters={"quant5": drafts})
    ...     ms.evaluate(store, "quant5:K=2")
    Evaluation(quant5:K=2: 2.0000 tokens per round (exact; rule rejection, K=2, 3 tokens in 1.50 expected rounds,
    1 rollout))
    """
    store = store if isinstance(store, Store) else open_store(store)
    if contender is None:
        allowed = ", ".join(store.drafters) or "none, the store holds no drafter"
        raise RequestError(f"contender: found none; allowed: a drafter of the store ({allowed}) or a Contender")
    start = _first_start(first_start, convention)
    check_price(price)
    wanted, ranges = as_contender(contender), []
    for chosen in plans(store, wanted) if wanted.tree is None else tree_plans(store, wanted):
        ranges.append(solve_range(chosen, first_start=start, convention=convention, price=price))
    solved = {name: np.concatenate([part[name] for part in ranges]) for name in ranges[0]}
    return Evaluation(
        contender=str(chosen.contender),
        drafter=chosen.contender.drafter,
        rule=chosen.rule,
        settings=chosen.settings,
        draft_length=chosen.draft_length,
        first_start=start,
        ids=tuple(solved["ids"].tolist()),
        prompt_ids=tuple(solved["prompt_ids"].tolist()),
        benchmarks=tuple(solved["benchmarks"].tolist()),
        committed=solved["committed"],
        rounds=solved["expected"],
        variance=solved["variance"],
        inverse=solved["expected_inverse"],
        drafted=solved["drafted"],
        depths=solved["depths"],
        uncertain=solved.get("uncertain"),
        accepted_histogram=solved["accepted_histogram"],
        tested=solved["tested"],
        repeated=solved["repeated"],
        price=solved.get("price"),
        price_variance=solved.get("price_variance"),
        convention=convention,
        notes=(*space_notes(store, chosen.contender.drafter, chosen.rule), *((LEARNED_HERE,) * is_learned(wanted))),
        counts=None if convention is None else rollout_counts(solved, start),
    )


def law_of(store: Store | str | Path, contender: Contender | str) -> RoundLaw:
    """Give a contender's round law on a store, for ``simulate``, ``round_distribution`` or ``solve``.

    Parameters
    ----------
    store : Store or path
    contender : Contender or str
        As in `evaluate`; errors too.

    Returns
    -------
    RoundLaw

    Notes
    -----
    ``O(N K)`` memory: all cells at once. A large store is better taken by ``Store.batches``.

    Examples
    --------
    >>> import tempfile, numpy as np, markov_spec as ms
    >>> drafts = ms.Drafts("quant5", "autoregressive", "rejection", np.log([.25, .9, .4]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ms.write_store(f"{folder}/run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.array([5, 6, 7]),
    ...         indptr=[0, 3], log_p=np.log([.5, .9, .4]), drafters={"quant5": drafts})
    ...     ms.round_distribution(ms.law_of(store, "quant5:K=2")).pmf(0)
    array([0. , 0.5, 0.5, 0. ])
    """
    opened = store if isinstance(store, Store) else open_store(store)
    return range_law(opened, settled_on(opened, contender)).law


def _first_start(first_start: int | None, convention: str | None) -> int:
    if convention is None:
        return 0 if first_start is None else first_start
    if convention not in CONVENTIONS:
        raise RequestError(f"convention: found {convention!r}; allowed: {', '.join(CONVENTIONS)}")
    wanted = CONVENTIONS[convention].first_start
    if first_start not in (None, wanted):
        raise RequestError(f"first_start: found {first_start} with convention {convention!r}; allowed: {wanted}")
    return wanted
