"""Bounds of truncated lists of target and drafter, against every way in which what is left out may lie."""

import itertools

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.acceptance.truncated import list_bounds
from markov_spec.chain import bound_rounds, bound_rounds_block

V, K = 6, 3
INDPTR = np.array([0, 7, 7, 8, 20])
N = int(INDPTR[-1])
AT = np.minimum(np.arange(N)[:, None] + np.arange(K), N - 1)


def listed(p, log, width=V):
    ids = np.argsort(-p, axis=-1, kind="stable")[..., :width]
    return {"ids": ids, log: np.log(np.take_along_axis(p, ids, -1))}


def chance(p, tokens):
    return np.take_along_axis(p, tokens[..., None], -1)[..., 0]


@pytest.fixture
def world(tmp_path):
    """Whole distributions of a target, of an autoregressive and of a block drafter, and their store."""
    rng = np.random.default_rng(33)
    p, q = rng.dirichlet(np.full(V, 0.7), (2, N))
    deep = rng.dirichlet(np.full(V, 0.7), (N, K))
    tokens = np.array([rng.choice(V, p=own) for own in p])
    drafters = {
        name: ms.Drafts(name, kind, "rejection", np.log(chance(own, at)), parts={"lists": listed(own, "log_q")})
        for name, kind, own, at in (("auto", "autoregressive", q, tokens), ("block", "block", deep, tokens[AT]))
    }
    store = ms.write_store(
        tmp_path / "run", rollout_ids=list("abcd"), prompt_ids=list("ppqq"), tokens=tokens, indptr=INDPTR,
        log_p=np.log(chance(p, tokens)), drafters=drafters, parts={"lists": listed(p, "log_p")},
        metadata={"vocab_size": V},
    )  # fmt: skip
    return store, tokens, p, q, deep


def ends(p, token, top):
    """The least and largest probability of a token, by the ``top`` likeliest of a whole distribution."""
    order = np.argsort(-p, kind="stable")[:top]
    if token in order:
        return p[token], p[token]
    missing, last = 1 - p[order].sum(), p[order[-1]]
    return max(missing - (V - top - 1) * last, 0), min(last, missing)


def all_ends(p, tokens, top):
    found = np.array([ends(own, token, top) for own, token in zip(p.reshape(-1, V), tokens.ravel(), strict=True)])
    return found[:, 0].reshape(tokens.shape), found[:, 1].reshape(tokens.shape)


@pytest.mark.parametrize("top", [1, 2, 4, 6])
@pytest.mark.parametrize("rule", ["rejection", "block", "independent"])
@pytest.mark.parametrize("name", ["auto:K=3,", "block:"])
def test_lists_of_both_against_reference(world, name, rule, top):
    store, tokens, p, q, deep = world
    own, at = (q, tokens) if name.startswith("auto") else (deep, tokens[AT])
    target = p if own is q else p[AT]
    for source in (f"target-lists:top={top}", f"lists:top={top}+target-lists:top={top}"):
        q_ends = all_ends(own, at, top if source.startswith("lists") else V)
        p_ends = all_ends(target, at, top)
        found = ms.evaluate_bounds(store, f"{name}rule={rule}", source)
        with np.errstate(divide="ignore"):
            ratio = np.log(q_ends[0] / p_ends[1]), np.log(q_ends[1] / p_ends[0])
        given, verb = tuple(np.minimum(np.exp(end), 1) for end in ratio), bound_rounds
        if rule == "block":
            given, verb = ratio, bound_rounds_block
        elif rule == "independent":
            given = q_ends
        length = K if own is q else None
        expected = verb(*given, INDPTR, draft_length=length)
        assert np.allclose(found.low, expected.low, atol=2e-5) and np.allclose(found.high, expected.high, atol=2e-5)
        open_ = own is deep and rule != "independent" and (found.low < found.high).any()
        assert found.kind == ("outer" if open_ else expected.kind)
        assert found.source.endswith(f"p known in its top {top} alone")
        if top == V:
            exact = ms.evaluate(store, f"{name}rule={rule}")
            assert np.allclose(found.low, exact.rounds, atol=2e-5) and found.uncertain < 0.5


