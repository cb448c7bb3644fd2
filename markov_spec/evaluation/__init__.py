"""The verbs on a store: read a drafter, make its round law, solve, aggregate."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from markov_spec.acceptance import RULES
from markov_spec.arrays import Array
from markov_spec.chain import solve
from markov_spec.evaluation.contender import RULE_SETTINGS, Contender
from markov_spec.evaluation.laws import plan
from markov_spec.evaluation.result import Evaluation
from markov_spec.evaluation.workload import repeated_share
from markov_spec.store import Store, open_store

__all__ = ["RULE_SETTINGS", "Contender", "Evaluation", "evaluate", "plan"]


def evaluate(store: Store | str | Path, contender: Contender | str, *, first_start: int = 0) -> Evaluation:
    """Compute the exact expected decoding rounds of a contender on every rollout of a store.

    Parameters
    ----------
    store : Store or path
    contender : Contender or str
        A drafter's name, ``"block:K=7"``, ``"quant5:K=4,rule=block"``, or a `Contender`.
    first_start : int
        0: the first token is drafted too; 1: the prefill emits it.

    Returns
    -------
    Evaluation

    Raises
    ------
    RequestError
        If the store has no such drafter, or its record is shorter than the draft length.
    ValueError
        If the store is damaged.

    Notes
    -----
    ``O(N K)``; laws are made for chunks of rollouts of at most 64 MB.

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
    chosen = plan(store, contender)
    rollouts, depth = chosen.rollouts, chosen.draft_length
    solved = [solve(chosen.law(first, last), first_start=first_start, inverse=True) for first, last in chosen.chunks()]

    def stack(name: str, width: int | None = None) -> Array:
        parts = [getattr(rounds, name) for rounds in solved]
        if width is not None:  # a chunk whose starts all draft less has fewer depths
            parts = [np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts]
        return np.concatenate(parts)

    return Evaluation(
        contender=str(chosen.contender),
        drafter=chosen.contender.drafter,
        rule=chosen.rule,
        settings=chosen.settings,
        draft_length=depth,
        exactness=RULES[chosen.rule].exactness,
        first_start=first_start,
        ids=tuple(rollouts.ids),
        prompt_ids=tuple(rollouts.prompt_ids),
        benchmarks=tuple(rollouts.benchmarks),
        committed=stack("committed"),
        rounds=stack("expected"),
        variance=stack("variance"),
        inverse=stack("expected_inverse"),
        drafted=stack("drafted"),
        accepted_histogram=stack("accepted_histogram", depth + 1),
        tested=stack("tested", depth),
        repeated=repeated_share(rollouts.tokens, rollouts.indptr),
    )
