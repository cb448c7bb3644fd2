"""Trees from kept ranks and from beams, against lists of whole distributions and against every path."""

import itertools
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import markov_spec as ms
from markov_spec.cli import main
from markov_spec.evaluation import lists as lists_module
from markov_spec.latency import Affine
from tests import stored_lists
from tests.drafting import test_beam_ranks as paths
from tests.stored_lists import write

PRICE = Affine(5.0, per_draft=0.4, per_context=0.02)
LENGTHS, WIDTH = [6, 1, 9], 70
INDPTR = np.concatenate([[0], np.cumsum(LENGTHS)])
N = int(INDPTR[-1])


@pytest.fixture
def store(tmp_path):
    return write(tmp_path / "run", stored_lists.recorded())


@pytest.mark.parametrize("drop", [False, True])
def test_kept_ranks_against_lists(store, monkeypatch, drop):
    budgets, name = [1, 3, 7, 12], "block:tree=best-first"
    before = [ms.evaluate(store, f"{name},budget={n}", price=PRICE) for n in budgets]
    curve = ms.budget_curve(store, name, budgets=budgets, price=PRICE)
    best = ms.optimal_budget(store, name, budgets=budgets, price=PRICE).frame
    larger = [1, 7, 12, 13, 20]
    beyond, part = ms.budget_curve(store, name, budgets=larger), store.drafter_part("block", "lists")
    monkeypatch.setattr(lists_module, "RANGE_BYTES", 1)
    kept = ms.keep_tree_ranks(store, "block", max_budget=12, drop=drop)
    assert kept.drafter_parts("block") == ("law", "tree-rank") if drop else ("law", "lists", "tree-rank")
    for n, old in zip(budgets, before, strict=True):
        new = ms.evaluate(kept, f"{name},budget={n}", price=PRICE)
        for field in ("rounds", "drafted", "uncertain", "price", "accepted_histogram"):
            assert np.allclose(getattr(new, field), getattr(old, field)), field
    assert ms.budget_curve(kept, name, budgets=budgets, price=PRICE).equals(curve)
    found = ms.optimal_budget(kept, name, budgets=budgets, price=PRICE).frame
    names = ["none", "fixed", "per-round oracle", "clairvoyant"]
    assert found.equals(best.filter(pl.col("rule").is_in(names)) if drop else best)
    assert ms.store.check_integrity(kept.path) == []
    with pytest.raises(ms.RequestError, match="keeps ranks up to 12 nodes"):
        ms.keep_tree_ranks(kept, "block", max_budget=20)
    if drop:
        with pytest.raises(ms.RequestError, match="need part 'lists'"):
            ms.evaluate(kept, "block:tree=eagle2,budget=3")
        with pytest.raises(ms.RequestError, match="found a budget of 13; allowed: up to 12"):
            ms.evaluate(kept, f"{name},budget=13")
    else:
        assert all((kept.drafter_part("block", "lists")[k] == part[k])[~np.isnan(part["log_q"])].all() for k in part)
        assert ms.budget_curve(kept, name, budgets=larger).equals(beyond)
        assert ms.evaluate(kept, f"{name},budget=5,K=2").draft_length == 2


def test_kept_ranks_of_longer_lists_stay_in_use_against_reference(tmp_path):
    """Ranks of whole lists are kept, the lists then cut: budgets up to the kept ones are exact, larger ones go on."""
    full = ms.keep_tree_ranks(write(tmp_path / "full", stored_lists.recorded()), "block", max_budget=10)
    part = full.drafter_part("block", "tree-rank")
    short = write(tmp_path / "short", stored_lists.recorded(), width=2)
    drafts = short.drafter("block")
    told = {"tree": "best-first", "max_budget": 10, "depth": stored_lists.D}
    parts = {"lists": short.drafter_part("block", "lists"), "tree-rank": part}
    mixed = ms.add_drafter(short.path, replace(drafts, parts=parts, metadata={"tree_rank": told}), overwrite=True)
    curve, true = (ms.budget_curve(s, "block", budgets=range(30)) for s in (mixed, full))
    assert curve[:11].equals(true[:11]) and (curve["exactness"][:11] == "exact").all()
    assert (curve["rounds"][11:] >= true["rounds"][11:]).all() and (curve["uncertain_rounds"][11:] > 0).any()


