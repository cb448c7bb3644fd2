"""Lossy rules: decisions, the label of their law, and what literal decoding by them does instead."""

import itertools

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.acceptance import RULES
from markov_spec.acceptance.lossy import LOSSY
from markov_spec.arrays import ABSENT

INF, NAN = np.inf, np.nan
ENDS = np.array([0, 1, 5, 5, 12])
LOOSE = {
    "typical": {"epsilon": 0.2, "delta": 0.4},
    "additive": {"t": 0.2},
    "multiplicative": {"alpha": 0.5},
    "top-m": {"m": 2},
    "margin": {"margin": 0.15},
}
STRICT = {
    "additive": {"t": 0},
    "multiplicative": {"alpha": 1},
    "top-m": {"m": 1},
    "margin": {"margin": -0.01},
}


def _decides(rule, p, d, **thresholds):
    """A rule in plain words on a full distribution."""
    best = sorted(range(len(p)), key=lambda v: -p[v])
    if rule == "typical":
        entropy = -sum(v * np.log(v) for v in p if v > 0)
        return p[d] > min(thresholds["epsilon"], thresholds["delta"] * np.exp(-entropy))
    if rule == "additive":
        return p[d] >= p[best[0]] - thresholds["t"]
    if rule == "multiplicative":
        return p[d] >= thresholds["alpha"] * p[best[0]]
    if rule == "top-m":
        return d in best[: thresholds["m"]]
    return d == best[0] or (d == best[1] and p[best[0]] - p[best[1]] <= thresholds["margin"])


