"""Bounds of greedy stores: what certificates promise and what ties leave open, against literal decoding."""

import itertools

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.cli import main
from markov_spec.evaluation import laws, lists

V, K = 5, 2
INDPTR = np.array([0, 5, 5, 6, 11])
N = int(INDPTR[-1])
AT = np.minimum(np.arange(N)[:, None] + np.arange(K), N - 1)
GREEDY = {"sampling": {"temperature": 0.0}, "logprob_space": "processed", "vocab_size": V}


def softmax(z):
    p = np.exp(z - z.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def listed(p, log, width=V):
    ids = np.argsort(-p, axis=-1, kind="stable")[..., :width]
    with np.errstate(divide="ignore"):
        return {"ids": ids, log: np.log(np.take_along_axis(p, ids, -1))}


def divergence(p, q):
    return (p * np.log(p / q)).sum(-1)


def ranked(q, tokens):
    return 1 + (q > np.take_along_axis(q, tokens[..., None], -1)).sum(-1)


def drafts(name, kind, p, q, tokens, **options):
    rank = ranked(q, tokens)
    parts = {"lists": listed(q, "log_q", 3), "divergence": {"raw_kl_pq": divergence(p, q)}}
    return ms.Drafts(name, kind, "match", np.where(rank == 1, 0, -np.inf), rank, parts=parts, **options)


def write(path, p, tokens, drafters, indptr=INDPTR, **options):
    names = "abcdefgh"[: len(indptr) - 1]
    return ms.write_store(
        path, rollout_ids=list(names), prompt_ids=list(names), tokens=tokens, indptr=indptr, log_p=np.zeros(len(p)),
        drafters=drafters, parts={"lists": listed(p, "log_p")}, **{"metadata": GREEDY, **options},
    )  # fmt: skip


@pytest.fixture
def world(tmp_path):
    """Greedy rollouts, of which one token is not the target's best, and two drafters near the target."""
    rng = np.random.default_rng(14)
    z = rng.normal(size=(N, V)) * rng.choice([1, 3], (N, 1))
    p, q = softmax(z), softmax(z + 0.8 * rng.normal(size=z.shape))
    deep = softmax(z[AT] + 0.8 * rng.normal(size=(N, K, V)))
    tokens = p.argmax(-1)
    tokens[8] = np.argsort(-p[8])[1]
    auto, block = drafts("auto", "autoregressive", p, q, tokens), drafts("block", "block", p[AT], deep, tokens[AT])
    return write(tmp_path / "run", p, tokens, {"auto": auto, "block": block}), p, q, deep, tokens


def promised(p, q, tokens, m):
    """Whether the draft is certain to be the token: K1 and K2 of a target's ranked probabilities, by hand."""
    top = -np.sort(-p)
    if tokens != p.argmax():
        return False
    best = np.inf
    for count in range(1, m + 1):  # competitors that reach the best one's level, from rank m+1 upwards
        group = np.array([top[0], *top[m - count + 1 : m + 1]])
        level = group.mean()
        if m == count or top[m - count] >= level:
            best = (group * np.log(group / level)).sum()
            break
    return divergence(p, q) < best


def decoded(hit, first, last):
    """Rounds of one rollout from its table of accepted drafts (N, K), one round after the other."""
    s, rounds = first, 0
    while s < last:
        accepted = 0
        while accepted < min(hit.shape[1], last - s) and hit[s, accepted]:
            accepted += 1
        s, rounds = s + accepted + 1, rounds + 1
    return rounds


def extremes(sure, by_position):
    """The least and most rounds over all ways in which the drafts that are not sure may be accepted."""
    out = []
    for first, last in itertools.pairwise(INDPTR):
        inside = np.zeros(sure.shape, dtype=bool)
        for s in range(first, last):
            inside[s, : last - s] = True
        open_ = np.argwhere(inside & ~sure)
        keys = sorted({(s + k,) if by_position else (s, k) for s, k in open_.tolist()})
        found = set()
        for values in itertools.product((False, True), repeat=len(keys)):
            given, hit = dict(zip(keys, values, strict=True)), sure.copy()
            for s, k in open_.tolist():
                hit[s, k] = given[(s + k,) if by_position else (s, k)]
            found.add(decoded(hit, first, last))
        out.append((min(found), max(found)))
    return np.array(out).T


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("name", ["auto", "block"])
def test_certified_bounds_against_enumeration(world, name, m):
    store, p, q, deep, tokens = world
    own = q[AT] if name == "auto" else deep
    sure = np.array([[promised(p[AT[s, k]], own[s, k], tokens[AT[s, k]], m) for k in range(K)] for s in range(N)])
    found = ms.evaluate_bounds(store, f"{name}:K={K}", f"certificates:m={m}")
    low, high = extremes(sure, name == "auto")
    assert found.low.tolist() == low.tolist() and found.high.tolist() == high.tolist() and found.kind == "exact"
    assert 0 < found.uncertain < 1 and (low < high).any() and (high < np.diff(INDPTR))[[0, 3]].any()
    if m == 1:
        exact = ms.evaluate(store, f"{name}:K={K}")
        assert (low <= exact.rounds).all() and (exact.rounds <= high).all()
        assert found.exact.tolist() == exact.rounds.tolist() and found.rule == "match"
    else:
        assert found.exact is None and found.rule == "certificates"


@pytest.mark.parametrize("m", [1, 2])
def test_every_drafter_within_the_divergence_stays_inside_against_simulation(tmp_path, m):
    """Literal greedy decoding with any drafter whose KL is at most the given one takes no more rounds than promised."""
    rng, T, most = np.random.default_rng(3), 12, 0.25
    p = softmax(rng.normal(size=(T, V)) * 3)
    tokens, recorded = p.argmax(-1), p
    parts = {"lists": listed(recorded, "log_q", 3)}
    own = ms.Drafts("auto", "autoregressive", "match", np.zeros(T), np.ones(T, int), parts=parts)
    store = write(tmp_path / "run", p, tokens, {"auto": own}, indptr=np.array([0, T]))
    found = ms.evaluate_bounds(store, "auto:K=3", f"certificates:kl={most},m={m}")
    assert found.low[0] < found.high[0] < T
    seen = []
    for _ in range(150):
        q = softmax(np.log(p) + rng.normal(size=p.shape) * rng.choice([0.5, 1, 2], (T, 1)))
        rival = np.argsort(-p)[:, 1 : 1 + m]
        np.put_along_axis(q, rival, np.take_along_axis(q, rival, -1) + rng.choice([0, 0.5], (T, 1)), -1)
        q /= q.sum(-1, keepdims=True)
        for t in range(T):  # mixed with the target until it is near enough
            while divergence(p[t], q[t]) > most:
                q[t] = 0.9 * q[t] + 0.1 * p[t]
        emitted, rounds = ms.simulate_decoding(
            lambda prefix: np.eye(V)[tokens[min(len(prefix), T - 1)]],
            lambda prefix, more, q=q: q[min(len(prefix + more), T - 1)],
            rule="match", draft_length=3, max_tokens=T, rng=rng, drafts=m,
        )  # fmt: skip
        assert emitted == tuple(tokens.tolist()) and found.low[0] <= rounds <= found.high[0]
        seen.append(rounds)
    assert len(set(seen)) > 1


@pytest.mark.parametrize("name", ["auto:K=2", "block"])
def test_case_69_tolerance_of_recorded_divergences_against_reference(world, name):
    """Recorded KL that may be too small by so much certify what larger ones do, and no more."""
    store = world[0]
    largest = max(float(np.nanmax(store.drafter_part(own, "divergence")["raw_kl_pq"])) for own in store.drafters)
    found = {extra: ms.evaluate_bounds(store, name, f"certificates:tolerance={extra}") for extra in (0, 0.05, 9)}
    certain = ms.certify(store, name, tolerance=0.05)
    low = (certain.certified & certain.followed[AT[:, : certain.certified.shape[1]]]).astype(float)
    low = low[:, 0] if name.startswith("auto") else low
    expected = ms.bound_rounds(low, np.ones_like(low), INDPTR, draft_length=K)
    assert found[0.05].high.tolist() == expected.high.tolist() and largest < 9
    assert found[0].uncertain < found[0.05].uncertain < found[9].uncertain == 1
    assert "recorded KL and 0.05 more" in found[0.05].source


def test_certified_bounds_do_not_depend_on_ranges_invariant(world, monkeypatch):
    store = world[0]
    whole = [
        ms.evaluate_bounds(store, name, source)
        for name in ("auto:K=2", "block")
        for source in ("certificates", "ties:nats=1")
    ]
    monkeypatch.setattr(lists, "RANGE_BYTES", 1)
    monkeypatch.setattr(laws, "CHUNK_BYTES", 1)
    pieces = [
        ms.evaluate_bounds(store, name, source)
        for name in ("auto:K=2", "block")
        for source in ("certificates", "ties:nats=1")
    ]
    for one, other in zip(whole, pieces, strict=True):
        assert one.to_frame().equals(other.to_frame()) and one.results() == other.results()


def test_a_divergence_that_the_record_exceeds_is_refused_invariant(world):
    with pytest.raises(ms.RequestError, match="drafts that are certified and were rejected; allowed: a kl that bounds"):
        ms.evaluate_bounds(world[0], "block", "certificates:kl=0")


@pytest.fixture
def tied(tmp_path):
    """Six greedy tokens; the target's two best are equal at the second and nearly so at the fifth."""
    p = np.tile([0.7, 0.2, 0.1], (6, 1))
    p[1], p[4] = [0.45, 0.45, 0.1], [0.4505, 0.4495, 0.1]
    part = {"divergence": {"raw_kl_pq": np.zeros(6)}, "lists": listed(p, "log_q")}
    hit = np.array([-np.inf, 0, 0, 0, 0, 0])
    cells = hit[np.minimum(np.arange(6)[:, None] + np.arange(2), 5)]
    deep = {
        "divergence": {"raw_kl_pq": np.zeros((6, 2))},
        "lists": {k: v[:, None].repeat(2, 1) for k, v in part["lists"].items()},
    }
    made = {
        "auto": ms.Drafts("auto", "autoregressive", "match", hit, parts=part),
        "block": ms.Drafts("block", "block", "match", cells, parts=deep),
        "drawn": ms.Drafts("drawn", "autoregressive", "rejection", np.full(6, -1.0), parts=part),
    }
    return write(tmp_path / "tied", p, np.zeros(6, int), made, indptr=np.array([0, 6]))


def test_drafts_that_are_not_made_promise_nothing_against_closed_form(tmp_path):
    """Every KL is 0; from two of six starts nothing is drafted, and that is no contradiction to a certificate."""
    p, drafted = np.tile([0.7, 0.2, 0.1], (6, 1)), np.array([0, 2, 2, 2, 0, 2])
    made = np.arange(2) < drafted[:, None]
    deep = {"divergence": {"raw_kl_pq": np.zeros((6, 2))}, "lists": listed(np.tile(p[:, None], (1, 2, 1)), "log_q")}
    own = ms.Drafts("few", "block", "match", np.where(made, 0, -np.inf), drafted=drafted, parts=deep)
    store = write(tmp_path / "few", p, np.zeros(6, int), {"few": own}, indptr=np.array([0, 6]))
    found = ms.evaluate_bounds(store, "few", "certificates")
    assert (found.low[0], found.high[0], found.kind) == (4, 4, "exact")  # rounds from 0, 1, 4 and 5
    assert (found.open_drafts[0], found.drafts[0]) == (0, 7)


@pytest.mark.parametrize(
    ("nats", "strict"), [("", [0, 0, 1, 1, 1, 1]), (":nats=0.01", [0, 0, 1, 1, 0, 1]), (":nats=5", [0] * 6)]
)
@pytest.mark.parametrize("name", ["auto:K=2", "block"])
def test_ties_against_enumeration(tied, name, nats, strict):
    """Strict and tolerant readings of the ties, each decoded literally."""
    found = ms.evaluate_bounds(tied, name, f"ties{nats}")
    table = np.array([strict, [0, 1, 1, 1, 1, 1]], dtype=bool)[:, np.minimum(np.arange(6)[:, None] + np.arange(2), 5)]
    rounds = [decoded(own, 0, 6) for own in table]
    assert (found.high[0], found.low[0]) == tuple(rounds) and rounds[0] > rounds[1] == found.exact[0]
    assert found.kind == ("exact" if name.startswith("auto") else "outer")


def test_no_tie_meets_the_exact_value_against_reference():
    for name in ("quant5", "block"):
        found, exact = ms.evaluate_bounds("data/demo-greedy", name, "ties"), ms.evaluate("data/demo-greedy", name)
        assert found.low.tolist() == found.high.tolist() == exact.rounds.tolist() and found.kind == "exact"


def test_recorded_certificates_contain_the_exact_value_invariant():
    for name, least in (("quant5", 2), ("drop1:K=3", 2), ("block", 1)):
        found, exact = (
            ms.evaluate_bounds("data/demo-greedy", name, "certificates"),
            ms.evaluate("data/demo-greedy", name),
        )
        assert (found.low <= exact.rounds).all() and (exact.rounds <= found.high).all()
        assert found.pooled_length[0] >= least
        promise = ms.certify("data/demo-greedy", name).run_length()
        print(name, "pooled length", found.pooled_length, "exact", exact.pooled_length, "certified run", promise)


@pytest.mark.parametrize(
    ("contender", "source", "message"),
    [
        ("drawn", "certificates", "found rule 'rejection'; allowed: match"),
        ("drawn", "ties", "found rule 'rejection'; allowed: match"),
        ("auto", "certificates:kl=-1", "found kl=-1.0; allowed: a finite number >= 0"),
        ("auto", "certificates:kl=x", "found kl='x'"),
        ("auto", "certificates:m=0", "found m=0; allowed: an integer >= 1"),
        ("auto", "certificates:m=1.5", "found m=1.5"),
        ("auto", "certificates:t=1", "allowed settings of certificates: kl, m, tolerance"),
        ("auto", "certificates:tolerance=-1", "found tolerance=-1"),
        ("auto", "ties:nats=-1", "found nats=-1"),
        ("auto:rule=additive,t=0.1", "certificates", "found lossy rule 'additive'; allowed: rejection, block"),
        ("auto:rule=typical", "lists", "bound no rounds"),
        ("nobody", "ties", "found drafter 'nobody'"),
    ],
)
def test_what_is_not_greedy_is_refused_invariant(tied, contender, source, message):
    with pytest.raises(ms.RequestError, match=message):
        ms.evaluate_bounds(tied, contender, source)


def test_rollouts_drawn_at_random_and_missing_lists_are_refused_invariant(tied, tmp_path):
    for source in ("certificates", "ties"):
        with pytest.raises(ms.RequestError, match="allowed: those of a greedy target"):
            ms.evaluate_bounds("data/demo", "quant5", source)
    rollouts, auto = tied.rollouts(), tied.drafter("auto")
    own = ms.Drafts("auto", "autoregressive", "match", auto.log_q)
    given = dict(rollout_ids=["a"], prompt_ids=["a"], tokens=rollouts.tokens, indptr=[0, 6], log_p=np.zeros(6))
    bare = ms.write_store(tmp_path / "bare", drafters={"auto": own}, metadata=GREEDY, **given)
    with pytest.raises(ms.RequestError, match="ties need part 'lists' of the target"):
        ms.evaluate_bounds(bare, "auto", "ties")
    with pytest.raises(ms.RequestError, match="certificates need part 'lists' of the target"):
        ms.evaluate_bounds(bare, "auto", "certificates")
    part = {"lists": {"ids": np.zeros((6, 1), int), "log_p": np.full((6, 1), -0.1)}}
    short = ms.write_store(tmp_path / "short", drafters={"auto": own}, metadata=GREEDY, parts=part, **given)
    with pytest.raises(ms.RequestError, match="of 2 tokens or more"):
        ms.evaluate_bounds(short, "auto", "ties")
    with pytest.raises(ms.RequestError, match="needs raw_kl_pq"):
        ms.evaluate_bounds(short, "auto", "certificates")


def test_command_against_reference(capsys):
    words = ["evaluate", "data/demo-greedy", "quant5:K=4", "--bounds", "certificates", "--format", "csv"]
    assert main(words) == 0
    told = capsys.readouterr().out
    found = ms.evaluate_bounds("data/demo-greedy", "quant5:K=4", "certificates").results()[0]
    assert f"{found['rounds_high']}" in told and "drafts that recorded KL does not certify" in told
    assert main(["evaluate", "data/demo-greedy", "quant5:rule=top-m,m=2", "--bounds", "certificates"]) == 2
    assert "bound no rounds" in " ".join(capsys.readouterr().err.split())
