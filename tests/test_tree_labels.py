"""What a record leaves open is labelled so, though no visited start is."""

import numpy as np
import polars as pl
import pytest

import markov_spec as ms
from markov_spec.latency import Affine

NONE = ([-1, -1], [-np.inf, -np.inf])


def listed(*tokens):
    """A list of tokens and their probabilities."""
    ids, q = zip(*tokens, strict=True)
    return list(ids), np.log(q).tolist()


def store_of(path, tokens, rows, width, depth=2, **metadata):
    """One rollout of a block drafter with these lists, cut or filled to a width."""
    ids = np.full((len(tokens), depth, width), -1)
    log_q = np.full(ids.shape, -np.inf)
    for s, row in enumerate(rows):
        for d, (names, logs) in enumerate(row):
            count = min(width, len(names))
            ids[s, d, :count], log_q[s, d, :count] = names[:count], logs[:count]
    drafts = ms.Drafts(
        "b", "block", "rejection", np.zeros((len(tokens), depth)), parts={"lists": {"ids": ids, "log_q": log_q}}
    )
    return ms.write_store(
        path, rollout_ids=["a"], prompt_ids=["p"], tokens=np.array(tokens), indptr=[0, len(tokens)],
        log_p=np.full(len(tokens), -1.0), drafters={"b": drafts}, metadata=metadata,
    )  # fmt: skip


def row_of(found, rule):
    (row,) = found.frame.filter(pl.col("rule") == rule).to_dicts()
    return row


def test_clairvoyant_that_an_open_start_could_better_is_a_bound_against_closed_form(tmp_path):
    sure, other = listed((1, 1.0)), listed((9, 1.0))
    third = listed((10, 0.4), (11, 0.35), (2, 0.25))
    rows = [[sure, other], [third, listed((3, 1.0))], [other, other], [other, other]]
    price = Affine(1.0, per_draft=0.01)
    whole, cut = (
        ms.optimal_budget(store_of(tmp_path / str(width), [1, 2, 3, 4], rows, width), "b", budgets=[6], price=price)
        for width in (4, 2)
    )
    assert row_of(whole, "clairvoyant")["expected_price"] == pytest.approx(2.06)
    assert row_of(whole, "clairvoyant")["exactness"] == "exact"
    assert row_of(cut, "clairvoyant")["expected_price"] > 2.06 and row_of(cut, "clairvoyant")["exactness"] == "bound"


def test_best_budget_among_open_ones_is_a_bound_against_closed_form(tmp_path):
    third, other = listed((10, 0.4), (11, 0.35), (2, 0.25)), listed((9, 1.0))
    rows, price = [[third, listed((3, 1.0))], [other, other]], Affine(1.0, per_draft=0.01)
    whole, cut = (
        ms.optimal_budget(store_of(tmp_path / str(width), [2, 3], rows, width), "b", budgets=[6], price=price)
        for width in (4, 2)
    )
    assert (whole.budget, row_of(whole, "fixed")["exactness"]) == (6, "exact")
    assert (cut.budget, row_of(cut, "fixed")["exactness"], row_of(cut, "marginal")["exactness"]) == (
        0,
        "bound",
        "bound",
    )


def test_lists_that_sum_to_one_up_to_rounding_are_not_whole_against_closed_form(tmp_path):
    rows = [[listed((5, 0.9), (6, 0.099995))]] * 3
    store = store_of(tmp_path / "run", [7, 7, 7], rows, 2, depth=1, vocab_size=8)
    found = ms.evaluate(store, "b:tree=best-first,budget=8")
    assert found.exactness == "bound" and found.uncertain.sum() > 0


def test_rules_of_beams_past_a_missing_depth_are_bounds_against_closed_form(tmp_path):
    part = {
        "token": np.array([[[0, -1], [0, 1]]]), "parent": np.array([[[-1, -1], [0, 0]]]),
        "log_q": np.array([[[0, -np.inf], np.log([0.95, 0.05])]]),
    }  # fmt: skip
    price = Affine(1.0, per_draft=0.25)

    def best(name, beam):
        drafts = ms.Drafts("a", "autoregressive", "rejection", np.zeros(1), parts={"beam": beam})
        store = ms.write_store(
            tmp_path / name, rollout_ids=["a"], prompt_ids=["p"], tokens=np.array([1]), indptr=[0, 1],
            log_p=np.full(1, -1.0), drafters={"a": drafts},
        )  # fmt: skip
        return ms.optimal_budget(store, "a", budgets=[2], price=price)

    whole = row_of(best("whole", part), "first-drop")
    assert (whole["expected_price"], whole["exactness"]) == (1.5, "exact")
    cut = {name: values.copy() for name, values in part.items()}
    cut["token"][0, 1], cut["parent"][0, 1], cut["log_q"][0, 1] = -1, -1, np.nan
    assert row_of(best("cut", cut), "first-drop")["exactness"] == "bound"


def test_empty_stores_have_empty_figures_invariant(tmp_path):
    beam = {"token": np.zeros((0, 2, 3), int), "parent": np.zeros((0, 2, 3), int), "log_q": np.zeros((0, 2, 3))}
    drafts = ms.Drafts("a", "autoregressive", "rejection", np.zeros(0), parts={"beam": beam})
    store = ms.write_store(
        tmp_path / "run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.zeros(0, int), indptr=[0, 0],
        log_p=np.zeros(0), drafters={"a": drafts},
    )  # fmt: skip
    found = ms.optimal_budget(store, "a", budgets=[2], price=Affine(1.0))
    assert found.frame["rounds"].sum() == 0


@pytest.mark.parametrize("start", [3, 7, 20])
def test_tree_of_a_lookup_can_be_drawn_invariant(start):
    tree, tokens = ms.draft_tree("data/demo", "lookup:tree=best-first,budget=4", rollout="chat-01/0", start=start)
    assert len(tree) <= 4 and tree.accepted(tokens) <= len(tree)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ms.optimal_budget("data/demo", "block", budgets=[2], price=None), "price: found None"),
        (
            lambda: ms.budget_curve("data/demo", "block", budgets=[2], price="x.csv"),
            r"price: found 'x.csv'.*read_price",
        ),
        (lambda: ms.clairvoyant("data/demo", "block", price="x.csv"), "price: found 'x.csv'"),
        (lambda: ms.budget_curve("data/demo", "block", budgets=3), "budgets, level: found 3"),
        (lambda: ms.budget_curve("data/demo", "block", budgets=[3], level="x"), "found .*'x'"),
        (
            lambda: ms.optimal_budget("data/demo", "block", budgets=[2], price=Affine(1.0), holdout="x"),
            "holdout: found x",
        ),
        (lambda: ms.optimal_budget("data/demo", "block", budgets=[2], price=Affine(1.0), seed=-1), "seed: found -1"),
        (lambda: ms.optimal_budget("data/demo", "block", budgets=[10**5], price=Affine(1.0)), "up to 8192"),
        (
            lambda: ms.draft_tree("data/demo", "block:tree=chain,budget=2", rollout="chat-01/0", start="x"),
            "start: found x",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused_invariant(call, message):
    with pytest.raises(ValueError, match=message):
        call()
