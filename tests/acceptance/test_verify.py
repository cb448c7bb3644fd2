"""Literal decisions of a round, uniform by uniform."""

import numpy as np
import pytest

from markov_spec.acceptance import RULES, Round

DRAFTING = [entry.name for entry in RULES.values() if entry.verify and entry.name != "none"]


def _play(rule, p, q, uniforms, *, length=1, drafts=1):
    """Play a round with distributions that do not depend on the prefix."""
    return RULES[rule].verify(Round(lambda _: np.array(p), lambda _: np.array(q), length, uniforms, drafts))


def _given(*uniforms):
    return iter(uniforms).__next__


def _one_hot(token, size=9):
    return np.eye(size)[token]


@pytest.mark.parametrize("rule", DRAFTING)
def test_case_51_greedy_is_not_the_ratio_test_against_closed_form(rule):
    p, q = [0.3, 0.5, *[0.2 / 7] * 7], [0.2, *[0.1] * 8]  # a and b are tokens 0 and 1
    rng = np.random.default_rng(51)
    assert {_play(rule, _one_hot(1), _one_hot(0), rng.random) for _ in range(20)} == {(1,)}
    if "log_p" in RULES[rule].needs:
        accepted = {_play(rule, p, q, _given(0.1, u, 0.1)) for u in (0, 0.5, 1 - 2**-53)}
        assert accepted == {(0, 0)}


@pytest.mark.parametrize("drafts", [1, 2, 3])
@pytest.mark.parametrize("rule", DRAFTING)
def test_case_53_point_mass_draft_against_closed_form(rule, drafts):
    drafts = drafts if RULES[rule].several and rule != "match" else 1  # those of "match" differ from each other
    rng, runs = np.random.default_rng(53), 1000
    rounds = [_play(rule, [0.5, 0.25, 0.25], [1.0, 0.0, 0.0], rng.random, drafts=drafts) for _ in range(runs)]
    accepted = sum(len(tokens) == 2 for tokens in rounds)
    assert abs(accepted - 0.5 * runs) < 4.5 * np.sqrt(0.25 * runs)
    assert accepted == sum(tokens[0] == 0 for tokens in rounds)


@pytest.mark.parametrize("drafts", [1, 3])
@pytest.mark.parametrize("rule", DRAFTING)
def test_perfect_drafter_against_closed_form(rule, drafts):
    rng = np.random.default_rng(1)
    drafts = drafts if RULES[rule].several else 1
    assert _play(rule, _one_hot(4), _one_hot(4), rng.random, length=5, drafts=drafts) == (4,) * 6
    if "log_p" in RULES[rule].needs:  # the others decide without the ratio
        for _ in range(50):
            p = rng.dirichlet(np.ones(4))
            assert len(_play(rule, p, p, rng.random, length=5, drafts=drafts)) == 6


@pytest.mark.parametrize(
    ("rule", "drafts", "uniforms", "tokens"),
    [
        ("rejection", 1, (0.1, 0.49, 0.1), (0, 0)),  # p/q = .5 at token 0
        ("rejection", 1, (0.1, 0.51, 0.49), (1,)),  # the residual is (0, .1, .1)
        ("rejection", 1, (0.1, 0.51, 0.51), (2,)),
        ("rejection", 1, (0.5, 0.999, 0.1), (1, 0)),
        ("block", 1, (0.1, 0.49, 0.1), (0, 0)),
        ("block", 1, (0.1, 0.51, 0.51), (2,)),
        ("match", 1, (0.19, 0.3), (0, 1)),
        ("match", 1, (0.21,), (1,)),
        ("match", 2, (0.59, 0.3), (1, 1)),  # tokens 1 and 2 tie
        ("match", 2, (0.61,), (2,)),
        ("independent", 1, (0.1, 0.1, 0.3), (0, 1)),
        ("independent", 1, (0.1, 0.3), (1,)),
        ("independent", 2, (0.1, 0.5, 0.3, 0.9), (1, 2)),
        ("node-recursive", 2, (0.1, 0.1, 0.51, 0.0, 0.49), (1,)),  # the first residual is (0, .5, .5)
        ("node-recursive", 2, (0.1, 0.5, 0.51, 0.9, 0.1), (1, 0)),
        ("node-k-seq", 2, (0.1, 0.1, 0.41, 0.40, 0.9), (0, 2)),  # rho = 1.2395, p / (rho q) = .4034
        ("node-k-seq", 2, (0.1, 0.1, 0.41, 0.41, 0.1), (1,)),
        ("none", 1, (0.21,), (1,)),
    ],
)
def test_uniform_by_uniform_against_closed_form(rule, drafts, uniforms, tokens):
    assert _play(rule, [0.2, 0.4, 0.4], [0.4, 0.3, 0.3], _given(*uniforms), drafts=drafts) == tokens


def test_block_prefixes_against_closed_form():
    p, q = [0.4, 0.6], [0.8, 0.2]  # w = 1, .5, .25 for drafts 0 0, and 1, .5, 1 for drafts 0 1
    head = 0.1 / (0.1 + 0.5)  # sum (.5 p - q)+ = .1
    assert _play("block", p, q, _given(0.1, 0.1, head - 1e-9, 0.26, 0.1), length=2) == (0, 1)
    assert _play("block", p, q, _given(0.1, 0.1, head + 1e-9, 0.26, 0.1), length=2) == (1,)
    assert _play("block", p, q, _given(0.1, 0.1, head + 1e-9, 0.24, 0.1), length=2) == (0, 0, 0)
    assert _play("block", p, q, _given(0.1, 0.9, head + 1e-9, 0.99, 0.1), length=2) == (0, 1, 0)
    # After draft 0, w = .75 and (w p - q)+ = (0, .025, 0), where (p - q)+ = (0, .1, .05).
    p, q = [0.45, 0.3, 0.25], [0.6, 0.2, 0.2]
    assert _play("block", p, q, _given(0.1, 0.1, 0.0, 0.99, 0.9), length=2) == (0, 1)
    tiny = _play("block", [1e-20, 1.0], [0.0, 1.0], _given(0.1, 0.1, 0.9, 0.9, 0.9), length=2)
    assert tiny == (1, 1, 1)


def test_zero_and_ties_against_closed_form():
    assert _play("none", [0.0, 0.4, 0.6], [1.0, 0.0, 0.0], _given(0.0)) == (1,)
    p, q = np.eye(90)[5], np.resize([0.0, 1 / 45], 90)  # the first of the equals are 1, 3 and 5
    assert _play("match", p, q, _given(0.5), drafts=2) == (5,)
    assert _play("match", p, q, _given(0.5, 0.5), drafts=3) == (5, 5)


@pytest.mark.parametrize("rule", [rule for rule in DRAFTING if "log_p" in RULES[rule].needs])
def test_residual_lost_by_rounding_against_closed_form(rule):
    p = np.array([0.5, 0.5])
    assert _play(rule, p, p * (1 + 2**-52), _given(0.1, 1 - 2**-53, 0.9)) == (1,)
