"""What becomes of every token of one rollout, and the law of a contender on a range of a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from markov_spec.arrays import Array, Rollouts, RoundLaw
from markov_spec.chain import end_accepted, solve
from markov_spec.evaluation.contender import Contender, as_contender
from markov_spec.evaluation.laws import CHUNK_BYTES, DEFAULT_DRAFT_LENGTH, LEAST_WIDTH, plan
from markov_spec.evaluation.learned import settled
from markov_spec.evaluation.lists import check_budget, recorded
from markov_spec.evaluation.trees import tree_plans
from markov_spec.store import Store, open_store

UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # a token that the vocabulary lacks, as byte pieces of a character are stored


@dataclass(frozen=True, eq=False)
class RangeLaw:
    """The law of a contender on all rollouts of a range.

    Parameters
    ----------
    law : RoundLaw
    rule : str
        The rule that decides.
    depth : int
        The largest draft length, which no start of the range need have.
    unsure : ndarray of bool, (N,)
        Starts whose lists are too short to tell a tree's nodes.
    """

    law: RoundLaw
    rule: str
    depth: int
    unsure: Array


def settled_on(store: Store, contender: Contender | str) -> Contender:
    """Read a contender, its tree measured on the whole store if need be; errors as of `range_law`."""
    wanted = as_contender(contender)
    recorded(store, wanted)
    return wanted if wanted.tree is None else settled(store, wanted, check_budget(wanted))


def range_rows(store: Store, contenders: Iterable[Contender]) -> int:
    """Give how many positions a range may have, so that a law of each contender takes some 64 MB."""
    depths = [
        max(recorded(store, one)["depth"] or 1, one.draft_length or DEFAULT_DRAFT_LENGTH, LEAST_WIDTH)
        for one in contenders
    ]
    return max(1, CHUNK_BYTES // (8 * max(depths)))


def range_law(batch: Store, contender: Contender) -> RangeLaw:
    """Make the law of a contender on a range of a store.

    Parameters
    ----------
    batch : Store
        Of at most `range_rows` positions, or one rollout.
    contender : Contender
        As from `settled_on`.

    Returns
    -------
    RangeLaw

    Raises
    ------
    RequestError, ValueError
        As ``evaluate``.
    """
    if contender.tree is None:
        chain = plan(batch, contender)
        law = chain.law(0, len(batch))
        return RangeLaw(law, chain.rule, chain.draft_length, np.zeros(len(law.accept), dtype=bool))
    laws, unsure, depth = [], [], 0
    for trees in tree_plans(batch, contender):  # lists of one part at a time
        laws.append(trees.law(0, len(trees.rollouts)))
        unsure.append(np.asarray(trees.found.ranks.exact_to) < trees.budget)
        depth = max(depth, trees.draft_length)
    return RangeLaw(_joined(laws), "match", depth, np.concatenate(unsure))


def _joined(laws: list[RoundLaw]) -> RoundLaw:
    if len(laws) == 1:
        return laws[0]
    depth = max(law.depth for law in laws)
    cells = [np.pad(law.accept, ((0, 0), (0, depth - law.depth))) for law in laws]
    lengths = [np.broadcast_to(law.draft_length, len(law.accept)) for law in laws]  # type: ignore[arg-type] # never None
    sizes = np.concatenate([np.diff(law.indptr) for law in laws])
    indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return RoundLaw.trusted(np.concatenate(cells), indptr, np.concatenate(lengths))


def text_of(tokens: Array, vocab: Mapping[int, str]) -> str | None:
    """Give the text of tokens; None without a vocabulary."""
    return "".join(vocab.get(int(token), UNKNOWN) for token in tokens) if vocab else None


def target_entropy(store: Store) -> Array | None:
    """Give the entropy of the target at each position, (N,), nats; None if it is not recorded.

    Of the distribution that it decodes with; of a greedy target, where that is always 0, of the plain softmax.
    """
    greedy = (store.metadata.get("sampling") or {}).get("temperature") == 0
    part = store.part("divergence") if "divergence" in store.parts else {}
    return part.get("raw_entropy" if greedy else "entropy")


def trace_rollout(
    store: Store | str | Path, contender: Contender | str, rollout: str, *, first_start: int = 0
) -> pl.DataFrame:
    """Tell where rounds start in one rollout, and which of its tokens were accepted drafts.

    Parameters
    ----------
    store : Store or path
    contender : Contender or str
        A chain or a tree, as in `evaluate`.
    rollout : str
        Its id.
    first_start : int
        0 when the first token is drafted too, 1 when the prefill emits it.

    Returns
    -------
    polars.DataFrame
        A row for each token: position (from 0), token (id), text (null if the store's vocabulary lacks it), log_p
        (nats), entropy (of the target, nats, null if it is not recorded; of a greedy one that of the plain softmax),
        start (probability that a round starts there; the sum is the expected rounds), drafted (probability that the
        token is committed as an accepted draft, and not as the target's own; 0 for the prefill's), accepted (expected
        drafts that a round from there accepts, an end token counted).

    Raises
    ------
    RequestError
        If there is no such rollout, or as `evaluate`.
    ValueError
        If the store is damaged.

    Notes
    -----
    A token is the target's own iff a round starts right behind it, or if it is the last one and its round did not
    accept it: equation (O), and ``S[s,T-s]`` at the end. ``O(T K)``; reads one rollout, but a learned tree is measured
    on all. Of a lossy rule probabilities are teacher-forced, as are its figures everywhere.

    Examples
    --------
    >>> import tempfile, numpy as np, markov_spec as ms
    >>> drafts = ms.Drafts("quant5", "autoregressive", "rejection", np.log([.25, .9, .2]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ms.write_store(f"{folder}/run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.array([5, 6, 7]),
    ...         indptr=[0, 3], log_p=np.log([.5, .9, .4]), drafters={"quant5": drafts})
    ...     traced = ms.trace_rollout(store, "quant5:K=2", "a")
    >>> traced.select("position", "start", "drafted", "accepted").rows()
    [(0, 1.0, 0.5, 1.0), (1, 0.5, 1.0, 1.5), (2, 0.0, 0.25, 0.5)]
    """
    opened = store if isinstance(store, Store) else open_store(store)
    wanted = settled_on(opened, contender)
    (row,) = opened.locate([rollout])
    one = opened.batch(int(row), int(row) + 1)
    law, rollouts, vocab = range_law(one, wanted).law, one.rollouts(), opened.vocab()
    occupancy = solve(law, first_start=first_start).occupancy
    count, spread = len(occupancy), target_entropy(one)
    return pl.DataFrame(
        {
            "position": np.arange(count),
            "token": rollouts.tokens.astype(np.int64),
            "text": [vocab.get(token) for token in rollouts.tokens.tolist()],
            "log_p": rollouts.log_p.astype(np.float64),
            "entropy": [None] * count if spread is None else spread.astype(np.float64),
            "start": occupancy,
            "drafted": _drafted(law, occupancy, rollouts, first_start),
            "accepted": law.survival().sum(axis=1),
        },
        schema_overrides={"text": pl.String, "entropy": pl.Float64},
    )


def _drafted(law: RoundLaw, occupancy: Array, rollouts: Rollouts, first_start: int) -> Array:
    """Give the probability that each token of one rollout is an accepted draft, (T,)."""
    found: Array = np.append(1 - occupancy[1:], end_accepted(law, occupancy).sum())[: len(rollouts.tokens)]
    found[:first_start] = 0
    return np.clip(found, 0, 1)  # a sum of probabilities may end a rounding beyond 1
