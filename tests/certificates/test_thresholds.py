"""Thresholds of whole distributions: against solvers over all drafters, closed forms and 60 digits."""

import decimal
from decimal import Decimal

import numpy as np
import pytest

from markov_spec.acceptance.lossy import LOSSY
from markov_spec.certificates import DIVERGENCES, RULES, kl_to_reject
from tests.certificates import optima

INF, NAN = np.inf, np.nan
EXAMPLE = {
    "strict": {}, "additive": {"t": 0.2}, "multiplicative": {"alpha": 0.4}, "top-m": {"m": 2},
    "typical": {"epsilon": 0.15, "delta": 0.6}, "tree": {"m": 2},
}  # fmt: skip


def least(p, rule, name, given, **options):
    """The threshold of one whole distribution."""
    found = kl_to_reject([p], rule=rule, divergence=name, complete=True, **given, **options)
    assert found.exact.all() and found.value.shape == (1,)
    return found.value[0]


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("rule", RULES)
def test_least_divergence_against_reference(rule, name):
    rng = np.random.default_rng(1)
    finite = 0
    for _ in range(200):
        p, given = optima.drawn(rng, rule)
        wanted = min((optima.solved(p, way, name, rng) for way in optima.ways(p, rule, given)), default=INF)
        found = least(p, rule, name, given)
        assert found == pytest.approx(wanted, abs=1e-6), (p, given)
        finite += found < INF
    assert finite > 50


@pytest.mark.parametrize("name", ["kl", "reverse-kl"])
@pytest.mark.parametrize("rule", RULES)
def test_levels_of_tied_tokens_against_enumeration(rule, name):
    rng = np.random.default_rng(2)
    zeros = 0
    for _ in range(60):
        size = int(rng.integers(3, 6))
        _, given = optima.drawn(rng, rule)
        given = {key: min(value, size - 1) if key == "m" else value for key, value in given.items()}
        counts = rng.multinomial(12, np.full(size, 1 / size)) + (name == "reverse-kl")
        p = -np.sort(-counts) / counts.sum()
        zeros += p[-1] == 0
        wanted = min((optima.by_active_sets(p, way, name) for way in optima.ways(p, rule, given)), default=INF)
        assert least(p, rule, name, given) == pytest.approx(max(wanted, 0), abs=1e-12), (p, given)
    assert (zeros > 3) == (name == "kl")


def test_strict_against_closed_form():
    p = -np.sort(-np.random.default_rng(3).dirichlet([0.5] * 6, 500))
    best, second = p[:, 0], p[:, 1]
    level = (best + second) / 2
    wanted = {
        "kl": best * np.log(best / level) + second * np.log(second / level),
        "tv": (best - second) / 2,
        "reverse-kl": -np.log(1 - (np.sqrt(best) - np.sqrt(second)) ** 2),
    }
    for name, values in wanted.items():
        found = kl_to_reject(p, rule="strict", divergence=name)
        np.testing.assert_allclose(found.value, values, rtol=1e-10, atol=1e-14)
        for rule in ("tree", "top-m"):
            np.testing.assert_allclose(kl_to_reject(p, rule=rule, m=1, divergence=name).value, values, atol=1e-13)
        relaxed = kl_to_reject(p, rule="multiplicative", alpha=1, divergence=name)
        np.testing.assert_array_equal(relaxed.value, found.value)
        np.testing.assert_array_equal(kl_to_reject(p, rule="additive", t=0, divergence=name).value, found.value)


def test_caps_against_closed_form():
    rng = np.random.default_rng(4)
    p = -np.sort(-rng.dirichlet([0.05] * 10, 2000))
    for rule in RULES:
        found = kl_to_reject(p, rule=rule, **EXAMPLE[rule]).value
        assert (found <= np.log(3 if rule == "tree" else 2) + 1e-15).all() and found.max() > 0.6
    for m in range(1, 9):
        gaps = []
        for rest in (1e-3, 1e-6, 1e-12, 0):
            row = [1 - rest, *np.full(m, rest / m)]
            gaps.append(np.log(m + 1) - least(row, "tree", "kl", {"m": m}))
        assert gaps[0] > gaps[1] > gaps[2] > 0
        np.testing.assert_allclose(gaps[-1], 0, atol=1e-15)
    for rule in set(RULES) - {"tree"}:
        rows = [[1 - rest, *np.full(3, rest / 3)] for rest in (1e-3, 1e-6, 1e-12, 0)]
        gaps = [np.log(2) - least(row, rule, "kl", EXAMPLE[rule]) for row in rows]
        assert gaps[0] > gaps[1] > gaps[2] > 0 and abs(gaps[3]) < 1e-15
    assert least([1, 0], "strict", "tv", {}) == 0.5 and least([1, 0, 0], "tree", "tv", {"m": 2}) == pytest.approx(2 / 3)
    assert least([1, 0], "strict", "reverse-kl", {}) == INF and least([1, 0, 0], "tree", "reverse-kl", {"m": 2}) == INF
    # q without the best token and one of its two rivals ties them at 0
    assert least([0.6, 0.4, 0], "tree", "reverse-kl", {"m": 2}) == pytest.approx(-np.log(0.4))