def redrawn(rng, p, top):
    """A distribution with the same list of ``top`` tokens, drawn at random."""
    order = np.argsort(-p, kind="stable")
    out, rest = p.copy(), order[top:]
    missing, last = p[rest].sum(), p[order[top - 1]]
    for _ in range(20):
        share = missing * rng.dirichlet(np.full(rest.size, rng.choice([0.2, 1, 5])))
        if (share <= last).all():
            out[rest] = share
            break
    return out


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("name", ["auto:K=3,", "block:"])
def test_records_with_the_same_lists_stay_inside_invariant(world, name, rule):
    store, tokens, p, q, deep = world
    own = q if name.startswith("auto") else deep
    rng, top = np.random.default_rng(0), 2
    found = ms.evaluate_bounds(store, f"{name}rule={rule}", f"lists:top={top}+target-lists:top={top}")
    spread = []
    for _ in range(60):
        other_p = np.array([redrawn(rng, x, top) for x in p])
        other_q = np.array([redrawn(rng, x, top) for x in own.reshape(-1, V)]).reshape(own.shape)
        with np.errstate(divide="ignore"):
            logs = np.log(chance(other_p, tokens)), np.log(chance(other_q, tokens if own is q else tokens[AT]))
        rounds = ms.solve(ms.round_law(*logs, INDPTR, rule=rule, draft_length=K if own is q else None)).expected
        assert (found.low <= rounds + 1e-5).all() and (rounds <= found.high + 1e-5).all()
        spread.append(rounds.sum())
    assert max(spread) - min(spread) > 0.2 * (found.high - found.low).sum()


def test_what_no_probability_is_known_of_stays_open_against_closed_form(tmp_path):
    """Of a token that the target's list excludes nothing is known; what the drafter cannot propose is rejected."""
    part = {"ids": np.array([[0, -1], [0, 1]]), "log_p": np.array([[0.0, -np.inf], [-0.1, -3.0]])}
    drafts = {
        name: ms.Drafts(name, "autoregressive", "rejection", np.array(values))
        for name, values in (("some", [-1.0, -1.0]), ("none", [-np.inf, -np.inf]))
    }
    store = ms.write_store(
        tmp_path / "run", rollout_ids=["a"], prompt_ids=["p"], tokens=[5, 5], indptr=[0, 2], log_p=[-20.0, -2.0],
        drafters=drafts, parts={"lists": part}, metadata={"vocab_size": 9},
    )  # fmt: skip
    found = ms.evaluate_bounds(store, "some:K=1", "target-lists")
    assert found.low[0] == 1 and np.isclose(found.high[0], 2 - np.exp(-1))  # a of the first draft is from q / 1 on
    none = ms.evaluate_bounds(store, "none:K=1", "target-lists")
    assert (none.low[0], none.high[0], none.kind) == (2, 2, "exact")


def test_unproposed_drafts_are_not_counted_invariant(tmp_path):
    """The share of uncertain drafts is one of those that are made."""
    log_q, ids = np.log(np.full((4, 2), 0.25)), np.tile([7, 8], (4, 2, 1))
    part = {"ids": ids, "log_q": np.log(np.tile([0.4, 0.3], (4, 2, 1)))}
    drafts = ms.Drafts("d", "block", "rejection", log_q, drafted=np.array([0, 1, 1, 0]), parts={"lists": part})
    store = ms.write_store(
        tmp_path / "run", rollout_ids=["a"], prompt_ids=["p"], tokens=[1, 2, 3, 4], indptr=[0, 4],
        log_p=np.log(np.full(4, 0.5)), drafters={"d": drafts}, metadata={"vocab_size": 9},
    )  # fmt: skip
    found = ms.evaluate_bounds(store, "d", "lists")
    assert (found.open_drafts.tolist(), found.drafts.tolist(), found.uncertain) == ([2], [2], 1.0)


