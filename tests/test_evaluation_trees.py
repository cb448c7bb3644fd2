"""Contenders that draft trees, on stores: against trees that are built and walked, the chain, and the engine."""

from pathlib import Path

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.cli import main
from markov_spec.drafting import BUILDERS, Medusa, Sequoia, Static, fit_static_tree, rank_acceptance, rank_accuracy
from markov_spec.evaluation import lists as lists_module
from markov_spec.latency import Affine
from tests import stored_lists
from tests.stored_lists import INDPTR, LENGTHS, PROMPTS, D, N, decoded, walked, write

DEMO = Path(__file__).parents[1] / "data/demo"
NAMES = ["best-first", "chain", "eagle2", "all-children", "static", "medusa", "sequoia"]


@pytest.fixture
def recorded():
    return stored_lists.recorded()


@pytest.fixture
def store(tmp_path, recorded):
    return write(tmp_path / "run", recorded)


def explicit(recorded, name, budget, depth=D):
    """The builder that a contender's name stands for."""
    ids, _, tokens, _, _ = recorded
    words = ms.next_tokens(tokens, INDPTR, depth)
    if name == "static":
        return fit_static_tree(ids[:, :depth], words, budget=budget).builder
    if name == "medusa":
        return Medusa(rank_accuracy(ids[:, :depth], words))
    if name == "sequoia":
        return Sequoia(rank_acceptance(ids[:, :depth], words), depth=depth)
    return BUILDERS[name]()


@pytest.mark.parametrize("first_start", [0, 1])
@pytest.mark.parametrize("budget", [0, 1, 3, 8, 20])
@pytest.mark.parametrize("name", NAMES)
def test_rounds_against_simulation(store, recorded, name, budget, first_start):
    found = ms.evaluate(store, f"block:tree={name},budget={budget}", first_start=first_start)
    accepted, nodes = walked(recorded, explicit(recorded, name, budget), budget)
    rounds, starts = decoded(accepted, first_start)
    assert found.rounds.tolist() == rounds.tolist() and (found.variance == 0).all() and found.exactness == "exact"
    assert found.rule == "match" and found.settings == {"tree": name, "budget": budget}
    histogram = np.bincount(accepted[starts], minlength=min(budget, D) + 1)
    assert found.accepted_histogram.sum(0).tolist() == histogram.tolist()
    assert found.drafted.sum() == nodes[starts].sum()


@pytest.mark.parametrize("name", NAMES)
def test_depth_of_a_tree_against_simulation(store, recorded, name):
    found = ms.evaluate(store, ms.Contender("block", tree=name, budget=6, draft_length=2))
    rounds, _ = decoded(walked(recorded, explicit(recorded, name, 6, 2), 6, 2)[0])
    assert found.rounds.tolist() == rounds.tolist() and found.draft_length == 2


@pytest.mark.parametrize("depth", [1, 3, 4])
def test_case_91_chain_is_a_tree_against_reference(store, depth):
    tree, chain = (
        ms.evaluate(store, f"block:tree=chain,budget={depth}"),
        ms.evaluate(store, f"block:rule=match,K={depth}"),
    )
    names = ("rounds", "variance", "accepted_histogram", "tested", "depths")
    assert all(np.allclose(getattr(tree, name), getattr(chain, name), atol=1e-12) for name in names)
    assert tree.exactness == chain.exactness == "exact"
    best = [ms.evaluate(store, f"block:tree=best-first,budget={n}").pooled_length for n in range(depth + 1)]
    assert best == sorted(best)


@pytest.mark.parametrize("name", NAMES)
def test_range_by_range_against_reference(store, monkeypatch, name):
    contender = f"block:tree={name},budget=5"
    whole = ms.evaluate(store, contender, price=Affine(1.0, per_draft=0.1), convention="vllm")
    monkeypatch.setattr(lists_module, "RANGE_BYTES", 1)
    parts = ms.evaluate(store, contender, price=Affine(1.0, per_draft=0.1), convention="vllm")
    assert repr(parts) == repr(whole) and (parts.price == whole.price).all()
    assert (ms.solve(ms.law_of(store, contender), first_start=1).expected == whole.rounds).all()