def _columns(p, drafts):
    """What a recorder would store of distributions (N, V) and drafted tokens (N,) or (N, K), -1 for none."""
    ranked = np.sort(p, axis=1)[:, ::-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = {
            "entropy": -np.where(p > 0, p * np.log(p), 0).sum(axis=1),
            "top_log_p": np.log(ranked[:, 0]),
            "second_log_p": np.log(ranked[:, 1]),
        }
    draft_log_p, draft_rank = np.full(drafts.shape, NAN), np.full(drafts.shape, ABSENT)
    for cell in np.ndindex(drafts.shape):
        at = sum(cell)
        if at < len(p) and drafts[cell] >= 0:
            mass = p[at, drafts[cell]]
            draft_log_p[cell] = np.log(mass) if mass > 0 else -INF
            draft_rank[cell] = 1 + (p[at] > mass).sum() if mass > 0 else ABSENT
    return columns | {"draft_log_p": draft_log_p, "draft_rank": draft_rank}


def _hit(rule, columns, indptr, **thresholds):
    entry = LOSSY[rule]
    return entry.function(*[columns[name] for name in entry.reads], indptr, **thresholds)


@pytest.mark.parametrize("shape", [(12,), (12, 3), (12, 9), (12, 0)])
@pytest.mark.parametrize("rule", LOSSY)
def test_decisions_against_reference(rule, shape):
    rng = np.random.default_rng(3)
    accepted = 0
    for _ in range(20):
        p, drafts = rng.dirichlet(np.full(5, 0.6), size=12), rng.integers(-1, 5, shape)
        hit = _hit(rule, _columns(p, drafts), ENDS, **LOOSE[rule])
        assert hit.dtype == bool and hit.shape == shape
        for cell in np.ndindex(shape):
            end = ENDS[np.searchsorted(ENDS, cell[0], side="right")]
            at, d = sum(cell), drafts[cell]
            assert hit[cell] == (at < end and d >= 0 and _decides(rule, p[min(at, 11)], d, **LOOSE[rule]))
        accepted += hit.sum()
    assert accepted > 0 or 0 in shape


@pytest.mark.parametrize("rule", LOSSY)
def test_one_token_and_none_invariant(rule):
    p = np.array([[0.9, 0.06, 0.04]])
    assert _hit(rule, _columns(p, np.zeros((1, 3), dtype=int)), [0, 1], **LOOSE[rule]).tolist() == [
        [True, False, False]
    ]
    columns = _columns(np.zeros((0, 2)), np.zeros((0, 3), dtype=int))
    assert _hit(rule, columns, [0, 0], **LOOSE[rule]).shape == (0, 3)


@pytest.mark.parametrize("rule", STRICT)
def test_strict_thresholds_of_a_greedy_target_against_match(rule):
    rng = np.random.default_rng(4)
    p, drafts = rng.dirichlet(np.ones(3), size=12), rng.integers(0, 3, (12, 4))
    at = np.minimum(np.arange(12)[:, None] + np.arange(4), 11)
    columns = {name: values.astype(np.float32) for name, values in _columns(p, drafts).items() if "rank" not in name}
    columns["draft_rank"] = _columns(p, drafts)["draft_rank"]
    law = ms.round_law(None, None, ENDS, rule=rule, hit=_hit(rule, columns, ENDS, **STRICT[rule]))
    wanted = ms.round_law(None, None, ENDS, rule="match", hit=drafts == p.argmax(axis=1)[at])
    assert 0 < wanted.survival().sum() < wanted.survival().size
    np.testing.assert_array_equal(law.survival(), wanted.survival())


@pytest.mark.parametrize("rule", LOSSY)
def test_one_token_left_to_the_target_against_match(rule):
    rng = np.random.default_rng(5)
    said, drafts = rng.integers(0, 3, 12), rng.integers(0, 3, (12, 2))
    columns = _columns(np.eye(3)[said], drafts)
    wanted = (drafts == said[np.minimum(np.arange(12)[:, None] + np.arange(2), 11)]) & (np.arange(2) < _left())
    np.testing.assert_array_equal(_hit(rule, columns, ENDS, **LOOSE[rule]), wanted)


def _left():
    return (np.repeat(ENDS[1:], np.diff(ENDS)) - np.arange(12))[:, None]


@pytest.mark.parametrize(
    ("rule", "thresholds"),
    [
        ("typical", [{"epsilon": e, "delta": d} for e, d in ((1, 9), (0.5, 0.5), (0.5, 0.2), (0.1, 0.2), (0, 0.2))]),
        ("additive", [{"t": t} for t in (0, 0.1, 0.5, 1)]),
        ("multiplicative", [{"alpha": a} for a in (1, 0.7, 0.2, 0)]),
        ("top-m", [{"m": m} for m in (1, 2, 3, 5)]),
        ("margin", [{"margin": g} for g in (-1, 0, 0.1, 0.4, 1)]),
    ],
)
def test_looser_thresholds_accept_more_invariant(rule, thresholds):
    rng = np.random.default_rng(6)
    columns = _columns(rng.dirichlet(np.ones(5), size=12), rng.integers(0, 5, (12, 3)))
    hits = [_hit(rule, columns, ENDS, **given) for given in thresholds]
    for tight, loose in itertools.pairwise(hits):
        assert (loose | ~tight).all()
    assert len({int(hit.sum()) for hit in hits}) > 2
    if rule != "margin":
        np.testing.assert_array_equal(hits[-1], np.arange(3) < _left())


def test_defaults_are_those_of_the_functions_invariant():
    for entry in LOSSY.values():
        names = [None if name in entry.thresholds else name for name in entry.function.__annotations__]
        assert [name for name in names if name not in (None, "return")] == [*entry.reads, "indptr"]
        given = entry.function.__kwdefaults__ or {}
        assert dict(entry.thresholds) == dict.fromkeys(entry.thresholds) | given


def test_case_53_point_mass_draft_against_closed_form():
    # p gives the draft .5: matched in half of the target's draws, accepted by a lossy rule whatever the target draws.
    columns = _columns(np.array([[0.5, 0.25, 0.25]] * 2), np.zeros(2, dtype=int))
    said = np.array([0, 1])
    assert (said == 0).mean() == 0.5
    for rule in LOSSY:
        hit = _hit(rule, columns, [0, 1, 2], **LOOSE[rule])
        law = ms.round_law(None, None, [0, 1, 2], rule=rule, hit=hit, draft_length=1)
        assert law.survival().mean() == 1
        assert law.exactness == RULES[rule].exactness == "teacher-forced"


def _literal_rounds(rule, thresholds, target, drafter, length, cap, prefix=()):
    """Rounds of literal decoding by a lossy rule until ``cap`` tokens; the target's own token is its best one."""
    if len(prefix) >= cap:
        return 0
    for _ in range(length):
        d = int(np.argmax(drafter(prefix)))
        if not _decides(rule, target(prefix), d, **thresholds):
            break
        prefix = (*prefix, d)
    return 1 + _literal_rounds(
        rule, thresholds, target, drafter, length, cap, (*prefix, int(np.argmax(target(prefix))))
    )


def _world(seed):
    rows, rng = {}, np.random.default_rng(seed)

    def row(key):
        if key not in rows:
            rows[key] = rng.dirichlet(np.ones(3))
        return rows[key]

    return lambda prefix: row(("p", prefix)), lambda prefix: row(("q", prefix))


def _teacher_forced_rounds(rule, thresholds, target, drafter, length, cap):
    said = ()
    while len(said) < cap:
        said = (*said, int(np.argmax(target(said))))
    contexts = [said[:t] for t in range(cap)]
    drafts = np.array([np.argmax(drafter(context)) for context in contexts])
    columns = _columns(np.array([target(context) for context in contexts]), drafts)
    hit = _hit(rule, columns, [0, cap], **thresholds)
    return ms.solve(ms.round_law(None, None, [0, cap], rule=rule, hit=hit, draft_length=length)).expected[0]


@pytest.mark.parametrize("rule", LOSSY)
def test_teacher_forced_rounds_are_not_those_of_the_lossy_decoder_against_enumeration(rule):
    surplus = []
    for seed in range(60):
        world = _world(seed)
        forced, literal = (f(rule, LOOSE[rule], *world, 3, 9) for f in (_teacher_forced_rounds, _literal_rounds))
        surplus.append(literal - forced)
        if rule in STRICT:
            assert _literal_rounds(rule, STRICT[rule], *world, 3, 9) == _teacher_forced_rounds(
                rule, STRICT[rule], *world, 3, 9
            )
    assert min(surplus) < 0 < max(surplus)  # a bound on neither side


@pytest.mark.parametrize("rule", LOSSY)
def test_literal_decoding_is_refused_invariant(rule):
    uniform = np.ones(3) / 3
    options = {"draft_length": 1, "max_tokens": 2, "rng": np.random.default_rng(0)}
    with pytest.raises(ValueError, match=f"rule: found '{rule}'; allowed: rejection, .*, none$"):
        ms.simulate_decoding(lambda _: uniform, lambda *_: uniform, rule=rule, **options)
    with pytest.raises(ValueError, match=f"hit: absent; rule '{rule}' needs it"):
        ms.round_law(None, [[0.0]], [0, 1], rule=rule)


ONE, TOP = np.full((5, 2), -1.0), np.full(5, -0.5)


def _with(values, at, value):
    changed = values.copy()
    changed[at] = value
    return changed


@pytest.mark.parametrize(
    ("rule", "columns", "thresholds", "message"),
    [
        ("typical", (ONE, TOP + 1), {"epsilon": 1.5}, "epsilon: found 1.5; allowed: a number from 0 to 1"),
        ("typical", (ONE, TOP + 1), {"delta": NAN}, "delta: found nan; allowed: a number from 0 to inf"),
        ("additive", (ONE, TOP), {"t": True}, "t: found True; allowed: a number from 0 to 1"),
        ("additive", (ONE, TOP), {"t": "0.1"}, "t: found '0.1'; allowed"),
        ("multiplicative", (ONE, TOP), {"alpha": -0.1}, "alpha: found -0.1; allowed: a number from 0 to 1"),
        ("margin", (ONE.astype(int), TOP, TOP), {"margin": 2}, "margin: found 2; allowed: a number from -1 to 1"),
        ("top-m", (-ONE.astype(int),), {"m": 0}, "m: found 0; allowed: an integer >= 1"),
        ("typical", (ONE[:4], TOP + 1), {}, r"draft_log_p: found shape \(4, 2\); allowed: \(5, K\) or \(5,\)"),
        ("typical", (_with(ONE, (3, 1), 0.1), TOP + 1), {}, "draft_log_p: rollout 1, position 0, depth 2: found 0.1"),
        ("typical", (_with(TOP, 4, INF), TOP + 1), {}, "draft_log_p: rollout 1, position 1: found inf; allowed"),
        ("typical", (ONE, _with(TOP + 1, 3, -0.1)), {}, "entropy: rollout 1, position 0: found -0.1; allowed: a fin"),
        ("typical", (ONE, _with(TOP + 1, 0, INF)), {}, "entropy: rollout 0, position 0: found inf"),
        ("additive", (ONE, _with(TOP, 3, -INF)), {"t": 0}, "top_log_p: rollout 1, position 0: found -inf; allowed: a"),
        ("additive", (ONE, TOP[:, None]), {"t": 0}, r"top_log_p: found shape \(5, 1\); allowed: \(5,\)"),
        ("top-m", (ONE,), {"m": 1}, "draft_rank: found dtype float64; allowed: integers"),
        ("top-m", (np.zeros(5, dtype=int),), {"m": 1}, "draft_rank: rollout 0, position 0: found 0; allowed: 1 or"),
        (
            "margin", (np.ones(5, dtype=int), TOP, _with(TOP, 4, -0.4)), {"margin": 0},
            "second_log_p: rollout 1, position 1: found -0.4; allowed: at most top_log_p there",
        ),
        ("margin", (np.ones(5, dtype=int), TOP, _with(TOP, 2, NAN)), {"margin": 0}, "second_log_p: rollout 0, pos"),
    ],
)  # fmt: skip
def test_refused_inputs_invariant(rule, columns, thresholds, message):
    with pytest.raises(ValueError, match=message):
        LOSSY[rule].function(*columns, [0, 3, 5], **thresholds)


def test_cells_past_the_ends_are_ignored_invariant():
    log_p, ranks = ONE.copy(), np.ones((5, 2), dtype=int)
    log_p[[2, 4], 1], ranks[[2, 4], 1] = 7.0, -3
    assert LOSSY["typical"].function(log_p, TOP + 1, [0, 3, 5]).sum() == 8
    assert LOSSY["top-m"].function(ranks, [0, 3, 5], m=ABSENT).sum() == 8
