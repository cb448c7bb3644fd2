"""No drafter within a threshold is rejected, whatever a search tries, and beyond it one is found."""

import numpy as np
import pytest
from scipy import optimize, special

import markov_spec as ms
from markov_spec.certificates import DIVERGENCES, RULES, kl_to_reject, kl_to_reject_margin
from tests.certificates import optima
from tests.certificates.stores import write


def excess(q, rule, given, out):
    """By how much each drafter is rejected: 0 or more for a rejection, ties being rejections."""
    if rule == "tree":
        return -np.sort(-q[:, 1:], axis=1)[:, given["m"] - 1] - q[:, 0]
    accepted = np.setdiff1d(np.arange(q.shape[1]), out)
    return q[:, out].max(axis=1) - (q[:, accepted].max(axis=1) if accepted.size else 0)


def within(p, q, name, most):
    """Drafters on the way from ``p`` to each ``q``, as far as the divergence is at most ``most``."""
    low, high = np.zeros((len(q), 1)), np.ones((len(q), 1))
    for _ in range(45):  # the divergence rises on the way, as it is convex
        middle = (low + high) / 2
        inside = optima.divergence(p, p + middle * (q - p), name)[:, None] <= most
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    whole = optima.divergence(p, q, name)[:, None] <= most
    return p + np.where(whole, 1.0, low) * (q - p)


def by_chance(rng, p, rule, given, name, most, out):
    """Climb by random steps from random drafters; give those that are rejected the most."""
    best = within(p, rng.dirichlet(np.full(len(p), 0.5), 100), name, most)
    worth = excess(best, rule, given, out)
    for scale in np.geomspace(1, 1e-4, 30):
        tried = best * np.exp(scale * rng.normal(size=best.shape))
        tried = within(p, tried / tried.sum(axis=1, keepdims=True), name, most)
        found = excess(tried, rule, given, out)
        best = np.where((found > worth)[:, None], tried, best)
        worth = np.maximum(found, worth)
        order = np.tile(np.argsort(-worth)[:20], 5)
        best, worth = best[order], worth[order]
    return best


def by_gradient(p, matrix, name, most):
    """The drafter of ``optima.ways`` whose least margin ``matrix q`` is largest; logits for KL(p||q)."""
    size = len(p)
    rows = np.hstack((matrix, -np.ones((len(matrix), 1))))
    last = np.eye(size + 1)[-1]
    if name == "tv":
        above = np.hstack((np.eye(size), np.zeros((size, 1)), -np.eye(size)))
        spent = np.repeat((0, 0, 1), (size, 1, size))[None]
        upper = np.vstack((above, spent, np.hstack((-rows, np.zeros((len(rows), size))))))
        limits = np.concatenate((p, [most], np.zeros(len(rows))))
        total = np.repeat((1, 0, 0), (size, 1, size))[None]
        bounds = [(0, None)] * size + [(None, None)] + [(0, None)] * size
        return optimize.linprog(-np.concatenate((last, np.zeros(size))), upper, limits, total, [1], bounds).x[:size]
    constraints = [{"type": "ineq", "fun": lambda x: rows @ x, "jac": lambda x: rows}]
    if name == "kl":
        value, slope = lambda z: optima.divergence(p, special.softmax(z), name), lambda z: special.softmax(z) - p
    else:
        value, slope = lambda q: optima.divergence(p, q, name), lambda q: np.log(q / p) + 1
        constraints.append({"type": "eq", "fun": lambda x: x[:-1].sum() - 1, "jac": lambda x: 1 - last})
    constraints.append(
        {"type": "ineq", "fun": lambda x: most - value(x[:-1]), "jac": lambda x: -np.append(slope(x[:-1]), 0)}
    )
    bounds = [(-50, 50) if name == "kl" else (1e-13, 1)] * size + [(-100, 100)]
    begin = np.append(np.log(p) if name == "kl" else p, -1)
    found = optimize.minimize(
        lambda x: -x[-1], begin, jac=lambda x: -last, method="SLSQP", bounds=bounds, constraints=constraints,
        options={"ftol": 1e-12, "maxiter": 300},
    ).x[:-1]  # fmt: skip
    return special.softmax(found) if name == "kl" else found / found.sum()


def rejected_most(rng, p, rule, given, name, most):
    """The largest excess that either search finds among drafters of a divergence of at most ``most``."""
    out = [] if rule == "tree" else optima.rejected(p, rule, given)
    ways = optima.ways(p, rule, given)
    tried = np.vstack((by_chance(rng, p, rule, given, name, most, out), *(by_gradient(p, a, name, most) for a in ways)))
    return excess(within(p, tried, name, most), rule, given, out).max()


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("rule", RULES)
def test_drafters_within_and_beyond_against_simulation(rule, name):
    rng = np.random.default_rng(9)
    judged = 0
    while judged < 8:
        p, given = optima.drawn(rng, rule)
        found = kl_to_reject([p], rule=rule, divergence=name, complete=True, **given).value[0]
        if 1e-4 < found < np.inf:
            assert rejected_most(rng, p, rule, given, name, found * (1 - 1e-6)) < 0, (p, given)
            assert rejected_most(rng, p, rule, given, name, found * (1 + 1e-3)) >= 0, (p, given)
            judged += 1


@pytest.mark.parametrize("m", [1, 2, 5])
def test_drafters_within_a_margin_against_simulation(m):
    rng = np.random.default_rng(10)
    for _ in range(10):
        p = -np.sort(-rng.dirichlet(np.full(m + 2, 0.5)))
        most = float(kl_to_reject_margin(p[0] - p[m], rule="tree", m=m))
        assert rejected_most(rng, p, "tree", {"m": m}, "kl", most * (1 - 1e-6)) < 0


@pytest.mark.parametrize(("rule", "given"), [("strict", {}), ("tree", {"m": 2}), ("additive", {"t": 0.2})])
def test_certified_positions_of_a_store_against_simulation(tmp_path, rule, given):
    """No drafter as near as the recorded one is rejected where that is certified, and some is where it is not."""
    store, distributions, *_ = write(tmp_path / "run")
    rng, frame = np.random.default_rng(11), ms.certify(store, "auto", rule=rule, **given).to_frame()
    starts = dict(zip("abcd", (0, 9, 9, 10), strict=True))
    for row in frame.filter(abs(frame["kl"] / frame["threshold"] - 1) > 1e-3).to_dicts():
        p = -np.sort(-distributions[starts[row["rollout"]] + row["position"]])
        if row["threshold"] < np.inf:
            assert (rejected_most(rng, p, rule, given, "kl", row["kl"]) < 0) == row["certified"], row
    assert frame["certified"].sum() > 5 and (~frame["certified"]).sum() > 2
