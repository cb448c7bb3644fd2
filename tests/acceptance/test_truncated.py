"""Truncated lists: bounds against whole distributions, every one of them, and linear programs."""

import itertools

import numpy as np
import pytest
from scipy import optimize, special

from markov_spec.acceptance import scalars
from markov_spec.acceptance.truncated import overlap_bounds, tail_bucket_kl, temper_bounds

RNG = np.random.default_rng(32)
INF, NAN = np.inf, np.nan
TEMPERATURES = [0.05, 0.5, 0.9, 1.0, 1.25, 2.0, 20.0]


def _log(values):
    with np.errstate(divide="ignore"):
        return np.log(values)


def _tempered(p, temperature):
    return special.softmax(_log(p) / temperature, axis=-1)


def _list(p, size):
    """The ids, log-probabilities and tail of the most probable tokens, the lower id first among equals."""
    ids = np.argsort(-p, axis=-1, kind="stable")
    ranked = np.take_along_axis(p, ids, axis=-1)
    return ids[..., :size], _log(ranked[..., :size]), ranked[..., size:].sum(axis=-1)


def test_case_31_logprob_space_against_closed_form():
    logits = np.array([1.0, 0.0, -1.0, -2.0])
    raw = special.log_softmax(logits)
    np.testing.assert_allclose(np.exp(raw), [0.6439, 0.2369, 0.0871, 0.0321], atol=5e-5)
    for bound in temper_bounds(raw, tail_mass=0.0, entries=0, temperature=0.5):
        np.testing.assert_allclose(bound, [0.8650, 0.1171, 0.0158, 0.0021], atol=5e-5)
    low, high = temper_bounds(raw[:2], tail_mass=np.exp(raw[2:]).sum(), entries=2, temperature=0.5)
    assert (low < [0.8650, 0.1171]).all() and (high > [0.8650, 0.1171]).all()


def test_case_32_temperature_of_truncated_lists_against_closed_form():
    whole = np.log([0.5, 0.3, 0.2])
    for bound in temper_bounds(whole, tail_mass=0.0, entries=0, temperature=0.5):
        np.testing.assert_allclose(bound[0], 0.65789, atol=5e-6)
    low, high = temper_bounds(whole[:2], tail_mass=0.2, entries=None, temperature=0.5)
    np.testing.assert_allclose([low[0], high[0]], [0.65789, 0.73529], atol=5e-6)
    for entries in (None, 1, 10_000):
        with pytest.raises(ValueError, match="top_log_p: found a list of 1 token; allowed: 2 or more"):
            temper_bounds([np.log(0.5)], tail_mass=0.5, entries=entries, temperature=0.5)


