"""Curves and optima of node budgets on stores, against trees that are built and walked, and against each other."""

import itertools
import json

import numpy as np
import polars as pl
import pytest

import markov_spec as ms
from markov_spec.cli import main
from markov_spec.comparison import ratio_interval
from markov_spec.drafting import BUDGET_RULES, BUILDERS
from markov_spec.evaluation import lists as lists_module
from markov_spec.latency import Affine, Table
from tests import stored_lists
from tests.drafting.samples import values
from tests.stored_lists import INDPTR, LENGTHS, PROMPTS, N, decoded, walked, write

BUDGETS = [1, 2, 5, 9]
PRICE = Affine(10.0, per_draft=0.7, per_context=0.05)
STAIRS = Table([1, 2, 3, 4, 5, 6, 7], [1.0, 1.9, 2.0, 1.2, 2.1, 2.2, 1.3])
CONTEXT = np.repeat(PROMPTS, LENGTHS) + np.arange(N) - np.repeat(INDPTR[:-1], LENGTHS)


@pytest.fixture
def recorded():
    return stored_lists.recorded()


@pytest.fixture
def store(tmp_path, recorded):
    return write(tmp_path / "run", recorded)


@pytest.mark.parametrize("first_start", [0, 1])
@pytest.mark.parametrize("name", list(BUILDERS))
def test_curve_against_reference(store, monkeypatch, name, first_start):
    contender, given = f"block:tree={name}", {"first_start": first_start, "price": PRICE}
    curve = ms.budget_curve(store, contender, budgets=BUDGETS, **given)
    assert curve["budget"].to_list() == [0, *BUDGETS]
    none = ms.evaluate(store, "block:rule=none", **given)
    for row in curve.to_dicts()[1:]:
        tree = "static" if name == "static" else name
        found = ms.evaluate(store, made(store, tree, max(BUDGETS), row["budget"]), **given)
        assert row["rounds"] == found.rounds.sum() and row["uncertain_rounds"] == found.uncertain.sum()
        assert row["nodes_per_round"] == pytest.approx(found.drafted.sum() / found.rounds.sum())
        assert row["expected_price"] == pytest.approx(found.price.sum(), abs=1e-9)
        length = ratio_interval(found.committed, found.rounds, found.prompt_ids)
        speed = ratio_interval(none.price, found.price, found.prompt_ids)
        assert [row[f"pooled_{end}"] for end in ("length", "low", "high")] == pytest.approx(list(length))
        assert [row[end] for end in ("speedup", "speedup_low", "speedup_high")] == pytest.approx(list(speed))
        assert row["exactness"] == found.exactness
    monkeypatch.setattr(lists_module, "RANGE_BYTES", 1)
    assert ms.budget_curve(store, contender, budgets=BUDGETS, **given).equals(curve)
    bare = ms.budget_curve(store, contender, budgets=BUDGETS, first_start=first_start)
    assert bare.schema == curve.schema and bare["speedup"].null_count() == len(bare)


def made(store, name, most, budget):
    """A contender of one budget whose tree, if it is learned, is that of the largest."""
    if name in ("static", "medusa"):
        tree = ms.fit_static_tree(store, "block", most).builder if name == "static" else name
        return ms.Contender("block", tree=tree, budget=budget)
    return ms.Contender("block", tree=name, budget=budget)


def test_curve_of_some_rollouts_against_reference(store):
    chosen = np.array([True, False, True, True, False])
    curve = ms.budget_curve(store, "block:tree=static", budgets=[4], rollouts=chosen)
    tree = ms.fit_static_tree(store, "block", 4, rollouts=chosen).builder
    found = ms.evaluate(store, ms.Contender("block", tree=tree, budget=4))
    assert curve["rounds"][1] == found.rounds[chosen].sum()
    assert curve["pooled_length"][1] == found.committed[chosen].sum() / found.rounds[chosen].sum()


def literal(recorded, price, choose, most, first_start=0):
    """Price of all rollouts if each round has the nodes that ``choose`` says, walked through trees that are built."""
    table = [walked(recorded, "best-first", n) for n in range(most + 1)]
    total = 0.0
    for a, b in itertools.pairwise(INDPTR):
        s = a + first_start
        while s < b:
            accepted, nodes = table[choose(s)]
            total += float(price.of(np.minimum(nodes[s], 4), nodes[s], CONTEXT[s]))
            s += accepted[s] + 1
    return total


def cheapest(recorded, price, most):
    """Least price of all rollouts over every choice of nodes by start, by backward search."""
    table = [walked(recorded, "best-first", n) for n in range(most + 1)]
    best = np.zeros(N + 1)
    total = 0.0
    for a, b in itertools.pairwise(INDPTR):
        for s in range(b - 1, a - 1, -1):
            best[s] = min(
                float(price.of(np.minimum(nodes[s], 4), nodes[s], CONTEXT[s]))
                + (best[s + accepted[s] + 1] if s + accepted[s] + 1 < b else 0)
                for accepted, nodes in table
            )
        total += best[a] if b > a else 0
    return total


