"""Least divergences found without pooling: by solvers over all drafters, one convex problem for each way to reject."""

import itertools

import numpy as np
from scipy import optimize, special

DIVERGENCES = ("kl", "reverse-kl", "tv")


def divergence(p, q, name):
    """Of target and drafter, on the last axis."""
    if name == "tv":
        return np.abs(p - q).sum(axis=-1) / 2
    pair = (p, q) if name == "kl" else (q, p)
    return special.rel_entr(*pair).sum(axis=-1)


def rejected(p, rule, given):
    """The places in descending ``p`` of the tokens that a rule rejects."""
    entropy = special.entr(p).sum()
    return {
        "strict": lambda: list(range(1, len(p))),
        "top-m": lambda: list(range(given["m"], len(p))),
        "additive": lambda: [x for x, mass in enumerate(p) if not mass >= p[0] - given["t"]],
        "multiplicative": lambda: [x for x, mass in enumerate(p) if not mass >= given["alpha"] * p[0]],
        "typical": lambda: [
            x for x, mass in enumerate(p) if not mass > min(given["epsilon"], given["delta"] * np.exp(-entropy))
        ],
    }[rule]()


def ways(p, rule, given):
    """Every way to be rejected, as a matrix ``A``: rejected iff ``A q >= 0`` for one of them."""
    unit = np.eye(len(p))
    if rule == "tree":
        return [unit[list(some)] - unit[0] for some in itertools.combinations(range(1, len(p)), given["m"])]
    return [np.delete(unit[r] - unit, r, axis=0) for r in rejected(p, rule, given)]


def drawn(rng, rule):
    """Thresholds of a rule and a distribution of 3 to 8 tokens."""
    size = int(rng.integers(3, 9))
    p = -np.sort(-rng.dirichlet(np.full(size, rng.choice([0.4, 1, 5]))))
    names = {"additive": "t", "multiplicative": "alpha", "top-m": "m", "tree": "m"}
    if rule == "typical":
        return p, {"epsilon": rng.uniform(0.01, 0.6), "delta": rng.uniform(0.05, 1)}
    if rule == "strict":
        return p, {}
    value = int(rng.integers(1, size)) if names[rule] == "m" else rng.uniform(0, 0.6)
    return p, {names[rule]: value}


def solved(p, matrix, name, rng):
    """The least divergence of one convex problem: SLSQP with restarts, a linear programme for total variation.

    SLSQP searches over logits for KL(p||q), as the order of ``q`` is that of its logits, and over ``q`` for KL(q||p).
    """
    size = len(p)
    if name == "tv":  # q and the part of |q - p| above p
        above = np.hstack((np.eye(size), -np.eye(size)))
        upper = np.vstack((above, np.hstack((-matrix, np.zeros_like(matrix)))))
        cost, total = np.repeat((0, 1), size), np.repeat((1, 0), size)[None]
        limits = np.concatenate((p, np.zeros(len(matrix))))
        return optimize.linprog(cost, upper, limits, total, [1], bounds=(0, None)).fun
    constraints = [{"type": "ineq", "fun": lambda q: matrix @ q, "jac": lambda q: matrix}]
    if name == "kl":
        value, slope = lambda z: divergence(p, special.softmax(z), name), lambda z: special.softmax(z) - p
    else:
        value, slope = lambda q: divergence(p, q, name), lambda q: np.log(q / p) + 1
        constraints.append({"type": "eq", "fun": lambda q: q.sum() - 1, "jac": lambda q: np.ones(size)})
    bounds = [(-50, 50) if name == "kl" else (1e-13, 1)] * size
    least = np.inf
    for start in (np.full(size, 1 / size), *rng.dirichlet(np.full(size, 5), 5)):
        begin = np.log(start) if name == "kl" else start
        found = optimize.minimize(
            value, begin, jac=slope, method="SLSQP", bounds=bounds, constraints=constraints,
            options={"ftol": 1e-14, "maxiter": 300},
        )  # fmt: skip
        if (matrix @ found.x >= -1e-9).all() and (name == "kl" or abs(found.x.sum() - 1) < 1e-9):
            least = min(least, found.fun)
        if found.success:
            break
    return least


def by_active_sets(p, matrix, name):
    """The least KL of one problem over every set of tokens that may share a level: exact, by the KKT conditions."""
    size, least = len(p), np.inf
    for bits in itertools.product((False, True), repeat=size):
        level = np.array(bits)
        if level.any():
            pooled = p[level].mean() if name == "kl" else np.exp(np.log(p[level]).mean())
            q = np.where(level, pooled, p)
            q /= q.sum()
            if (matrix @ q >= -1e-13).all():
                least = min(least, divergence(p, q, name))
    return least