def test_case_33_truncated_lists_against_closed_form():
    p, q = ([0, 1], np.log([0.6, 0.3]), 0.1), ([0, 1], np.log([0.5, 0.45]), 0.05)
    np.testing.assert_allclose(overlap_bounds(*p, *q), [0.80, 0.85], rtol=1e-14)
    whole = np.array([0.6, 0.3, 0.1]), np.array([0.5, 0.45, 0.05])
    np.testing.assert_allclose(scalars.overlap(*whole), 0.85)
    truncated = np.sum(whole[0][:2] * np.log(whole[0][:2] / whole[1][:2]))
    np.testing.assert_allclose(truncated, -0.01225, atol=5e-6)
    np.testing.assert_allclose(tail_bucket_kl(*p, *q), 0.05707, atol=5e-6)
    with pytest.raises(ValueError, match=r"q_log, q_tail: sum: found 1\.05\d*; allowed: 1 within 1e-4"):  # renormalised
        overlap_bounds(*p, [0, 1], np.log([0.5, 0.45]) - np.log(0.95), 0.05)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(
    ("tail", "cap", "entries"), [(12, 4, 3), (12, 4, 4), (10, 4, 4), (6, 6, 5), (7, 3, 5), (0, 3, 4)]
)
def test_temper_bounds_against_enumeration(temperature, tail, cap, entries):
    # Masses in 30ths; a list of the cap and what is left for the best token; every tail in 30ths.
    listed = np.array([30 - tail - cap, cap]) / 30
    tails = [u for u in itertools.product(range(cap + 1), repeat=entries) if sum(u) == tail]
    wanted = np.array([_tempered(np.concatenate((listed, np.array(u) / 30)), temperature)[:2] for u in tails])
    low, high = temper_bounds(np.log(listed), tail_mass=tail / 30, entries=entries, temperature=temperature)
    assert (low <= wanted + 1e-14).all() and (wanted <= high + 1e-14).all()
    # As many of the cap as fit, and one with the rest, is always in 30ths; an even tail only sometimes.
    packed, spread = (high, low) if temperature > 1 else (low, high)
    np.testing.assert_allclose(packed, (wanted.max if temperature > 1 else wanted.min)(axis=0), rtol=1e-12)
    if tail % entries == 0:
        np.testing.assert_allclose(spread, (wanted.min if temperature > 1 else wanted.max)(axis=0), rtol=1e-12)
    open_low, open_high = temper_bounds(np.log(listed), tail_mass=tail / 30, entries=None, temperature=temperature)
    assert (open_low <= low + 1e-15).all() and (high <= open_high + 1e-15).all()


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_temper_bounds_against_random_search(temperature):
    for size, spread in itertools.product((5, 40), (0.05, 0.5, 5)):
        p = RNG.dirichlet(np.full(size, spread), size=(50, 2))
        exact = _tempered(-np.sort(-p), temperature)
        for listed in (2, 4, size):
            _, logs, tail = _list(p, listed)
            for entries in (size - listed, np.full((50, 2), size - listed), 10 * size, None):
                low, high = temper_bounds(logs, tail_mass=tail, entries=entries, temperature=temperature)
                assert low.shape == (50, 2, listed)
                assert (low <= exact[..., :listed] + 1e-12).all() and (exact[..., :listed] <= high + 1e-12).all()
            if listed == size:
                np.testing.assert_allclose(low, exact, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_open_ends_are_approached_against_closed_form(temperature):
    logs, tail = np.log([0.5, 0.3]), 0.2
    ends = [temper_bounds(logs, tail_mass=tail, entries=n, temperature=temperature) for n in (10**3, 10**15, None)]
    end = 0 if temperature > 1 else 1
    found = [bounds[end][0] for bounds in ends]
    assert found == sorted(found, reverse=temperature > 1)
    np.testing.assert_allclose(found[1], found[2], atol=1e-6)
    np.testing.assert_allclose(found[2], 0 if temperature > 1 else 0.25 / 0.34, rtol=1e-12)


def test_extreme_lists_against_closed_form():
    # What float32 rounding leaves of a tail under a peaked list, and lists that a filter has cut.
    for temperature in (0.5, 2.0):
        for bound in temper_bounds([0.0, -INF, -INF], tail_mass=0.0, entries=9, temperature=temperature):
            assert bound.tolist() == [1, 0, 0]
        for bound in temper_bounds([0.0, -INF], tail_mass=6e-8, entries=None, temperature=temperature):
            assert bound.tolist() == [1, 0]
        for bound in temper_bounds([0.0, -60.0], tail_mass=1e-9, entries=4, temperature=temperature):
            np.testing.assert_allclose(bound, [1, np.exp(-60 / temperature)], rtol=1e-9)
    low, high = temper_bounds([0.0, -750.0], tail_mass=6e-8, entries=None, temperature=0.5)
    np.testing.assert_allclose([low[0], high[0]], 1, rtol=1e-15)
    low, high = temper_bounds(np.log([0.4, 0.2]), tail_mass=np.float32(0.4), entries=2, temperature=20)
    np.testing.assert_allclose(low, high, rtol=1e-6)  # two of .2, and no third of a rounding's size


def _overlap_program(p_list, q_list, size):
    """The largest overlap of whole distributions of ``size`` tokens with these lists."""
    (p_ids, p_log, p_tail), (q_ids, q_log, q_tail) = p_list, q_list
    limits = []
    for ids, logs in ((p_ids, p_log), (q_ids, q_log)):
        given = dict(zip(ids.tolist(), np.exp(logs).tolist(), strict=True))
        limits += [(given[v], given[v]) if v in given else (0, np.exp(logs[-1])) for v in range(size)]
    one, nothing = np.eye(size), np.zeros((size, size))
    return -optimize.linprog(
        np.concatenate((np.zeros(2 * size), -np.ones(size))),
        A_ub=np.block([[-one, nothing, one], [nothing, -one, one]]),
        b_ub=np.zeros(2 * size),
        A_eq=np.kron(np.eye(2, 3), np.ones(size)),
        b_eq=[np.exp(p_log).sum() + p_tail, np.exp(q_log).sum() + q_tail],
        bounds=limits + [(0, 1)] * size,
    ).fun


@pytest.mark.parametrize(("m", "n"), [(2, 2), (3, 1), (1, 4), (4, 4)])
def test_overlap_bounds_against_a_linear_program(m, n):
    solved = 0
    for spread in (0.3, 1, 10):
        for p, q in RNG.dirichlet(np.full(8, spread), size=(8, 2)):
            lists = _list(p, m), _list(q, n)
            low, high = overlap_bounds(*lists[0], *lists[1])
            assert low - 1e-12 <= scalars.overlap(p, q) <= high + 1e-12
            counts = [int(tail / np.exp(logs[-1])) + 1 for _, logs, tail in lists]
            if max(counts) > 30:
                continue
            solved += 1
            np.testing.assert_allclose(high, _overlap_program(*lists, 8 + sum(counts)), atol=1e-6)
            apart = []  # the least: each tail on tokens of its own
            for at, (ids, logs, tail) in enumerate(lists):
                whole = np.zeros(80)
                whole[ids] = np.exp(logs)
                whole[10 + 35 * at :][: counts[at]] = tail / counts[at]
                assert whole[10:].max() <= np.exp(logs[-1])
                apart.append(whole)
            np.testing.assert_allclose(low, scalars.overlap(*apart), atol=1e-12)
    assert solved > 12


def test_lists_of_whole_vocabularies_against_closed_form():
    p, q = RNG.dirichlet(np.full(6, 0.5), size=(2, 3, 4))
    lists = *_list(p, 6), *_list(q, 6)
    for bound in overlap_bounds(*lists):
        assert bound.shape == (3, 4)
        np.testing.assert_allclose(bound, scalars.overlap(p, q), rtol=1e-12)
    np.testing.assert_allclose(tail_bucket_kl(*lists), special.rel_entr(p, q).sum(axis=-1), rtol=1e-12)


def test_bucket_divergence_against_random_search():
    raised = 0
    for spread, (m, n) in itertools.product((0.1, 1, 10), ((1, 1), (2, 5), (5, 2), (7, 7))):
        p, q = RNG.dirichlet(np.full(9, spread), size=(2, 200))
        found, whole = tail_bucket_kl(*_list(p, m), *_list(q, n)), special.rel_entr(p, q).sum(axis=-1)
        assert (found >= 0).all() and (found <= whole + 1e-12).all()
        longer = tail_bucket_kl(*_list(p, m + 1), *_list(q, n + 1))
        assert (found <= longer + 1e-12).all()  # a list that tells more apart
        raised += (longer > found + 1e-6).sum()
        for i in range(5):
            shared = set(_list(p[i], m)[0].tolist()) & set(_list(q[i], n)[0].tolist())
            rest = [v for v in range(9) if v not in shared]
            merged = [np.array([*(w[v] for v in sorted(shared)), w[rest].sum()]) for w in (p[i], q[i])]
            np.testing.assert_allclose(found[i], special.rel_entr(*merged).sum(), atol=1e-12)
    assert raised > 1000


def test_bucket_divergence_of_rounded_lists_invariant():
    p = RNG.dirichlet(np.full(50, 0.3), size=300)
    ids, logs, tail = _list(p, 20)
    logs, tail = logs.astype(np.float32), tail.astype(np.float32)
    near = tail_bucket_kl(ids, logs, tail, ids, logs - np.float32(1e-7), tail)
    assert (near >= 0).all() and (near < 1e-12).all()
    assert tail_bucket_kl([3], [0.0], 0.0, [4], [0.0], 0.0) == 0  # of which the lists tell nothing apart
    assert tail_bucket_kl([3, 5], np.log([0.9, 0.1]), 0.0, [3, 5], [0.0, -INF], 0.0) == INF


GOOD = ([[0, 1], [5, 7]], np.log([[0.6, 0.3], [0.5, 0.45]]), [0.1, 0.05])


def _but(**changes):
    return [changes.get(name, value) for name, value in zip(("ids", "logs", "tail"), GOOD, strict=True)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": [[0, 1], [7, 7]]}, r"q_ids\[1\]: found 7 twice; allowed: each id once in a list"),
        ({"ids": [[0, -1], [5, 7]]}, r"q_ids\[0, 1\]: found -1; allowed: token ids, 0 or more"),
        ({"ids": [[0.0, 1.0], [5, 7]]}, r"q_ids: found shape \(2, 2\), dtype float64; allowed: integers, \(2, 2\)"),
        ({"ids": [0, 1]}, r"q_ids: found shape \(2,\), dtype int64; allowed: integers, \(2, 2\)"),
        (
            {"logs": np.log([[0.3, 0.6], [0.5, 0.45]])},
            r"q_log\[0, 1\]: found -0.51\d*; allowed: at most the one before",
        ),
        ({"logs": [[NAN, -1.0], [-1.0, -1.0]]}, r"q_log\[0, 0\]: found nan; allowed: at most 1e-06, or -inf"),
        ({"logs": [[0.1, -1.0], [-1.0, -1.0]]}, r"q_log\[0, 0\]: found 0.1; allowed"),
        ({"tail": [0.1, 0.15]}, r"q_log, q_tail: sum\[1\]: found 1.09\d*; allowed: 1 within 1e-4"),
        ({"tail": [0.1, -0.2]}, r"q_tail\[1\]: found -0.2; allowed: 0 to 1"),
        ({"tail": [0.1, NAN]}, r"q_tail\[1\]: found nan; allowed: 0 to 1"),
        ({"tail": 0.1}, r"q_tail: found shape \(\); allowed: \(2,\), one for each list"),
        ({"logs": 0.0}, r"q_log: found shape \(\); allowed: \(..., M\), M >= 1"),
        (
            {"ids": [0, 1], "logs": np.log([0.5, 0.45]), "tail": 0.05},
            r"q_log: found lists of shape \(\); allowed: \(2,\)",
        ),
    ],
)
def test_refused_pairs_invariant(changes, message):
    for function in (overlap_bounds, tail_bucket_kl):
        with pytest.raises(ValueError, match=message):
            function(*GOOD, *_but(**changes))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0}, "temperature: found 0; allowed: a finite number above 0"),
        ({"temperature": NAN}, "temperature: found nan"),
        ({"temperature": True}, "temperature: found True"),
        ({"entries": -1}, "entries: found -1; allowed: 0 or more"),
        ({"entries": [1, -2]}, r"entries\[1\]: found -2; allowed: 0 or more"),
        ({"entries": 1.0}, r"entries: found shape \(\), dtype float64; allowed: None, an integer or \(2,\)"),
        ({"entries": [1, 2, 3]}, r"entries: found shape \(3,\), dtype int64"),
        ({"entries": 0}, r"tail_mass\[0\]: found 0.1; allowed: what its entries hold"),
        ({"entries": 3, "top_log_p": np.log([[0.6, 0.3], [0.94, 0.01]])}, r"tail_mass\[1\]: found 0.05; allowed"),
        ({"entries": None, "top_log_p": [[np.log(0.9), -INF], [np.log(0.95), -INF]]}, r"tail_mass\[0\]: found 0.1"),
        ({"top_log_p": np.log([[0.3, 0.6], [0.5, 0.45]])}, r"top_log_p\[0, 1\]: found -0.51\d*; allowed: at most the"),
    ],
)
def test_refused_temperatures_invariant(options, message):
    options = {"top_log_p": GOOD[1], "tail_mass": GOOD[2], "entries": 5, "temperature": 0.5} | options
    with pytest.raises(ValueError, match=message):
        temper_bounds(options.pop("top_log_p"), **options)
