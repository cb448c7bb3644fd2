"""Laws and moments together against literal decoding."""

import zlib

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.acceptance import RULES
from tests import oracles

#           vocabulary, cap, draft length from each start, stop token
SETTINGS = {
    "two tokens": (2, 5, (3, 3, 3, 3, 3), None),
    "three tokens": (3, 4, (2, 2, 2, 2), None),
    "stop token": (3, 4, (3, 3, 3, 3), 0),
    "varying length": (2, 5, (2, 0, 3, 1, 2), 1),
    "one token": (3, 1, (3,), None),
}


def _recorded(world, rule, outputs, depth):
    """What a recorder would store of these outputs: log_p, log_q and hit, each for every start and depth."""
    log_p, log_q, hit = [], [], []
    for x in outputs:
        for s in range(len(x)):
            log_p.append(np.log(world.p(x[:s])[x[s]]))
            rows = [world.q(x[:s], x[s : s + k]) for k in range(min(depth, len(x) - s))]
            missing = [np.nan] * (depth - len(rows))
            with np.errstate(divide="ignore"):
                log_q.append([float(np.log(row[x[s + k]])) for k, row in enumerate(rows)] + missing)
            hit.append([bool(np.argmax(row) == x[s + k]) for k, row in enumerate(rows)] + [True] * len(missing))
    shape = (len(log_p), depth)
    return np.array(log_p), np.array(log_q).reshape(shape), np.array(hit, dtype=bool).reshape(shape)


def _check(rounds, indptr, outputs, runs, lengths, first_start):
    """Compare every field with the histories of every output."""
    depth = rounds.tested.shape[1]
    for i, x in enumerate(outputs):
        total = sum(runs[x].values())
        weights = {history: mass / total for history, mass in runs[x].items()}
        expected = sum(w * len(history) for history, w in weights.items())
        variance = sum(w * (len(history) - expected) ** 2 for history, w in weights.items())
        occupancy, histogram, tested, drafted = np.zeros(len(x)), np.zeros(depth + 1), np.zeros(depth), 0.0
        for history, w in weights.items():
            for start, accepted in history:
                proposed = min(lengths[start], len(x) - start, depth)
                occupancy[start] += w
                histogram[accepted] += w
                tested[: min(accepted + 1, proposed)] += w
                drafted += w * proposed
        np.testing.assert_allclose(rounds.expected[i], expected, rtol=1e-12)
        np.testing.assert_allclose(rounds.variance[i], variance, atol=1e-12)
        np.testing.assert_allclose(rounds.occupancy[indptr[i] : indptr[i + 1]], occupancy, atol=1e-12)
        np.testing.assert_allclose(rounds.accepted_histogram[i], histogram, atol=1e-12)
        np.testing.assert_allclose(rounds.tested[i], tested, atol=1e-12)
        np.testing.assert_allclose(rounds.drafted[i], drafted, atol=1e-12)
        assert rounds.committed[i] == len(x) - min(first_start, len(x))


@pytest.mark.parametrize("first_start", [0, 1])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", oracles.KINDS)
@pytest.mark.parametrize("rule", RULES)
def test_every_output_against_enumeration(rule, kind, setting, first_start):
    vocabulary, cap, lengths, stop = SETTINGS[setting]
    world = oracles.World(zlib.crc32(f"{kind} {setting}".encode()), vocabulary, kind)
    runs = oracles.decode(world, rule, lengths, cap, first_start=first_start, stop=stop)
    for x in runs:
        np.testing.assert_allclose(sum(runs[x].values()), oracles.target_probability(world, x), atol=1e-14)
    np.testing.assert_allclose(sum(sum(run.values()) for run in runs.values()), 1, atol=1e-14)
    # A residual that is 0 but for rounding leaves a trace of outputs that the target never generates.
    outputs = sorted(x for x in runs if oracles.target_probability(world, x) > 0)
    indptr = np.concatenate(([0], np.cumsum([len(x) for x in outputs])))
    log_p, log_q, hit = _recorded(world, rule, outputs, max(lengths))
    length = np.concatenate([lengths[: len(x)] for x in outputs])
    forms = [(log_q, hit)]
    if kind == "autoregressive":
        forms.append((log_q[:, 0], hit[:, 0]))
    for q, h in forms:
        law = ms.round_law(log_p, q, indptr, rule=rule, draft_length=length, hit=h if rule == "match" else None)
        _check(ms.solve(law, first_start=first_start), indptr, outputs, runs, lengths, first_start)


def test_every_rule_has_an_oracle_against_enumeration():
    assert set(oracles.ROUNDS) == set(RULES)