def test_truncated_lists_are_labelled_against_reference(tmp_path, recorded):
    full, short = write(tmp_path / "full", recorded), write(tmp_path / "short", recorded, width=2)
    labels = set()
    for budget in range(1, 12):
        contender = f"block:tree=best-first,budget={budget}"
        found, true = ms.evaluate(short, contender), ms.evaluate(full, contender)
        labels.add(found.exactness)
        sure = found.uncertain == 0
        assert true.exactness == "exact" and (found.rounds[sure] == true.rounds[sure]).all()
        assert found.exactness == ("exact" if sure.all() else "bound")
        assert found.results()[0]["uncertain_rounds"] == found.uncertain.sum() <= found.rounds.sum()
    assert labels == {"exact", "bound"}


def test_price_of_a_tree_against_closed_form(store, recorded):
    price = Affine(10.0, per_depth=1.0, per_draft=0.5, per_context=0.01)
    found = ms.evaluate(store, "block:tree=best-first,budget=3", price=price)
    _, starts = decoded(walked_from_store(store, 3))
    prompts = np.repeat(PROMPTS, LENGTHS) + np.arange(N) - np.repeat(INDPTR[:-1], LENGTHS)
    ids, log_q, *_ = recorded
    depths = [ms.build_tree(ids[s], log_q[s], budget=3).depths.max() for s in range(N)]
    expected = [10 + depths[s] + 1.5 + 0.01 * prompts[s] for s in starts]
    assert found.price.sum() == pytest.approx(sum(expected), abs=1e-9)
    assert ms.evaluate(store, "block:tree=best-first,budget=0", price=price).price.sum() == pytest.approx(
        sum(10 + 0.01 * context for context in prompts), abs=1e-9
    )


def walked_from_store(store, budget):
    law = ms.law_of(store, f"block:tree=best-first,budget={budget}")
    return np.cumprod(np.asarray(law.accept), axis=1).sum(1).astype(int)


def test_learned_trees_say_so_and_given_ones_do_not_invariant(store):
    learned = ms.evaluate(store, "block:tree=static,budget=4")
    given = ms.evaluate(store, ms.Contender("block", tree=ms.fit_static_tree(store, "block", 4).builder, budget=4))
    assert (learned.rounds == given.rounds).all()
    assert "measured on these rollouts" in repr(learned) and given.notes == ()
    assert given.contender == "block:tree=static,budget=4"


def test_fit_on_some_rollouts_against_reference(store, recorded):
    ids, _, tokens, _, _ = recorded
    words, chosen = ms.next_tokens(tokens, INDPTR, D), np.array([True, False, True, True, False])
    rows = np.repeat(chosen, LENGTHS)
    fit = ms.fit_static_tree(store, "block", 5, rollouts=chosen)
    assert fit.builder == fit_static_tree(ids[rows], words[rows], budget=5).builder
    fit = ms.fit_static_tree(store, "block", 5, weights="occupancy", rollouts=chosen, depth=3)
    offsets = np.concatenate([[0], np.cumsum(np.array(LENGTHS)[chosen])])
    expected = fit_static_tree(ids[rows, :3], words[rows, :3], budget=5, indptr=offsets)
    assert (fit.builder, fit.expected_rounds, fit.exactness) == (
        expected.builder,
        expected.expected_rounds,
        "heuristic",
    )