def _exactly(p, rule, name, m):
    """The formulas of strict, top-m and tree in 60 digits."""
    p = [Decimal(float(mass)) for mass in p]
    home, others = (p[0], p[m:0:-1]) if rule == "tree" else (p[m], p[:m])
    pool = [home]
    for mass in others:
        if name == "reverse-kl":
            level = (sum(x.ln() for x in pool) / len(pool)).exp()
        else:
            level = sum(pool) / len(pool)
        if not (mass < level if rule == "tree" else mass > level):
            break
        pool.append(mass)
    if name == "reverse-kl":
        level = (sum(x.ln() for x in pool) / len(pool)).exp()
        return -(1 - sum(x - level for x in pool) / sum(p)).ln()
    level = sum(pool) / len(pool)
    return abs(home - level) if name == "tv" else sum(x * (x / level).ln() for x in pool if x)


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("rule", ["strict", "top-m", "tree"])
def test_narrow_margins_against_reference(rule, name):
    rng = np.random.default_rng(5)
    worst = 0.0
    with decimal.localcontext(prec=60):
        for _ in range(400):
            size = int(rng.integers(3, 8))
            m = 1 if rule == "strict" else int(rng.integers(1, size))
            margins = 10.0 ** rng.uniform(*rng.choice([(-13, -11), (-9, -4), (-3, -0.5)]), size)
            p = -np.sort(-(1 + rng.choice([-1, 0, 1], size) * margins))
            if rng.random() < 0.5:
                p[1:] *= 10.0 ** rng.uniform(-30, 0)
            p /= p.sum()
            wanted = float(_exactly(p, rule, name, m))
            found = least(p, rule, name, {} if rule == "strict" else {"m": m})
            if wanted < 1e-50:  # a tie, and what 60 digits leave of it
                assert found == 0
            else:
                worst = max(worst, abs(found - wanted) / wanted)
    assert worst < 1e-12


@pytest.mark.parametrize("rule", sorted(set(RULES) & set(LOSSY)))
def test_rejected_tokens_against_reference(rule):
    """The rules of ``acceptance.lossy`` decide on each token; K1 follows from the best one that they reject."""
    rng = np.random.default_rng(6)
    assert RULES[rule] is LOSSY[rule].thresholds
    for _ in range(100):
        p, given = optima.drawn(rng, rule)
        size = len(p)
        columns = {
            "draft_log_p": np.log(p), "draft_rank": np.arange(1, size + 1), "top_log_p": np.full(size, np.log(p[0])),
            "entropy": np.full(size, -(p * np.log(p)).sum()),
        }  # fmt: skip
        entry = LOSSY[rule]
        accepted = entry.function(*[columns[key] for key in entry.reads], [0, size], **given)
        level = np.eye(size)
        some = np.flatnonzero(~accepted)
        ways = [np.delete(level[r] - level, r, axis=0) for r in some[:1]]
        wanted = min((optima.by_active_sets(p, way, "kl") for way in ways), default=INF)
        assert least(p, rule, "kl", given) == pytest.approx(wanted, abs=1e-12)


