"""Laws and moments together against literal decoding."""

import zlib

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.acceptance import RULES, scalars
from markov_spec.chain import end_accepted, expected_ratio
from tests import oracles

#           vocabulary, cap, draft length from each start, stop token
SETTINGS = {
    "two tokens": (2, 5, (3, 3, 3, 3, 3), None),
    "three tokens": (3, 4, (2, 2, 2, 2), None),
    "stop token": (3, 4, (3, 3, 3, 3), 0),
    "varying length": (2, 5, (2, 0, 3, 1, 2), 1),
    "one token": (3, 1, (3,), None),
}
LOSSLESS = [rule for rule in RULES if RULES[rule].exactness == "exact"]
PLAYED = [(rule, drafts) for rule in LOSSLESS for drafts in oracles.DRAFTS.get(rule, (1,))]


def _option(rule, drafts, p, q, x):
    """What rule ``rule`` reads beside log_p and log_q, of nodes with distributions p, q and realised token x."""
    if rule == "match":
        return "hit", np.argmax(q, axis=1) == x
    if rule == "node-recursive":
        return "scale", scalars.recursive_scale(p, q, drafts)
    if rule == "node-k-seq":
        return "scale", scalars.k_seq_scale(p, q, drafts)
    if rule == "recorded":
        nodes = zip(p, q, x, strict=True)
        with np.errstate(divide="ignore"):
            return "log_accept", np.log([oracles.acceptance_of_each_token(rule, *n[:2], drafts)[n[2]] for n in nodes])
    return None, None


def _recorded(world, rule, drafts, outputs, depth):
    """What a recorder would store of these outputs: log_p, log_q and what the rule reads; NaN or True past the ends."""
    log_p, cells, p, q, x = [], [], [], [], []
    for output in outputs:
        for s in range(len(output)):
            log_p.append(np.log(world.p(output[:s])[output[s]]))
            cells.append(np.arange(depth) < len(output) - s)
            for k in range(min(depth, len(output) - s)):
                p.append(world.p(output[: s + k]))
                q.append(world.q(output[:s], output[s : s + k]))
                x.append(output[s + k])
    name, values = _option(rule, drafts, np.array(p), np.array(q), x)
    with np.errstate(divide="ignore"):
        columns = {"log_q": np.log(np.array(q)[np.arange(len(x)), x])} | ({name: values} if name else {})
    recorded = {}
    for column, inside in columns.items():
        recorded[column] = np.full((len(log_p), depth), True if inside.dtype == bool else np.nan)
        recorded[column][np.array(cells)] = inside
    return np.array(log_p), recorded


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


def _check_prices(law, indptr, outputs, runs, first_start):
    """Compare the price, what the end adds and the tokens per round with the histories of every output."""
    rng = np.random.default_rng(0)
    price, surplus = rng.normal(size=(indptr[-1], law.depth + 1)), rng.random(indptr[-1])
    tokens = rng.random(len(outputs))
    rounds = ms.solve(law, first_start=first_start, price=price)
    ends = end_accepted(law, rounds.occupancy)
    ratio = expected_ratio(law, tokens=tokens, surplus=surplus, first_start=first_start)
    for i, x in enumerate(outputs):
        weights = np.array(list(runs[x].values())) / sum(runs[x].values())
        costs = np.array([sum(price[indptr[i] + s, n] for s, n in history) for history in runs[x]])
        mean = weights @ costs
        np.testing.assert_allclose(rounds.price[i], mean, atol=1e-12)
        np.testing.assert_allclose(rounds.price_variance[i], weights @ (costs - mean) ** 2, atol=1e-12)
        per_round, last = np.full(weights.size, np.nan), np.zeros(law.depth)
        for run, history in enumerate(runs[x]):
            s, accepted = history[-1] if history else (0, 0)
            at_end = bool(history) and s + accepted == len(x)
            last[accepted - 1 : accepted] += weights[run] * at_end
            per_round[run] = (tokens[i] + surplus[indptr[i] + s] * at_end) / (len(history) or np.nan)
        np.testing.assert_allclose(ends[i], last, atol=1e-12)
        np.testing.assert_allclose(ratio[i], weights @ per_round, rtol=1e-12)


@pytest.mark.parametrize("first_start", [0, 1])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", oracles.KINDS)
@pytest.mark.parametrize(("rule", "drafts"), PLAYED)
def test_every_output_against_enumeration(rule, drafts, kind, setting, first_start):
    vocabulary, cap, lengths, stop = SETTINGS[setting]
    world = oracles.World(zlib.crc32(f"{kind} {setting}".encode()), vocabulary, kind)
    runs = oracles.decode(world, rule, lengths, cap, first_start=first_start, stop=stop, drafts=drafts)
    for x in runs:
        np.testing.assert_allclose(sum(runs[x].values()), oracles.target_probability(world, x), atol=1e-14)
    np.testing.assert_allclose(sum(sum(run.values()) for run in runs.values()), 1, atol=1e-14)
    # A residual that is 0 but for rounding leaves a trace of outputs that the target never generates.
    outputs = sorted(x for x in runs if oracles.target_probability(world, x) > 0)
    indptr = np.concatenate(([0], np.cumsum([len(x) for x in outputs])))
    log_p, recorded = _recorded(world, rule, drafts, outputs, max(lengths))
    length = np.concatenate([lengths[: len(x)] for x in outputs])
    forms = [recorded]
    if kind == "autoregressive":
        forms.append({name: cells[:, 0] for name, cells in recorded.items()})
    for form in forms:
        log_q = form.pop("log_q")
        options = form | ({"drafts": drafts} if rule == "independent" else {})
        law = ms.round_law(log_p, log_q, indptr, rule=rule, draft_length=length, **options)
        _check(ms.solve(law, first_start=first_start), indptr, outputs, runs, lengths, first_start)
        _check_prices(law, indptr, outputs, runs, first_start)


def test_every_lossless_rule_has_an_oracle_against_enumeration():
    assert set(oracles.ROUNDS) | set(oracles.NODES) == set(LOSSLESS)
    assert set(oracles.DRAFTS) == set(oracles.NODES)


def test_oracle_without_replacement_against_closed_form():
    p, q = np.array([0.5, 0.5]), np.array([0.9, 0.1])  # the second draft is the other token
    np.testing.assert_allclose(oracles.acceptance_of_each_token("recorded", p, q, 2), 1, rtol=1e-15)
    np.testing.assert_allclose(oracles.acceptance_of_each_token("node-recursive", p, q, 2), [1, 0.28], rtol=1e-14)
