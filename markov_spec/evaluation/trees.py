"""From a store and a contender to the round laws of its trees, a range of rollouts at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from markov_spec.arrays import Array, RequestError, Rollouts, RoundLaw
from markov_spec.drafting import Builder, DraftTree, TreeRanks, build_tree, tree_law, tree_ranks
from markov_spec.evaluation.contender import Contender, Setting, as_contender
from markov_spec.evaluation.learned import settled
from markov_spec.evaluation.lists import DraftLists, check_budget, read_lists
from markov_spec.latency import Price
from markov_spec.store import Store, open_store


@dataclass(frozen=True, eq=False)
class TreePlan:
    """The trees of a contender on a range of rollouts, of any budget that its ranks tell of.

    Parameters
    ----------
    contender : Contender
    rollouts : Rollouts
    ranks : TreeRanks
    budget : int
        Nodes of the trees, the root not counted.
    """

    contender: Contender
    rollouts: Rollouts
    ranks: TreeRanks
    budget: int

    rule = "match"

    @property
    def draft_length(self) -> int:
        """The largest depth of a tree."""
        return min(int(self.ranks.rank.shape[1]), self.budget)

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The tree and its budget, and what its builder was told."""
        tree = self.contender.tree
        name = tree.name if isinstance(tree, Builder) else str(tree)
        return {"tree": name, "budget": self.budget, **self.contender.settings}

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Give the one range: laws take less memory than the lists that were read."""
        yield 0, len(self.rollouts)

    def law(self, first: int, last: int) -> RoundLaw:
        """Make the round law; of all rollouts, as `chunks` says."""
        return tree_law(self.ranks, self.rollouts.indptr, budget=self.budget)

    def prices(self, price: Price, law: RoundLaw, first: int, last: int) -> Array:
        """Give the price of a round from every start, (N,): the whole tree is paid for, past a rollout's end too."""
        nodes = self.ranks.drafted(self.budget)
        return price.of(np.minimum(nodes, self.draft_length), nodes, contexts(self.rollouts))

    def counted(self, occupancy: Array) -> dict[str, Array]:
        """Give expected nodes drafted, and expected rounds whose tree the lists leave open, (R,) each."""
        offsets = self.rollouts.indptr
        open_rounds = occupancy * (np.asarray(self.ranks.exact_to) < self.budget)
        return {
            "drafted": _sums(occupancy * self.ranks.drafted(self.budget), offsets),
            "uncertain": _sums(open_rounds, offsets),
        }


def contexts(rollouts: Rollouts) -> Array:
    """Give the tokens before each start, those of the prompt included, (N,)."""
    lengths = np.diff(rollouts.indptr)
    prompts = np.array([len(prompt) for prompt in rollouts.prompt_tokens], dtype=np.int64)
    start: Array = np.arange(rollouts.indptr[-1]) - np.repeat(rollouts.indptr[:-1] - prompts, lengths)
    return start


def _sums(values: Array, indptr: Array) -> Array:
    rollout = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    return np.bincount(rollout, values, minlength=indptr.size - 1)


def tree_plans(store: Store, contender: Contender) -> Iterator[TreePlan]:
    """Plan a contender's trees range by range of rollouts.

    Parameters
    ----------
    store : Store
    contender : Contender
        With a budget.

    Raises
    ------
    RequestError
        If the store has not what the trees are made of, or the budget is missing.
    ValueError
        If the store is damaged, or the lists are too short for the builder.
    """
    budget = check_budget(contender)
    chosen = settled(store, contender, budget)
    for lists in read_lists(store, chosen):
        yield TreePlan(contender, lists.rollouts, ranks_of(lists, chosen.tree, budget), budget)


def whole_tree_plan(store: Store, contender: Contender) -> TreePlan:
    """Plan a contender's trees on all rollouts at once; errors as `tree_plans`."""
    plans = list(tree_plans(store, contender))
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(plan.ranks, name) for plan in plans]) for name in ("rank", "exact_to", "nodes")
    }
    return replace(plans[0], rollouts=store.rollouts(), ranks=replace(plans[0].ranks, **columns))


def draft_tree(
    store: Store | str | Path, contender: Contender | str, *, rollout: str, start: int
) -> tuple[DraftTree, Array]:
    """Build the tree that a contender drafts at one start of a rollout.

    Parameters
    ----------
    store : Store or path
    contender : Contender or str
        With a tree and a budget.
    rollout : str
        Its id.
    start : int
        Tokens of the rollout before the root's children, 0 up to below its length.

    Returns
    -------
    DraftTree
    ndarray of int32
        The rollout's tokens from this start on: ``tree.accepted`` of them is ``N``.

    Raises
    ------
    RequestError
        If there is no such rollout or start, or as `tree_plans`.

    Notes
    -----
    Reads one rollout. Only listed tokens are drafted: the drafter's own tree may have others where lists are short.

    Examples
    --------
    >>> import markov_spec as ms
    >>> tree, tokens = ms.draft_tree("data/demo", "block:tree=best-first,budget=6", rollout="chat-01/0", start=3)
    >>> len(tree), tree.accepted(tokens)
    (6, 0)
    """
    opened = store if isinstance(store, Store) else open_store(store)
    wanted = as_contender(contender)
    budget = check_budget(wanted)
    (row,) = opened.locate([rollout])
    (lists,) = read_lists(opened.batch(int(row), int(row) + 1), wanted)
    length = len(lists.tokens)
    if not 0 <= start < length:
        raise RequestError(
            f"start: found {start} of rollout {rollout!r}; allowed: 0 to {length - 1}, its tokens less 1"
        )
    made: Any = settled(opened, wanted, budget).tree
    log_q = np.nan_to_num(lists.log_q[start], nan=-np.inf)
    return build_tree(lists.ids[start], log_q, budget=budget, builder=made), lists.rollouts.tokens[start:]


def ranks_of(lists: DraftLists, builder: str | Builder | None, max_budget: int) -> TreeRanks:
    """Rank the rollouts' tokens in the trees of a settled builder."""
    given: Any = builder
    return tree_ranks(
        lists.ids, lists.log_q, lists.tokens, max_budget=max_budget, builder=given, complete=lists.complete
    )