@pytest.mark.parametrize(
    ("contender", "message"),
    [
        ("block:tree=best-first", "a tree needs a budget"),
        ("block:budget=4", "found a budget without a tree; allowed: tree=best-first"),
        ("block:tree=oak,budget=4", "found tree 'oak'; allowed: best-first"),
        ("block:tree=best-first,budget=4,rule=block", "found rule 'block' with a tree"),
        ("block:tree=best-first,budget=4,beam=3", "found setting 'beam' of this tree; it has none"),
        ("block:tree=eagle2,budget=4,m=2", "found setting 'm' of this tree; it has beam, depth"),
        ("block:tree=eagle2,budget=4,beam=x", "found beam='x'; allowed: an integer"),
        ("block:tree=eagle2,budget=4,budget=5", "found 'budget=5'"),
        ("block:tree=chain,budget=-4", "found 'budget=-4'"),
        ("block:tree=chain,budget=4,K=5", "found K=5; allowed: 1 to 4, recorded"),
        ("auto:tree=chain,budget=4", "an autoregressive drafter's tree"),
        ("bare:tree=chain,budget=4", "need part 'lists' of drafter 'bare'"),
        ("nobody:tree=chain,budget=4", "found drafter 'nobody'; allowed: auto, bare, block"),
    ],
)
def test_contender_that_cannot_be_is_refused_invariant(store, capsys, contender, message):
    with pytest.raises(ms.RequestError, match=message):
        ms.evaluate(store, contender)
    assert main(["evaluate", str(store.path), contender]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_proxies_are_of_chains_invariant(store):
    with pytest.raises(ms.RequestError, match="found a tree; allowed: a chain"):
        ms.proxies(store, "block:tree=best-first,budget=4")


def test_case_13_rates_by_node_and_by_depth_against_closed_form(tmp_path):
    hits = np.zeros((30, 3), bool)
    hits[0::3, :2] = True  # each round accepts two of the three depths of 15 nodes
    words = np.arange(30) + 100
    ids = np.full((30, 3, 5), -1)
    ids[:, :, :] = np.arange(5)
    at = np.minimum(np.arange(30)[:, None] + np.arange(3), 29)
    ids[..., 0] = np.where(hits, words[at], ids[..., 0])
    part = {"ids": ids, "log_q": np.log(np.tile([0.6, 0.1, 0.1, 0.1, 0.1], (30, 3, 1)))}
    drafts = ms.Drafts("block", "block", "rejection", np.zeros((30, 3)), parts={"lists": part})
    paths = [(0,), (0, 0), (0, 0, 0), *((i,) for i in range(1, 5)), *((0, i) for i in range(1, 5))]
    paths += [(0, 0, i) for i in range(1, 5)]
    store = ms.write_store(
        tmp_path / "run", rollout_ids=["a"], prompt_ids=["p"], tokens=words, indptr=[0, 30], log_p=np.full(30, -1.0),
        drafters={"block": drafts},
    )  # fmt: skip
    tree = Static((*paths, (1, 0), (1, 1))[:15])
    (row,) = ms.evaluate(store, ms.Contender("block", tree=tree, budget=15)).results()
    assert (row["expected_rounds"], row["pooled_length"], row["proposed_drafts"], row["proposed_depths"]) == (
        10,
        3,
        150,
        30,
    )
    assert row["draft_acceptance"] == pytest.approx(20 / 150) and row["depth_acceptance"] == pytest.approx(20 / 30)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", [1, 4, 9])
def test_depths_that_a_tree_has_not_are_not_tested_against_simulation(store, recorded, name, budget):
    found = ms.evaluate(store, f"block:tree={name},budget={budget}")
    builder = explicit(recorded, name, budget)
    accepted, _ = walked(recorded, builder, budget)
    _, starts = decoded(accepted)
    ends = np.repeat(INDPTR[1:], LENGTHS)
    tested = np.zeros(D, int)
    for s in starts:
        tree = ms.build_tree(recorded[0][s], recorded[1][s], budget=budget, builder=builder)
        deep = min(int(tree.depths.max(initial=0)), ends[s] - s)
        tested[: min(deep, accepted[s] + 1)] += 1
    told = np.pad(found.tested.sum(0), (0, D - found.tested.shape[1]))
    assert told.tolist() == tested.tolist()


def test_a_lookup_as_a_tree_counts_as_itself_against_reference():
    for convention in (None, "vllm", "deepspec"):
        tree, own = (
            ms.evaluate(DEMO, name, convention=convention) for name in ("lookup:tree=chain,budget=10", "lookup")
        )
        assert tree.length == own.length and (tree.tested == own.tested).all() and (tree.depths == own.depths).all()
