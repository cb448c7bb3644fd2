"""Monte-Carlo rounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import markov_spec as ms
from markov_spec import simulation
from markov_spec.acceptance import RULES
from tests import oracles, strategies
from tests.chain import test_enumeration as enumeration


def _law(form):
    # Rollouts of 0 to 40 tokens, with certain and impossible drafts among the cells.
    rng = np.random.default_rng(5)
    indptr = np.concatenate(([0], np.cumsum([0, 1, 2, 17, 40])))
    accept = rng.choice([0.0, 1.0, 0.3, 0.6, 0.9], (60, 6) if form == "cells" else 60)
    return ms.RoundLaw(accept.astype(np.float32), indptr, rng.integers(0, 7, 60))


@pytest.mark.parametrize("first_start", [0, 1])
@pytest.mark.parametrize("form", ["cells", "positions"])
def test_mean_and_distribution_against_the_engine_by_simulation(form, first_start):
    law, replicates = _law(form), 40_000
    found = ms.simulate(law, replicates=replicates, rng=np.random.default_rng(30), first_start=first_start)
    rounds, exact = ms.solve(law, first_start=first_start), ms.round_distribution(law, first_start=first_start)
    error = np.sqrt(rounds.variance / replicates)
    assert (np.abs(found.mean(axis=0) - rounds.expected) <= 4 * error + 1e-12).all()
    for i in range(5):
        wanted = replicates * exact.pmf(i)
        counts = np.bincount(found[:, i], minlength=wanted.size)
        assert counts.size == wanted.size and not counts[wanted == 0].any()
        common = wanted >= 5
        rest = [wanted[~common].sum()] if wanted[~common].sum() > 1e-6 else []
        expected = np.concatenate((wanted[common], rest))
        observed = np.concatenate((counts[common], [counts[~common].sum()] if rest else []))
        if expected.size > 1:
            assert stats.chisquare(observed, expected).pvalue > 1e-3


@given(strategies.laws(), st.integers(0, 3))
def test_certain_rounds_against_closed_form(law, first_start):
    sure = ms.RoundLaw(np.round(law.accept), law.indptr, law.draft_length)
    found = ms.simulate(sure, replicates=2, rng=np.random.default_rng(0), first_start=first_start)
    length, wanted = np.broadcast_to(sure.draft_length, sure.accept.shape[:1]), []
    for begin, end in zip(sure.indptr, sure.indptr[1:], strict=False):
        s, count = begin + first_start, 0
        while s < end:
            drafts = sure.accept[s] if sure.form == "cells" else sure.accept[s:]
            drafts = drafts[: min(length[s], end - s)]
            s += (int(np.argmin(drafts)) if not drafts.all() else drafts.size) + 1
            count += 1
        wanted.append(count)
    assert found.dtype == np.int64 and found.tolist() == [wanted, wanted]


def test_seed_and_chunks_invariant(monkeypatch):
    law = _law("cells")

    def rounds(seed):
        return ms.simulate(law, replicates=50, rng=np.random.default_rng(seed)).tolist()

    whole = rounds(1)
    assert rounds(1) == whole != rounds(2)
    for chunk in (1, 41, 130):
        monkeypatch.setattr(simulation, "CHUNK", chunk)
        assert rounds(1) == whole


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicates": 0}, "replicates: found 0; allowed: an integer >= 1"),
        ({"replicates": 2.0}, "replicates: found 2.0; allowed"),
        ({"first_start": -1}, "first_start: found -1; allowed: an integer >= 0"),
        ({"rng": 7}, "rng: found int; allowed: numpy.random.Generator"),
    ],
)
def test_refused_options_invariant(options, message):
    options = {"replicates": 1, "rng": np.random.default_rng(0)} | options
    with pytest.raises(ValueError, match=message):
        ms.simulate(_law("cells"), **options)


DECODED = [(rule, drafts) for rule, drafts in enumeration.PLAYED if RULES[rule].verify]
LENGTHS, CAP, STOP, RUNS = (2, 0, 3, 1), 4, 0, 1500


def _world(kind):
    return oracles.World(19, 3, kind)


def _decode(world, rule, runs, *, seed=0, **options):
    rng = np.random.default_rng(seed)
    options = {"draft_length": LENGTHS.__getitem__, "max_tokens": CAP, "stop_ids": [STOP]} | options
    return [ms.simulate_decoding(world.p, world.q, rule=rule, rng=rng, **options) for _ in range(runs)]


def _outputs(world, prefix=()):
    """Every output that the target can generate, with its probability."""
    if prefix and (prefix[-1] == STOP or len(prefix) == CAP):
        return {prefix: oracles.target_probability(world, prefix)}
    longer = [_outputs(world, (*prefix, v)) for v in range(world.vocabulary) if world.p(prefix)[v] > 0]
    return {x: mass for outputs in longer for x, mass in outputs.items()}


def _check_counts(counts, wanted):
    common = wanted >= 5
    rest = [wanted[~common].sum()] if not common.all() else []
    expected = np.concatenate((wanted[common], rest))
    observed = np.concatenate((counts[common], [counts[~common].sum()] if rest else []))
    assert stats.chisquare(observed, expected).pvalue > 1e-4


@pytest.mark.parametrize("first_start", [0, 1])
@pytest.mark.parametrize("kind", oracles.KINDS)
@pytest.mark.parametrize(("rule", "drafts"), DECODED)
def test_outputs_and_rounds_of_decoding_against_the_law_by_simulation(rule, drafts, kind, first_start):
    world = _world(kind)
    outputs = _outputs(world)
    decoded = _decode(world, rule, RUNS, drafts=drafts, first_start=first_start)
    index = {x: i for i, x in enumerate(outputs)}
    which, found = np.array([(index[tokens], rounds) for tokens, rounds in decoded]).T
    counts = np.bincount(which, minlength=len(outputs))
    _check_counts(counts, RUNS * np.array(list(outputs.values())))
    indptr = np.concatenate(([0], np.cumsum([len(x) for x in outputs])))
    log_p, recorded = enumeration._recorded(world, rule, drafts, outputs, max(LENGTHS))
    options = {"drafts": drafts} if rule == "independent" else {}
    length = np.concatenate([LENGTHS[: len(x)] for x in outputs])
    law = ms.round_law(log_p, recorded.pop("log_q"), indptr, rule=rule, draft_length=length, **recorded, **options)
    exact = ms.solve(law, first_start=first_start)
    surplus, variance = found - exact.expected[which], exact.variance[which]
    assert abs(surplus.sum()) <= 4.5 * np.sqrt(variance.sum()) + 1e-9
    for i in np.flatnonzero(counts >= 50):
        assert abs(surplus[which == i].sum()) <= 4.5 * np.sqrt(variance[which == i].sum()) + 1e-9


def test_several_candidates_of_match_against_the_law_by_simulation():
    world = _world("block")
    outputs = list(_outputs(world))
    found = dict.fromkeys(outputs)
    for tokens, rounds in _decode(world, "match", 500, drafts=2, draft_length=2):
        assert found[tokens] in (None, rounds)  # certain given the output
        found[tokens] = rounds
    hit = [
        [s + k < len(x) and x[s + k] in np.argsort(-world.q(x[:s], x[s : s + k]), kind="stable")[:2] for k in range(2)]
        for x in outputs
        for s in range(len(x))
    ]
    indptr = np.concatenate(([0], np.cumsum([len(x) for x in outputs])))
    wanted = ms.solve(ms.round_law(None, None, indptr, rule="match", hit=np.array(hit))).expected
    seen = [i for i, x in enumerate(outputs) if found[x] is not None]
    assert len(seen) > 10
    np.testing.assert_allclose([found[outputs[i]] for i in seen], wanted[seen], rtol=1e-12)


@pytest.mark.parametrize("rule", [rule for rule in RULES if RULES[rule].verify])
def test_certain_decoding_against_closed_form(rule):
    asked = set()

    def target(prefix):
        asked.add(prefix[:2])
        return np.eye(8, dtype=np.float32)[len(prefix) % 8]

    def decode(**options):
        options = {"draft_length": 2, "max_tokens": 9, "prompt": [5, 6], "rng": np.random.default_rng(0)} | options
        return ms.simulate_decoding(target, lambda prefix, drafts: target(prefix + drafts), rule=rule, **options)

    size = 1 if rule == "none" else 3
    said = (2, 3, 4, 5, 6, 7, 0, 1, 2)
    assert decode() == (said, 9 // size)
    assert asked == {(5, 6)}
    assert decode(max_tokens=8) == (said[:8], -(-8 // size))
    assert decode(first_start=1) == (said, -(-8 // size))
    assert decode(stop_ids=[3, 6]) == (said[:2], -(-2 // size))
    assert decode(stop_ids=[1], first_start=2) == (said[:8], 6 // size)
    assert decode(stop_ids=[2], first_start=1) == ((2,), 0)
    assert decode(first_start=9) == decode(first_start=20) == (said, 0)
    assert decode(draft_length=0) == (said, 9)
    assert decode(draft_length=lambda committed: int(committed > 0)) == (said, 9 if rule == "none" else 5)


def test_probabilities_that_were_half_precision_against_closed_form():
    options = {"rule": "rejection", "draft_length": 9, "max_tokens": 400, "rng": np.random.default_rng(0)}
    _, rounds = ms.simulate_decoding(lambda _: np.ones(3) / 3, lambda *_: np.ones(3) * 1.009 / 3, **options)
    assert rounds == 40


@pytest.mark.parametrize("rule", [rule for rule in RULES if RULES[rule].verify])
def test_decoding_seed_invariant(rule):
    world = _world("autoregressive")
    assert _decode(world, rule, 30) == _decode(world, rule, 30) != _decode(world, rule, 30, seed=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "recorded"}, "rule: found 'recorded'; allowed: rejection, block, .*none"),
        ({"draft_length": -1}, "draft_length: found -1; allowed: an integer >= 0"),
        ({"draft_length": lambda _: 1.0}, "draft_length: found 1.0; allowed"),
        ({"max_tokens": 0}, "max_tokens: found 0; allowed: an integer >= 1"),
        ({"stop_ids": [0, 3]}, "stop_ids: found 3; allowed: token ids 0 to 2"),
        ({"rng": 7}, "rng: found int; allowed: numpy.random.Generator"),
        ({"drafts": 0}, "drafts: found 0; allowed: an integer >= 1"),
        ({"drafts": 2}, "drafts: found 2, but rule 'block' has one at each depth; more only for: match, independent"),
        ({"first_start": -1}, "first_start: found -1; allowed: an integer >= 0"),
        ({"target": lambda x: np.ones(3) / (3 - len(x))}, r"target: after 0 tokens and drafts \(\d,\): .* sum 1.5"),
        ({"drafter": lambda *_: [0.5, 0.5]}, r"drafter: after 0 tokens .* \(\): found shape \(2,\).* \(3,\)"),
        ({"drafter": lambda *_: [1.5, -0.5, 0]}, r"least -0.5; allowed: \(3,\), each at least 0, sum 1 within 0.01"),
        ({"drafter": lambda *_: [np.nan, 1, 0]}, "sum nan"),
    ],
)
def test_refused_decoding_options_invariant(options, message):
    uniform = {"target": lambda _: np.ones(3) / 3, "drafter": lambda *_: np.ones(3) / 3}
    options = uniform | {"rule": "block", "draft_length": 2, "max_tokens": 4, "rng": np.random.default_rng(0)} | options
    with pytest.raises(ValueError, match=message):
        ms.simulate_decoding(options.pop("target"), options.pop("drafter"), **options)