def test_probability_of_a_token_outside_a_list_against_enumeration():
    """Every tail in 20ths: the bounds are its least and largest entry."""
    for head, entries in itertools.product(([8, 4], [6, 6], [12, 3], [16, 2]), (2, 3, 4)):
        rest = 20 - sum(head)
        tails = [u for u in itertools.product(range(head[-1] + 1), repeat=entries) if sum(u) == rest]
        if not tails:
            continue
        values = [u[0] / 20 for u in tails]
        low, high = list_bounds([0, 1], np.log(np.array(head) / 20), 9, vocab_size=2 + entries)
        np.testing.assert_allclose([low, high], [min(values), max(values)], atol=1.01e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ids": [[0.0, 1.0]]}, r"ids: found shape \(1, 2\), dtype float64; allowed: integers, \(1, 2\)"),
        ({"ids": [0, 1]}, r"ids: found shape \(2,\)"),
        ({"tokens": 3}, r"tokens: found shape \(\), dtype int64; allowed: integers, \(1,\)"),
        ({"log_p": [[0.5, -1.0]]}, r"log_p\[0, 0\]: found 0.5; allowed: at most 1e-06, or -inf"),
        ({"log_p": [[np.nan, -1.0]]}, r"log_p\[0, 0\]: found nan"),
        ({"log_p": -1.0}, r"log_p: found shape \(\); allowed: \(..., M\), M >= 1"),
        ({"vocab_size": 0}, "vocab_size: found 0"),
    ],
)
def test_refused_lists_invariant(options, message):
    given = {"ids": [[0, 1]], "log_p": np.log([[0.5, 0.25]]), "tokens": [3], "vocab_size": 9} | options
    with pytest.raises(ValueError, match=message):
        list_bounds(given.pop("ids"), given.pop("log_p"), given.pop("tokens"), **given)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("target-lists:top=33", "found top=33; allowed: 1 to 32"),
        ("lists+target-lists:depth=2", "allowed settings of target-lists: top"),
        ("lists+lists", r"found lists\+lists; allowed: lists\+target-lists alone"),
        ("lists+half", r"found lists\+half; allowed"),
        ("lists+target-lists+ties", "found lists"),
        ("lists+", "bounds: found ''; allowed: lists"),
    ],
)
def test_sources_that_do_not_combine_are_refused_invariant(source, message):
    with pytest.raises(ms.RequestError, match=message):
        ms.evaluate_bounds("data/demo", "quant5", source)


def test_what_lists_need_is_told_invariant(world, tmp_path):
    _, tokens, p, *_ = world
    given = dict(rollout_ids=["a"], prompt_ids=["p"], tokens=tokens, indptr=[0, N], log_p=np.log(chance(p, tokens)))
    drafts = {"d": ms.Drafts("d", "autoregressive", "rejection", np.full(N, -1.0))}
    bare = ms.write_store(tmp_path / "bare", drafters=drafts, metadata={"vocab_size": V}, **given)
    with pytest.raises(ms.RequestError, match="need part 'lists' of the target, which was not recorded"):
        ms.evaluate_bounds(bare, "d", "target-lists")
    metadata = {"vocab_size": V, "sampling": {"temperature": 0.7}, "logprob_space": "processed"}
    parts = {"lists": listed(p, "log_p")}
    cold = ms.write_store(tmp_path / "cold", drafters=drafts, parts=parts, metadata=metadata, **given)
    with pytest.raises(ms.RequestError, match=r"tokens are drawn with \{'temperature': 0.7\}; allowed: temperature 1"):
        ms.evaluate_bounds(cold, "d", "target-lists")
    nameless = ms.write_store(tmp_path / "nameless", drafters=drafts, parts=parts, **given)
    with pytest.raises(ms.RequestError, match="need metadata vocab_size"):
        ms.evaluate_bounds(nameless, "d", "target-lists")