def test_nothing_to_reject_against_closed_form():
    p = [0.6, 0.4]
    for name in DIVERGENCES:
        assert least([1.0], "strict", name, {}) == INF
        assert least(p, "additive", name, {"t": 0.6}) == INF
        assert least(p, "multiplicative", name, {"alpha": 0}) == INF
        assert least(p, "top-m", name, {"m": 2}) == INF
        assert least(p, "top-m", name, {"m": 9}) == INF
        assert least(p, "tree", name, {"m": 2}) == INF
        assert least(p, "typical", name, {"epsilon": 0}) == INF
        assert least([0.25] * 4, "typical", name, {"epsilon": 0.5, "delta": 1}) == 0  # all tokens are rejected
        # tokens of probability 0 exist beyond a list that is not complete
        for rule, given in (("top-m", {"m": 2}), ("typical", {"epsilon": 0}), ("tree", {"m": 2})):
            found = kl_to_reject([p], rule=rule, divergence=name, **given)
            assert found.exact.all() and found.value[0] == least([*p, 0], rule, name, given)
        assert kl_to_reject([p], rule="additive", t=0.6, divergence=name).value[0] == INF
    assert kl_to_reject([[1.0]], rule="strict").value[0] == np.log(2)
    for rule in RULES:
        none = kl_to_reject(np.empty((0, 3)), rule=rule, **EXAMPLE[rule])
        assert none.value.shape == none.exact.shape == (0,)
    assert repr(none) == "Thresholds(tree, kl, 0 rows, 0 exact)"


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("rule", RULES)
def test_threads_and_chunks_invariant(rule, name):
    rng = np.random.default_rng(7)
    p = -np.sort(-rng.dirichlet([0.3] * 10, 60_000).astype(np.float32))
    tail = (1 - p[:, :8].sum(axis=1)).astype(np.float32)
    entropy = {"entropy": rng.uniform(0, 3, len(p))} if rule == "typical" else {}
    found = [
        kl_to_reject(p[:, :8], rule=rule, tail_mass=tail, divergence=name, threads=n, **EXAMPLE[rule], **entropy)
        for n in (1, 2, 3)
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(other.value, found[0].value)
        np.testing.assert_array_equal(other.exact, found[0].exact)
    some = slice(40_000, 40_100)
    entropy = {key: values[some] for key, values in entropy.items()}
    wide = kl_to_reject(
        p[some, :8].astype(float), rule=rule, tail_mass=tail[some], divergence=name, **EXAMPLE[rule], **entropy
    )
    np.testing.assert_array_equal(wide.value, found[0].value[some])
    assert (found[0].value >= 0).all() and not np.isnan(found[0].value).any()


GOOD = np.array([[0.6, 0.3], [0.5, 0.4]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "entropy"}, "rule: found 'entropy'; allowed: strict, additive, multiplicative, top-m, typical, tree"),
        ({"divergence": "js"}, "divergence: found 'js'; allowed: kl, reverse-kl, tv"),
        ({"rule": "tree"}, "m: absent; rule 'tree' needs it"),
        ({"rule": "tree", "m": 0}, "m: found 0; allowed: an integer >= 1"),
        ({"rule": "top-m", "m": 1.0}, "m: found 1.0; allowed: an integer >= 1"),
        ({"rule": "additive", "t": 1.1}, "t: found 1.1; allowed: a number from 0 to 1"),
        ({"rule": "additive", "t": True}, "t: found True"),
        ({"rule": "multiplicative", "alpha": NAN}, "alpha: found nan"),
        ({"rule": "typical", "delta": INF}, "delta: found inf; allowed: a number from 0 to inf"),
        ({"t": 0.1}, "t: given, but rule 'strict' does not use it; only for: additive"),
        ({"m": 2}, "m: given, but rule 'strict' does not use it; only for: top-m, tree"),
        ({"entropy": [1, 1]}, "entropy: given, but rule 'strict' does not use it; only for: typical"),
        ({"rule": "typical", "entropy": [1]}, r"entropy: found shape \(1,\); allowed: \(2,\), one for each row"),
        ({"rule": "typical", "entropy": [1, -1]}, "entropy: row 1: found -1.0; allowed: a finite number >= 0"),
        ({"rule": "typical", "entropy": [NAN, 1]}, "entropy: row 0: found nan"),
        ({"p_top": GOOD[0]}, r"p_top: found shape \(2,\); allowed: \(n, M\), M >= 1"),
        ({"p_top": GOOD[:, :0]}, r"p_top: found shape \(2, 0\)"),
        ({"p_top": GOOD[:, ::-1]}, "p_top: row 0, entry 1: found 0.6; allowed: 0 or more, at most 0.3, the one before"),
        ({"p_top": [[0.6, 0.3], [NAN, 0.4]]}, "p_top: row 1, entry 0: found nan; allowed: 0 or more, at most 1"),
        ({"p_top": [[0.6, 0.3], [1.2, -0.2]]}, "p_top: row 1, entry 0: found 1.2"),
        ({"p_top": [[0.6, 0.3], [1.0, -0.1]]}, "p_top: row 1, entry 1: found -0.1"),
        ({"tail_mass": 0}, "p_top, tail_mass: row 0: found sum 0.89999.*; allowed: 1 within 0.0001"),
        ({"tail_mass": [0.1, NAN]}, "tail_mass: row 1: found nan; allowed: 0 to 1"),
        ({"tail_mass": [[0.1, 0.1]]}, r"tail_mass: found shape \(1, 2\); allowed: \(\) or \(2,\)"),
        (
            {"p_top": [[0.7, 0.2], [0.9, 0.0]]},
            "tail_mass: row 1: found 0.1 behind a token of probability 0; allowed: 0",
        ),
        ({"complete": True}, "tail_mass: found up to 0.1 beyond complete lists; allowed: at most 0.0001"),
        ({"threads": 0}, "threads: found 0; allowed: None or an integer >= 1"),
    ],
)
def test_refused_invariant(options, message):
    options = {"p_top": GOOD, "rule": "strict", "tail_mass": 0.1} | options
    with pytest.raises(ValueError, match=message):
        kl_to_reject(options.pop("p_top"), **options)


def test_the_first_wrong_row_is_named_invariant():
    p = np.full((300_000, 2), 0.5)
    p[[77_000, 290_000]] = 0.4
    with pytest.raises(ValueError, match=r"row 77000: found sum 0\.8"):
        kl_to_reject(p, rule="strict", threads=2)