@pytest.mark.parametrize("price", [PRICE, STAIRS])
def test_rules_against_simulation(tmp_path, recorded, price):
    store, most = write(tmp_path / "run", recorded), 6
    found = ms.optimal_budget(store, "block", budgets=range(1, most + 1), price=price)
    rows = {row["rule"]: row for row in found.frame.to_dicts()}
    assert list(rows) == ["none", "fixed", *BUDGET_RULES, "per-round oracle", "clairvoyant"]
    fixed = [literal(recorded, price, lambda s, n=n: n, most) for n in range(most + 1)]
    assert {row["exactness"] for row in rows.values()} == {"exact"}
    assert found.budget == int(np.argmin(fixed)) and rows["fixed"]["expected_price"] == pytest.approx(min(fixed))
    assert rows["none"]["expected_price"] == pytest.approx(fixed[0])
    lam = sum(LENGTHS) / min(fixed)
    worth = np.array([sorted(np.exp(list(values(own).values())))[::-1][:most] for own in recorded[1]])
    cost = np.array([[float(price.of(min(n, 4), n, c)) for n in range(most + 1)] for c in CONTEXT])
    for name, rule in BUDGET_RULES.items():
        nodes = rule(worth, cost, **({"lam": lam} if name == "marginal" else {}))
        expected = literal(recorded, price, lambda s, nodes=nodes: nodes[s], most)
        assert rows[name]["expected_price"] == pytest.approx(expected), name
    least = rows["clairvoyant"]["expected_price"]
    assert [row["regret"] for row in rows.values()] == pytest.approx(
        [row["expected_price"] / least - 1 for row in rows.values()]
    )
    assert min(row["regret"] for row in rows.values()) == 0


def test_clairvoyant_against_enumeration(store, recorded):
    for price in (PRICE, STAIRS):
        found = ms.optimal_budget(store, "block", budgets=range(7), price=price)
        least = cheapest(recorded, price, 6)
        (row,) = found.frame.filter(pl.col("rule") == "clairvoyant").to_dicts()
        assert (row["expected_price"], row["exactness"]) == (pytest.approx(least), "exact")
        other = ms.clairvoyant(store, [f"block:tree=best-first,budget={n}" for n in range(1, 7)], price=price)
        assert other.price.sum() == pytest.approx(least) and other.exactness == "exact"
        assert np.allclose(other.rounds.sum(), row["rounds"])
        curve = ms.budget_curve(store, "block", budgets=range(7), price=price)
        assert np.allclose(other.alone.sum(0), curve["expected_price"])


def test_clairvoyant_over_drafters_and_lengths_against_reference(store):
    names = ["auto:K=1-3", "block:rule=block", "block:tree=chain,budget=3"]
    found = ms.clairvoyant(store, names, price=PRICE, first_start=1)
    assert found.names == ("none", "auto:K=1", "auto:K=2", "auto:K=3", "block:rule=block", "block:tree=chain,budget=3")
    for i, name in enumerate(("block:rule=none", *found.names[1:])):
        alone = ms.evaluate(store, name, price=PRICE, first_start=1)
        assert np.allclose(found.alone[:, i], alone.price)
        assert (found.price <= alone.price + 1e-12).all()
    frame = found.to_frame()
    assert frame["share_of_rounds"].sum() == pytest.approx(1) and frame["regret"][-1] == 0
    assert "6 choices" in repr(found) and frame["speedup"][0] == 1


def test_holdout_splits_by_prompt_invariant(store):
    found = ms.optimal_budget(store, "block:tree=medusa", budgets=[1, 4], price=PRICE, holdout=0.4, seed=3)
    frame = found.frame
    assert frame["rollouts"].unique(maintain_order=True).to_list() == ["train", "held-out"]
    names = ["p", "q", "r"]
    held = {names[i] for i in np.random.default_rng(3).permutation(3)[:1]}
    own = np.array([prompt not in held for prompt in "ppqqr"])
    curve = ms.budget_curve(store, "block:tree=medusa", budgets=[1, 4], price=PRICE, rollouts=own)
    best = curve.sort("expected_price")[0].to_dicts()[0]
    (train,) = frame.filter((pl.col("rule") == "fixed") & (pl.col("rollouts") == "train")).to_dicts()
    assert found.budget == best["budget"] and train["expected_price"] == pytest.approx(best["expected_price"])
    assert train["speedup_low"] == pytest.approx(best["speedup_low"])
    rounds = frame.filter(pl.col("rule") == "none")["rounds"].to_list()
    assert rounds == [sum(np.array(LENGTHS)[own]), sum(np.array(LENGTHS)[~own])]
    assert not any("quoted on" in note or "measured" in note for note in found.notes) and "held-out" in repr(found)


def test_case_92_no_speculation_is_among_the_choices_against_closed_form(store):
    price = Table(range(1, 8), [1.0, 2.377, 2.377, 3.568, 3.568, 4.228, 4.228])
    found = ms.optimal_budget(store, "block:tree=chain", budgets=[2, 4, 6], price=price)
    assert found.budget == 0 and found.frame.filter(pl.col("rule") == "fixed")["speedup"][0] == 1


