"""Certificates on stores, against whole distributions and literal greedy acceptance."""

import json

import numpy as np
import polars as pl
import pytest

import markov_spec as ms
from markov_spec.certificates import kl_to_reject
from markov_spec.cli import main

V, K = 6, 3
INDPTR = np.array([0, 9, 9, 10, 24])
N = int(INDPTR[-1])
RULES = [
    ("strict", {}),
    ("tree", {"m": 2}),
    ("additive", {"t": 0.2}),
    ("multiplicative", {"alpha": 0.5}),
    ("top-m", {"m": 2}),
]


def softmax(z):
    p = np.exp(z - z.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def lists(p, width, log):
    ids = np.argsort(-p, axis=-1, kind="stable")[..., :width]
    logs = np.log(np.take_along_axis(p, ids, -1))
    return {"ids": ids, log: logs, "tail_mass": np.clip(1 - np.exp(logs).sum(-1), 0, 1)}


@pytest.fixture
def world(tmp_path):
    """Greedy rollouts of a target, with an autoregressive and a block drafter near it; whole distributions beside."""
    rng = np.random.default_rng(6)
    z = rng.normal(size=(N, V)) * rng.choice([1, 4], (N, 1))
    p, q = softmax(z), softmax(z + 0.4 * rng.normal(size=z.shape))
    at = np.minimum(np.arange(N)[:, None] + np.arange(K), N - 1)
    deep = softmax(z[at] + 0.3 * rng.normal(size=(N, K, V)) * np.arange(1, K + 1)[:, None])
    tokens = p.argmax(-1)
    drafters = {}
    for name, kind, own, target in (("auto", "autoregressive", q, p), ("block", "block", deep, p[at])):
        kl = (target * np.log(target / own)).sum(-1)
        rank = 1 + (own > np.take_along_axis(own, tokens[at][..., None] if own.ndim == 3 else tokens[:, None], -1)).sum(
            -1
        )
        parts = {"divergence": {"raw_kl_pq": kl}, "lists": lists(own, 4, "log_q")}
        hit = np.where(rank == 1, 0, -np.inf)
        drafters[name] = ms.Drafts(name, kind, "match", hit, rank, parts=parts)
    store = ms.write_store(
        tmp_path / "run", rollout_ids=list("abcd"), prompt_ids=list("ppqq"), benchmarks=["x", "x", "y", "y"],
        tokens=tokens, indptr=INDPTR, log_p=np.zeros(N), drafters=drafters, parts={"lists": lists(p, V, "log_p")},
        metadata={"sampling": {"temperature": 0.0}, "vocab_size": V},
    )  # fmt: skip
    return store, p, q, deep


def literal(rule, settings, p, q):
    """Whether the rule accepts what the drafter proposes, from whole distributions."""
    best, draft = p.argmax(-1), q.argmax(-1)
    value, top = np.take_along_axis(p, draft[..., None], -1)[..., 0], p.max(-1)
    if rule == "strict":
        return draft == best
    if rule == "tree":
        return (np.argsort(-q, axis=-1)[..., : settings["m"]] == best[..., None]).any(-1)
    if rule == "additive":
        return value >= top - settings["t"]
    if rule == "multiplicative":
        return value >= settings["alpha"] * top
    return (p > value[..., None]).sum(-1) < settings["m"]


@pytest.mark.parametrize(("rule", "settings"), RULES)
@pytest.mark.parametrize("name", ["auto", "block"])
def test_certified_and_accepted_against_enumeration(world, name, rule, settings):
    store, p, q, deep = world
    found = ms.certify(store, name, rule=rule, **settings)
    own = q[:, None] if name == "auto" else deep
    at = np.minimum(np.arange(N)[:, None] + np.arange(own.shape[1]), N - 1)
    left = np.repeat(INDPTR[1:], np.diff(INDPTR)) - np.arange(N)
    inside = np.arange(own.shape[1]) < left[:, None]
    value = kl_to_reject(-np.sort(-p, axis=1), rule=rule, complete=False, **settings).value[at][inside]
    kl = (p[at] * np.log(p[at] / own)).sum(-1)[inside]
    frame = found.frame
    assert np.allclose(frame["threshold"], value, atol=1e-5) and np.allclose(frame["kl"], kl, atol=1e-5)
    assert frame["accepted"].to_list() == literal(rule, settings, p[at], own)[inside].tolist()
    assert (frame["accepted"] | ~frame["certified"]).all() and frame["certified"].any()
    for by in ("benchmark", "margin", "depth"):
        summary = found.summary(by)
        assert summary["drafts"].sum() == len(frame)
        assert (summary["certified"] * summary["drafts"]).sum() == pytest.approx(frame["certified"].sum())
        assert (summary["gap"] >= 0).all()
    assert ms.certify(store, name, rule=rule, kl=0.0, **settings).frame["certified"].sum() == (value > 0).sum()


@pytest.mark.parametrize("name", ["auto:K=3", "block"])
def test_guaranteed_length_against_literal_decoding(world, name):
    store, *_ = world
    found = ms.certify(store, name)
    worst = found.frame["kl"].max()
    true = ms.evaluate(store, f"{name.split(':')[0]}:K=3,rule=match").pooled_length
    assert found.guaranteed_length(worst) <= true + 1e-9
    lengths = [found.guaranteed_length(kl) for kl in (0, 0.1, 0.3, 0.6, 1.0)]
    assert lengths == sorted(lengths, reverse=True) and lengths[-1] == 1
    for length in (1.2, 1.6):
        kl = found.kl_for_length(length)
        assert found.guaranteed_length(np.nextafter(kl, 0)) >= length > found.guaranteed_length(kl + 1e-9) or kl is None
    assert found.kl_for_length(50.0) is None
    assert found.run_length() >= 0 and found.share_at(0.0) <= 1


def test_loosest_are_accepted_far_above_the_threshold_invariant(world):
    found = ms.certify(world[0], "block")
    loose = found.loosest(5)
    assert len(loose) <= 5 and loose["accepted"].all() and not loose["certified"].any()
    assert (loose["kl"] - loose["threshold"]).is_sorted(descending=True)
    assert "certified" in repr(found)


def test_lossy_rules_and_random_rollouts_bound_no_rounds_invariant(world):
    with pytest.raises(ms.RequestError, match="a lossy rule's accepted draft may leave"):
        ms.certify(world[0], "block", rule="additive", t=0.2).guaranteed_length(0.1)
    with pytest.raises(ms.RequestError, match="drawn at random"):
        ms.certify("data/demo", "quant5").guaranteed_length(0.1)


def test_command_against_reference(world, capsys):
    path = str(world[0].path)
    assert main(["certify", path, "auto", "--rule", "tree,m=2", "--format", "json", "--target-length", "1.2"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = ms.certify(world[0], "auto", rule="tree", m=2)
    assert told["benchmark"] == found.summary().to_dicts() and told["kl_for_length"] == found.kl_for_length(1.2)
    assert main(["certify", path, "auto", "--target-length", "1.2"]) == 0
    assert "guaranteed" in capsys.readouterr().out
    assert main(["certify", path, "auto", "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(found.frame) + 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["auto", "--rule", "magic"], "found 'magic'; allowed: strict"),
        (["auto", "--rule", "tree,m=x"], "found 'm=x'"),
        (["auto", "--rule", "tree"], "m"),
        (["auto:rule=match"], "found a rule or a tree"),
        (["nobody"], "found drafter 'nobody'"),
        (["block:K=9"], "found K=9; allowed: 1 to 3"),
    ],
)
def test_what_cannot_be_certified_is_refused_invariant(world, capsys, words, message):
    assert main(["certify", str(world[0].path), *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_frame_has_nothing_where_nothing_is_drafted_invariant(world):
    frame = ms.certify(world[0], "block").frame
    assert frame.filter(pl.col("rollout") == "b").is_empty()
    assert frame.filter(pl.col("rollout") == "c")["depth"].to_list() == [1]


@pytest.fixture
def small(tmp_path):
    """One greedy rollout of five tokens, whose third is not the target's best and whose fifth is tied; KL 0 or more."""
    p = np.array([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.5, 0.5]])
    part = {"divergence": {"raw_kl_pq": np.array([0, 0, 0, np.inf, 0])}, "lists": lists(p, 2, "log_q")}
    drafters = {
        "auto": ms.Drafts("auto", "autoregressive", "rejection", np.full(5, -1.0), parts=part),
        "few": ms.Drafts(
            "few", "block", "rejection", np.full((5, 1), -1.0), drafted=np.array([0, 1, 1, 1, 1]),
            parts={name: {key: value[:, None] for key, value in own.items()} for name, own in part.items()},
        ),
    }  # fmt: skip
    return ms.write_store(
        tmp_path / "small", rollout_ids=["a"], prompt_ids=["p"], tokens=[0, 0, 1, 0, 0], indptr=[0, 5],
        drafters=drafters, log_p=np.zeros(5), parts={"lists": lists(p, 2, "log_p")},
        metadata={"sampling": {"temperature": 0.0}},
    )  # fmt: skip


def test_nothing_is_promised_where_the_rollout_leaves_the_target_against_closed_form(small):
    found = ms.certify(small, "auto:K=1")
    assert found.frame["followed"].to_list() == [True, True, False, True, False]
    assert found.guaranteed_length(0.0) == 5 / 3  # rounds from 0, 2 and 3: the draft at 0 and that at 3 are certain
    assert any("2 drafts stand where" in note for note in found.notes)
    assert found.kl_for_length(1.0) == np.inf
    few = ms.certify(small, "few")
    assert few.frame["proposed"].to_list() == [False, True, True, True, True]
    assert few.frame["certified"].to_list() == [False, True, True, False, False]
    assert few.frame["accepted"][0] is False
    assert few.guaranteed_length(0.0) == 5 / 3  # rounds from 0, 1 and 3


def test_what_the_figures_leave_unsaid_is_a_note_invariant(small):
    assert any("infinite at 1 of 5 drafts" in note for note in ms.certify(small, "auto").notes)
    assumed = ms.certify(small, "auto", kl=0.01)
    assert any("but 1 of 5 recorded ones exceed it" in note for note in assumed.notes) and assumed.settings == {
        "kl": 0.01
    }
