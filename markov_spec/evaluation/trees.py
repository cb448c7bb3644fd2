"""From a store and a contender to the round laws of its trees, a range of rollouts at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from markov_spec.arrays import Array, RequestError, Rollouts, RoundLaw
from markov_spec.drafting import Builder, DraftTree, beam_tree, build_tree, tree_law
from markov_spec.evaluation.contender import Contender, Setting, as_contender
from markov_spec.evaluation.learned import settled
from markov_spec.evaluation.lists import check_budget, read_lists, recorded
from markov_spec.evaluation.ranked import BEAM, Ranked, beam_sizes, ranked
from markov_spec.latency import Price
from markov_spec.store import Store, open_store


@dataclass(frozen=True, eq=False)
class TreePlan:
    """The trees of a contender on a range of rollouts, of any budget that its ranks tell of.

    Parameters
    ----------
    contender : Contender
    found : Ranked
    budget : int
        Nodes of the trees, the root not counted.
    """

    contender: Contender
    found: Ranked
    budget: int

    rule = "match"

    @property
    def rollouts(self) -> Rollouts:
        """Those of the range."""
        return self.found.rollouts

    @property
    def draft_length(self) -> int:
        """The largest depth of a tree."""
        return min(self.found.depth, self.budget)

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
        return tree_law(self.found.ranks, self.rollouts.indptr, budget=self.budget)

    def prices(self, price: Price, law: RoundLaw, first: int, last: int) -> Array:
        """Give the price of a round from every start, (N,): the whole tree is paid for, past a rollout's end too."""
        ranks = self.found.ranks
        return price.of(ranks.depths(self.budget), ranks.drafted(self.budget), self.found.contexts)

    def counted(self, occupancy: Array) -> dict[str, Array]:
        """Give expected nodes drafted, and expected rounds whose tree the lists leave open, (R,) each."""
        offsets = self.rollouts.indptr
        open_rounds = occupancy * (np.asarray(self.found.ranks.exact_to) < self.budget)
        return {
            "drafted": _sums(occupancy * self.found.ranks.drafted(self.budget), offsets),
            "uncertain": _sums(open_rounds, offsets),
        }


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
    for found in ranked(store, settled(store, contender, budget), budget):
        yield TreePlan(contender, found, budget)


def whole_tree_plan(store: Store, contender: Contender) -> TreePlan:
    """Plan a contender's trees on all rollouts at once; errors as `tree_plans`."""
    plans = list(tree_plans(store, contender))
    first = plans[0].found
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(plan.found.ranks, name) for plan in plans])
        for name in ("rank", "exact_to", "nodes", "reach")
    }
    columns["gaps"] = None  # of other budgets, which are not asked about
    return replace(plans[0], found=Ranked(store.rollouts(), replace(first.ranks, **columns)))


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
    made = settled(opened, wanted, budget)
    (row,) = opened.locate([rollout])
    one = opened.batch(int(row), int(row) + 1)
    tokens = one.rollouts().tokens
    length = len(tokens)
    if not isinstance(start, int | np.integer) or not 0 <= start < length:
        raise RequestError(
            f"start: found {start} of rollout {rollout!r}; allowed: 0 to {length - 1}, its tokens less 1"
        )
    if recorded(opened, wanted)["depth"] is None:
        depth, _ = beam_sizes(opened, made)
        part = one.drafter_part(wanted.drafter, BEAM)
        if part["token"][start, 0, 0] < 0:
            raise RequestError(f"start: found {start} of rollout {rollout!r}, which has no beam; allowed: one that has")
        token, parent, log_q = (part[name][start, :depth] for name in ("token", "parent", "log_q"))
        return beam_tree(token, parent, np.where(token < 0, -np.inf, log_q), budget=budget), tokens[start:]
    (lists,) = read_lists(one, made)
    log_q, builder = np.where(np.isnan(lists.log_q[start]), -np.inf, lists.log_q[start]), made.tree
    assert isinstance(builder, Builder)  # settled
    return build_tree(lists.ids[start], log_q, budget=budget, builder=builder), tokens[start:]


def accepted_at(store: Store, contender: Contender, rollout: str, start: int) -> int:
    """Give the drafts that a contender's tree accepts at one start, by all that is recorded; see `draft_tree`."""
    budget, (row,) = check_budget(contender), store.locate([rollout])
    made = settled(store, contender, budget)
    (found,) = ranked(store.batch(int(row), int(row) + 1), made, budget)
    return int(found.ranks.accepted(budget)[start])