def test_case_95_ties_go_to_fewer_nodes_against_closed_form(tmp_path):
    tokens = np.arange(12)
    at = np.minimum(np.arange(12)[:, None] + np.arange(4), 11)
    part = {"ids": np.stack([tokens[at], at + 50], axis=-1), "log_q": np.tile([0.0, -np.inf], (12, 4, 1))}
    part["ids"][..., 1] = -1
    drafts = ms.Drafts("block", "block", "rejection", np.zeros((12, 4)), parts={"lists": part})
    store = ms.write_store(
        tmp_path / "run", rollout_ids=["a"], prompt_ids=["p"], tokens=tokens, indptr=[0, 12], log_p=np.full(12, -1.0),
        drafters={"block": drafts},
    )  # fmt: skip
    curve = ms.budget_curve(store, "block", budgets=[4, 16])
    assert curve["rounds"].to_list() == [12, 3, 3]
    found = ms.optimal_budget(store, "block", budgets=[4, 16], price=Table(range(1, 18), [1.0] * 17))
    assert found.budget == 4


def test_stairs_are_told_invariant(store):
    ladder = Table(range(1, 10), [1.0, *[1.5] * 8])
    found = ms.optimal_budget(store, "block", budgets=range(9), price=ladder)
    price = {row["rule"]: row["expected_price"] for row in found.frame.to_dicts()}
    assert price["full-scan"] < price["first-drop"]
    assert any("the price has stairs" in note for note in found.notes)
    assert any("chosen on the rollouts that it is quoted on" in note for note in found.notes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"contender": "block:tree=chain,budget=4"}, "found budget=4; allowed: none"),
        ({"contender": "auto"}, "an autoregressive drafter's tree"),
        ({"budgets": [1.5]}, "budgets: found 1.5"),
        ({"budgets": [-1]}, "budgets: found -1"),
        ({"holdout": 1.0}, "holdout: found 1.0"),
        ({"holdout": 0.01}, "holdout: found 0.01 of 3 prompts"),
    ],
)
def test_what_cannot_be_asked_is_refused_invariant(store, arguments, message):
    given = {"contender": "block", "budgets": [1, 2], "price": PRICE, **arguments}
    with pytest.raises(ValueError, match=message):
        ms.optimal_budget(store, given.pop("contender"), **given)


def test_command_against_reference(store, tmp_path, capsys):
    file = tmp_path / "cost.csv"
    file.write_text("tokens,price\n" + "".join(f"{n + 1},{1 + 0.1 * n}\n" for n in range(10)))
    words = ["trees", str(store.path), "block", "--budgets", "1..3,9", "--price", str(file), "--holdout", "0.4"]
    assert main([*words, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    curve = ms.budget_curve(store, "block", budgets=[1, 2, 3, 9], price=Affine(1.0, per_draft=0.1))
    best = ms.optimal_budget(store, "block", budgets=[1, 2, 3, 9], price=Affine(1.0, per_draft=0.1), holdout=0.4)
    assert [row["rounds"] for row in told["curve"]] == curve["rounds"].to_list()
    assert [row["expected_price"] for row in told["rules"]] == pytest.approx(best.frame["expected_price"].to_list())
    assert told["budget"] == best.budget
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "held-out" in shown and "clairvoyant" in shown and f"{curve['pooled_length'][1]:.4f}" in shown
    assert main(["trees", "curve", str(store.path), "block", "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("budget,rounds")
    assert main(["trees", str(store.path), "block", "--holdout", "0.5"]) == 2
    assert main(["trees", str(store.path), "block", "--budgets", "4..2"]) == 2
    assert "allowed: numbers and ranges" in capsys.readouterr().err


def test_tree_drawn_against_reference(store, recorded, capsys):
    ids, log_q, tokens, _, _ = recorded
    start = int(np.argmax([walked(recorded, "best-first", 8)[0][s] for s in range(8, 16)])) + 8
    words = ["trees", "show", str(store.path), "block", "--rollout", "d", "--budget", "8", "--start"]
    assert main([*words, str(start - 8)]) == 0
    told = capsys.readouterr().out
    tree = ms.build_tree(ids[start], log_q[start], budget=8)
    assert told.startswith(tree.to_text(tokens=tokens[start:20]))
    count = tree.accepted(tokens[start:20])
    assert count > 0 and told.count(" *\n") == count and f"8 nodes, {count} accepted" in told
    assert main([*words, "12"]) == 2
    assert "allowed: 0 to 11" in capsys.readouterr().err


def test_rounds_of_rules_are_walks_invariant(store):
    found = ms.optimal_budget(store, "block", budgets=range(5), price=PRICE, first_start=1)
    assert found.frame["rounds"][0] == decoded(np.zeros(N, int), 1)[0].sum()
    assert found.to_frame() is found.frame and "<table" in found._repr_html_()