def test_keep_command_against_reference(store, capsys):
    assert main(["trees", "keep", str(store.path), "block", "--budget", "9", "--drop"]) == 0
    assert "law, tree-rank" in capsys.readouterr().out
    told = ms.open_store(store.path).drafter("block").metadata["tree_rank"]
    assert told == {"tree": "best-first", "max_budget": 9, "depth": stored_lists.D}
    assert main(["trees", "keep", str(store.path), "bare"]) == 2


def beamed(tmp_path, width=WIDTH, every=1, seed=3):
    """A drafter that depends on the path: a store of its beams, and its paths from every start, best first."""
    rng = np.random.default_rng(seed)
    tables = [paths.drafter(rng) for _ in range(N)]
    columns = [paths.beam(table, width) for table in tables]
    tokens = rng.integers(0, paths.V, N)
    part = {name: np.stack([own[i] for own in columns]) for i, name in enumerate(("token", "parent", "log_q"))}
    if every > 1:
        part["token"][1::every], part["parent"][1::every], part["log_q"][1::every] = -1, -1, -np.inf
    drafts = ms.Drafts("auto", "autoregressive", "rejection", np.full(N, -1.0), parts={"beam": part})
    store = ms.write_store(
        tmp_path / "run", rollout_ids=list("abc"), prompt_ids=list("pqr"), tokens=tokens, indptr=INDPTR,
        log_p=np.full(N, -1.0), drafters={"auto": drafts},
    )  # fmt: skip
    return store, tokens, [[path for _, _, path in paths.nodes(table)] for table in tables]


def decoded(tokens, order, budget, depth):
    rounds = []
    for a, b in itertools.pairwise(INDPTR):
        s, count = a, 0
        while s < b:
            tree = [path for path in order[s] if len(path) <= depth][:budget]
            k = 0
            while s + k < b and tuple(tokens[s : s + k + 1].tolist()) in tree:
                k += 1
            s, count = s + k + 1, count + 1
        rounds.append(count)
    return rounds


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("budget", [0, 1, 4, 15, 40])
def test_beams_against_simulation(tmp_path, monkeypatch, budget, depth):
    store, tokens, order = beamed(tmp_path)
    name = f"auto:tree=best-first,budget={budget},K={depth}"
    found = ms.evaluate(store, name)
    assert found.rounds.tolist() == decoded(tokens, order, budget, depth) and found.exactness == "exact"
    monkeypatch.setattr(lists_module, "RANGE_BYTES", 1)
    assert (ms.evaluate(store, name).rounds == found.rounds).all()


def test_rules_and_kept_ranks_of_beams_against_reference(tmp_path):
    store, tokens, order = beamed(tmp_path)
    curve = ms.budget_curve(store, "auto", budgets=[2, 5], price=PRICE)
    for row in curve.to_dicts():
        if row["exactness"] == "exact":
            assert row["rounds"] == sum(decoded(tokens, order, row["budget"], 3))
    best = ms.optimal_budget(store, "auto", budgets=[2, 5], price=PRICE)
    again = ms.keep_tree_ranks(beamed(tmp_path / "again")[0], "auto", max_budget=5)
    assert ms.optimal_budget(again, "auto", budgets=[2, 5], price=PRICE).frame.equals(best.frame)
    assert "full-scan" in best.frame["rule"].to_list() and best.frame["regret"].min() == 0
    kept = ms.keep_tree_ranks(store, "auto", max_budget=5)
    assert ms.budget_curve(kept, "auto", budgets=[2, 5], price=PRICE).equals(curve)
    tree, rest = ms.draft_tree(kept, "auto:tree=best-first,budget=6", rollout="c", start=2)
    assert [tuple(map(int, way)) for way in walks(tree)] == order[INDPTR[2] + 2][:6]
    assert rest.tolist() == tokens[INDPTR[2] + 2 :].tolist()


def walks(tree):
    """The tokens on the way to each node."""
    found = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def test_beams_that_tell_too_little_are_refused_invariant(tmp_path):
    store, _, _ = beamed(tmp_path, every=2)
    with pytest.raises(ms.RequestError, match=r"rollout 'a', position 1: found no beam; .*DEPTH,WIDTH,1"):
        ms.evaluate(store, "auto:tree=best-first,budget=3")
    with pytest.raises(ms.RequestError, match="allowed: best-first, of beams"):
        ms.evaluate(store, "auto:tree=eagle2,budget=3")
    with pytest.raises(ms.RequestError, match="found K=4; allowed: 1 to 3"):
        ms.evaluate(store, "auto:tree=best-first,budget=3,K=4")
