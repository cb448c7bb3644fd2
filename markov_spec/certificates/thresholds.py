"""The least divergence of target and drafter that lets a draft be rejected: below it, acceptance is certain.

``p`` is the target's plain softmax and ``q`` the drafter's, the target is greedy and the draft is the argmax of ``q``;
``p_0 >= p_1 >= ...``. A tie counts as a rejection. A rule rejects the tokens of a set ``R``, which has a token of ``p``
with all that are less probable; a tree of the drafter's ``m`` best tokens misses where ``p_0``'s is not among them:

    strict          R = all but the best               rejected iff  q_r >= q_x for all x, some r in R
    additive        R = {p < p_0 - t}
    multiplicative  R = {p < alpha p_0}
    top-m           R = all but the m best
    typical         R = {p <= min(epsilon, delta exp(-H))}, H the entropy of p
    tree                                               missed iff  q_i >= q_0 for m tokens i

*Pooling.* Let ``r`` be the most probable token of ``R``. Tokens are added to ``S = {r}`` from the best down while they
are above its level; in a tree, to ``S = {0}`` from ``p_m`` up to ``p_1`` while they are below it. With ``k`` tokens in
``S``, the level is ``c = sum_S p / k``, or ``G = (prod_S p)^(1/k)`` for reverse KL, and the least divergence is

    (K1, K2)  KL(p||q):  sum_S p log(p / c)               q = c on S, p elsewhere
              TV:        |c - p_r|, in a tree |p_0 - c|   the same q
              KL(q||p):  -log Z,  Z = 1 - sum_S (p - G)   q = G / Z on S, p / Z elsewhere

It is infinite if ``R`` is empty, or a tree's ``m`` other tokens do not exist. K1 is at most ``log 2`` and K2 at most
``log(m+1)``, what ``p`` mixed with equal parts of the winning tokens takes; ``p_0 = 1`` attains them. Reverse KL has no
cap.

*Proof.* Giving the larger of two ``q`` to the token of the larger ``p`` raises none of the three, so ``r``, or the
tokens ``1 .. m`` of a tree, are the ones to win. The ``q`` above let them. Let ``q`` be any that does, home ``h = r``
(``h = 0``). For every function ``f`` rising in ``p`` with ``sum_S f = 0``, as ``p/c - 1`` and ``log(p/G)``,

    (*)  sum_S q_x f(p_x) <= q_h sum_S f(p_x) = 0,

since where ``f > 0`` at another token than ``h`` it is ``r``'s rival, ``q_x <= q_r``, and where ``f < 0`` it is the
tree's competitor, ``q_x >= q_0``. KL(p||q), with the best ``q*`` above: it exceeds that of ``q*`` by
``-sum p log(q/q*) >= 1 - sum p q/q*``, which is ``-sum_S q (p/c - 1) >= 0`` by (*). KL(q||p): it is
``KL(q||q*) + sum q log(q*/p) >= -log Z - sum_S q log(p/G) >= -log Z`` by (*). TV ``d``: ``q_r <= p_r + d`` and what the
others lose is at most ``d``, so ``sum_A p - |A| (p_r + d) <= d`` over ``A = S`` without ``r``, that is
``d >= c - p_r``; in a tree ``q_0 >= p_0 - d`` and what the others gain is at most ``d``, that is ``d >= p_0 - c``.

*Truncated lists.* If ``r`` is listed, in a tree rank ``m + 1``, all of ``S`` is, its level is not below the last token
listed, and the value is exact. If not, each divergence falls as ``p_r`` grows at the cost of the rest, and rises with
every other token that has to be pooled. So the value at the largest possible ``p_r``, with no other unlisted token
pooled, is a lower bound: ``min(last listed, tail / j)``, ``j`` the place of ``r`` behind the list, and at most the bar
of ``R``. In a tree ``j`` competitors are unlisted; the least divergence is convex in ``p`` and symmetric in them, so it
is least where they are equal, again ``min(last listed, tail / j)``. Distributions with this list come as close to it
as one likes. ``typical`` rejects most at the least entropy, which has as much of the tail as fits in tokens as probable
as the last one listed; without an entropy its bound may be out of reach.

Source: arXiv 2606.30265 for KL(p||q); the other two were derived here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from markov_spec._jit import split_rollouts
from markov_spec.acceptance.lossy import ENTROPY_TOLERANCE, LOSSY
from markov_spec.acceptance.truncated import SUM_TOLERANCE
from markov_spec.arrays import LOG_TOLERANCE, Array, RequestError, as_float, check_integer
from markov_spec.certificates import _numba

CHUNK_BYTES = 1 << 20  # of lists, which are read several times: what stays in a core's cache

RULES: Mapping[str, Mapping[str, float | None]] = MappingProxyType(
    {
        "strict": {},
        **{name: LOSSY[name].thresholds for name in ("additive", "multiplicative", "top-m", "typical")},
        "tree": {"m": None},
    }
)
DIVERGENCES: Mapping[str, Any] = MappingProxyType(
    {"kl": _numba.forward, "reverse-kl": _numba.reverse, "tv": _numba.variation}
)
LIMITS = {"t": 1.0, "alpha": 1.0, "epsilon": 1.0, "delta": np.inf}


@dataclass(frozen=True, eq=False, repr=False)
class Thresholds:
    """Least divergences that allow a rejection. Made by ``kl_to_reject``.

    Parameters
    ----------
    value : ndarray of float64, (n,)
        A draft is accepted under every drafter whose divergence is below it: nats, or for total variation from 0 to 1;
        infinite where nothing can be rejected.
    exact : ndarray of bool, (n,)
        Whether it is the least divergence itself; otherwise a lower bound of it, as the list does not tell enough.
    rule : str
    divergence : str
    """

    value: npt.NDArray[np.float64]
    exact: npt.NDArray[np.bool_]
    rule: str
    divergence: str

    def __repr__(self) -> str:
        rows, sure = self.value.size, int(self.exact.sum())
        return f"Thresholds({self.rule}, {self.divergence}, {rows} row{'s' * (rows != 1)}, {sure} exact)"


def kl_to_reject(
    p_top: Any,
    *,
    rule: str,
    tail_mass: Any = 0.0,
    complete: bool = False,
    t: float | None = None,
    alpha: float | None = None,
    m: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    entropy: Any = None,
    divergence: str = "kl",
    threads: int | None = None,
) -> Thresholds:
    """Compute the least divergence between target and drafter that allows a rejection.

    Parameters
    ----------
    p_top : array of float, (n, M)
        Target's probabilities of its most probable tokens, descending, ``M >= 1``: of its plain softmax, untempered.
    rule : {"strict", "additive", "multiplicative", "top-m", "typical", "tree"}
        See the module; those that ``acceptance.lossy`` has are the same with the same thresholds.
    tail_mass : float or array of float, (n,)
        Probability of all other tokens.
    complete : bool
        The list is the whole vocabulary. Without it there are more tokens than any rule counts, be it of probability 0.
    t : float
        For ``"additive"``, from 0 to 1.
    alpha : float
        For ``"multiplicative"``, from 0 to 1.
    m : int
        For ``"top-m"`` the target's tokens that are accepted, for ``"tree"`` those that the drafter proposes; 1 or
        more.
    epsilon, delta : float
        For ``"typical"``, from 0 to 1 and 0 or more; .09 and .3 if absent.
    entropy : array of float, (n,), optional
        For ``"typical"``: of the target, in nats. If absent, the least that a distribution with this list can have.
    divergence : {"kl", "reverse-kl", "tv"}
        ``KL(p||q)``, ``KL(q||p)``, ``p`` the target's and ``q`` the drafter's plain softmax, or their total variation.
    threads : int, optional
        None means the cores that this process may use. Results are bit-equal for every number.

    Returns
    -------
    Thresholds

    Raises
    ------
    RequestError
        If a name is unknown, or a threshold is missing, not the rule's or out of its range.
    ValueError
        If shapes disagree, or a list rises or does not sum to 1 with its tail within 1e-4; the message names the row.

    Notes
    -----
    ``O(n M)``; memory beyond inputs and results does not grow with ``n``. To a relative 1e-12, at margins of 1e-12 too.
    Source: arXiv 2606.30265, but for the divergences other than KL(p||q); see the module for the proof.

    Examples
    --------
    >>> import numpy as np
    >>> from markov_spec.certificates import kl_to_reject
    >>> lists, tail = np.array([[.6, .3], [.5, .5]]), [.1, 0.]
    >>> kl_to_reject(lists, rule="strict", tail_mass=tail).value.round(6)
    array([0.05097, 0.     ])
    >>> found = kl_to_reject(lists, rule="tree", m=2, tail_mass=tail)
    >>> found, found.value.round(6), found.exact
    (Thresholds(tree, kl, 2 rows, 1 exact), array([0.200667, 0.346574]), array([False,  True]))
    """
    given = _thresholds(rule, {"t": t, "alpha": alpha, "m": m, "epsilon": epsilon, "delta": delta})
    if divergence not in DIVERGENCES:
        raise RequestError(f"divergence: found {divergence!r}; allowed: {', '.join(DIVERGENCES)}")
    lists = as_float(p_top, "p_top")
    if lists.ndim != 2 or lists.shape[1] == 0:
        raise ValueError(f"p_top: found shape {lists.shape}; allowed: (n, M), M >= 1")
    rows = len(lists)
    tail = _tails(tail_mass, rows, complete)
    spread = None if entropy is None else _entropies(entropy, rows, rule)
    found = Thresholds(np.empty(rows), np.empty(rows, np.bool_), rule, divergence)
    bad: list[int] = []

    def run(first: int, last: int) -> None:
        step = max(CHUNK_BYTES // (lists.shape[1] * lists.itemsize), 1)
        for begin in range(first, last, step):
            at = slice(begin, min(begin + step, last))
            wrong = _numba.wrong_row(lists[at], tail[at].astype(np.float64), SUM_TOLERANCE)
            if wrong >= 0:
                bad.append(begin + wrong)
                return
            _fill(found, at, lists[at], tail[at], None if spread is None else spread[at], complete, given)

    split_rollouts(run, np.arange(rows + 1), threads=threads, nbytes=lists.nbytes)
    if bad:
        raise _bad_row(lists, tail, min(bad))
    return found


def _fill(
    found: Thresholds, at: slice, p: Array, given_tail: Array, entropy: Array | None, complete: bool, given: dict
) -> None:
    tail = np.maximum(0.0 if complete else given_tail, np.zeros(len(p)))
    value, exact, (rows, width) = found.value[at], found.exact[at], p.shape
    size = np.empty(rows, np.int64)
    start = extra = p[:, 0].astype(np.float64)
    count, begin, step = 0, 0, 1
    if found.rule == "tree":
        begin, step = min(given["m"], width - 1), -1
        count = given["m"] - begin
        size[:] = -1 if complete and count else begin
        exact[:] = (tail == 0) | (count == 0)
        if count:
            extra = np.minimum(p[:, -1], tail / count)
        spare = np.maximum(tail - count * extra, 0) if count else tail
    else:
        bar, settled = _bars(found.rule, p, tail, entropy, given)
        start = np.empty(rows)
        _numba.locate(p, tail, given.get("m", int(found.rule == "strict")), bar, size, start)
        unlisted = size == width
        exact[:] = (tail == 0) | (settled & ~unlisted)
        spare = np.where(unlisted, np.maximum(tail - start, 0), tail)
        if complete:
            size[unlisted] = -1
    DIVERGENCES[found.divergence](p, spare, start, extra, count, begin, step, size, value)


def _bars(rule: str, p: Array, tail: Array, entropy: Array | None, given: dict) -> tuple[Array, bool]:
    """Give the probability from which on tokens are accepted, and whether that is certain."""
    top = p[:, 0].astype(np.float64)
    if rule == "additive":
        return top - given["t"], True
    if rule == "multiplicative":
        return given["alpha"] * top, True
    if rule != "typical":
        return np.full(len(p), np.inf), True
    spread = entropy
    if spread is None:
        spread = np.empty(len(p))
        _numba.least_entropy(p, tail, spread)
    least = np.minimum(given["epsilon"], given["delta"] * np.exp(-spread))
    return np.nextafter(least, np.inf), entropy is not None  # what equals it is rejected


def _thresholds(rule: str, options: dict[str, Any]) -> dict[str, Any]:
    """Check the thresholds of a rule; give them by name."""
    if rule not in RULES:
        raise RequestError(f"rule: found {rule!r}; allowed: {', '.join(RULES)}")
    for name, value in options.items():
        users = [key for key, names in RULES.items() if name in names]
        if value is not None and rule not in users:
            raise RequestError(f"{name}: given, but rule {rule!r} does not use it; only for: {', '.join(users)}")
    given = {name: default if options[name] is None else options[name] for name, default in RULES[rule].items()}
    for name, value in given.items():
        if value is None:
            raise RequestError(f"{name}: absent; rule {rule!r} needs it")
        if name == "m":
            check_integer(value, name, 1)
            given[name] = int(value)
            continue
        number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        if not number or not 0 <= value <= LIMITS[name] or value == np.inf:
            raise RequestError(f"{name}: found {value!r}; allowed: a number from 0 to {LIMITS[name]:g}")
    return given


def _tails(given: Any, rows: int, complete: bool) -> Array:
    tail = as_float(given, "tail_mass").reshape(np.shape(given))
    if tail.shape not in ((), (rows,)):
        raise ValueError(f"tail_mass: found shape {tail.shape}; allowed: () or ({rows},), one for each row")
    if complete and (tail > SUM_TOLERANCE).any():
        raise ValueError(f"tail_mass: found up to {tail.max()} beyond complete lists; allowed: at most {SUM_TOLERANCE}")
    return np.broadcast_to(tail, (rows,))


def _entropies(given: Any, rows: int, rule: str) -> Array:
    if rule != "typical":
        raise RequestError(f"entropy: given, but rule {rule!r} does not use it; only for: typical")
    values = as_float(given, "entropy").astype(np.float64, copy=False)
    if values.shape != (rows,):
        raise ValueError(f"entropy: found shape {values.shape}; allowed: ({rows},), one for each row")
    bad = ~((values >= -ENTROPY_TOLERANCE) & (values < np.inf))
    if bad.any():
        i = int(np.argmax(bad))
        raise ValueError(f"entropy: row {i}: found {values[i]}; allowed: a finite number >= 0")
    return values


def _bad_row(lists: Array, tail: Array, i: int) -> ValueError:
    row = lists[i].astype(np.float64)
    before = np.concatenate(([1 + LOG_TOLERANCE], row[:-1]))
    bad = ~((row <= before) & (row >= 0))
    if bad.any():
        x = int(np.argmax(bad))
        limit = f"at most {before[x]}, the one before it" if x else "at most 1"
        return ValueError(f"p_top: row {i}, entry {x}: found {row[x]}; allowed: 0 or more, {limit}")
    if not tail[i] >= -SUM_TOLERANCE:
        return ValueError(f"tail_mass: row {i}: found {tail[i]}; allowed: 0 to 1")
    total = row.sum() + tail[i]
    if not abs(total - 1) <= SUM_TOLERANCE:
        return ValueError(f"p_top, tail_mass: row {i}: found sum {total}; allowed: 1 within {SUM_TOLERANCE}")
    return ValueError(f"tail_mass: row {i}: found {tail[i]} behind a token of probability 0; allowed: 0")
