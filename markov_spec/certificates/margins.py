"""What the margin of the target's best token promises, if nothing else of its distribution is known.

``g = p(1) - p(m+1)`` is the margin of the best token over rank ``m + 1``; strict greedy decoding is the tree of
``m = 1``. With ``kap = 1/(m+1)``:

    X = g^2 (1 - 2 kap)^2 + 4 kap^2 (1 - g^2)
    d = [g + g^2 (1 - 4 kap) / (sqrt(X) + 2 kap)] / (2 kap (1 - g))
    (K4)  C = g log(1 + d) - log(1 + kap d^2 / (1 + d));  log(m+1) at g = 1
    (K3)  m = 1:  C = [(1+g) log(1+g) + (1-g) log(1-g)] / 2

*Proof.* Let the tree of ``q`` miss token 0. Then ``m`` others have ``q_i >= q_0``, so ``q_0 <= kap``, and one of them,
``j``, is no better than rank ``m + 1``, so ``p_0 - p_j >= g``. For every ``y >= 1`` the inequality of Donsker and
Varadhan for the function ``log y`` on token 0, ``-log y`` on ``j`` and 0 elsewhere gives

    KL(p||q) >= (p_0 - p_j) log y - log(1 + q_0 (y - 1) + q_j (1/y - 1)) >= g log y - log(1 + kap (y + 1/y - 2)),

the last since the inner sum falls in ``q_j >= q_0`` and then rises in ``q_0 <= kap``. The right side is largest at
``kap (1-g) y^2 - g (1 - 2 kap) y - kap (1+g) = 0``, that is ``y = 1 + d``. It is attained: by ``q`` uniform over
``m + 1`` tokens and ``p`` proportional to ``y, 1, ..., 1, 1/y`` on them, whose margin is ``g``.

The expansion ``(m+1) g^2 / 4`` for small margins exceeds ``C`` where ``m`` and ``g`` are large (1.10 against 1.00 at
``m = 8, g = .7``), so it promises nothing. Source: arXiv 2606.30265; the form without cancellation was derived here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from markov_spec.arrays import LOG_TOLERANCE, RequestError, as_float, check_integer


def kl_to_reject_margin(margin: Any, *, rule: str = "strict", m: int = 1) -> npt.NDArray[np.float64]:
    """Compute the least ``KL(p||q)`` that allows a rejection, over all targets of a margin.

    Parameters
    ----------
    margin : array of float, (...)
        ``p(1) - p(m+1)``: the probability of the target's best token less that of rank ``m + 1``, in its plain softmax;
        from 0 to 1.
    rule : {"strict", "tree"}
        Strict greedy, or a tree of the drafter's ``m`` best tokens.
    m : int
        For ``"tree"``; ``"strict"`` is 1.

    Returns
    -------
    ndarray of float64, (...)
        Nats, 0 to ``log(m+1)``. A draft is accepted under every drafter of a smaller divergence. A lower bound of what
        ``kl_to_reject`` gives, and attained by some target of this margin.

    Raises
    ------
    RequestError
        If the rule is unknown, or ``m`` is not 1 for ``"strict"``.
    ValueError
        If ``m`` is not an integer of at least 1, or a margin is not from 0 to 1 (beyond 1e-6).

    Notes
    -----
    ``O(1)`` for each. Relative accuracy 1e-12 at any margin. Source: arXiv 2606.30265; see the module for the proof.

    Examples
    --------
    >>> from markov_spec.certificates import kl_to_reject_margin
    >>> kl_to_reject_margin([0, .3, 1]).round(6)
    array([0.      , 0.045701, 0.693147])
    >>> float(kl_to_reject_margin(.7, rule="tree", m=8).round(6))
    1.000013
    """
    if rule not in ("strict", "tree"):
        raise RequestError(f"rule: found {rule!r}; allowed: strict, tree")
    check_integer(m, "m", 1)
    if rule == "strict" and m != 1:
        raise RequestError(f"m: found {m} for rule 'strict'; allowed: 1, or rule 'tree'")
    found = as_float(margin, "margin").astype(np.float64, copy=False).reshape(np.shape(margin))
    bad = ~((found >= 0) & (found <= 1 + LOG_TOLERANCE))
    if bad.any():
        at = np.unravel_index(int(np.argmax(bad)), found.shape)
        where = str([int(i) for i in at]) if at else ""
        raise ValueError(f"margin{where}: found {found[at]}; allowed: 0 to 1")
    g, kappa = np.minimum(found, 1.0), 1 / (m + 1)
    whole = g == 1
    g = np.where(whole, 0.0, g)
    root = np.sqrt((g * (1 - 2 * kappa)) ** 2 + 4 * kappa**2 * (1 - g) * (1 + g))
    d = (g + g**2 * (1 - 4 * kappa) / (root + 2 * kappa)) / (2 * kappa * (1 - g))
    least = g * np.log1p(d) - np.log1p(kappa * d**2 / (1 + d))
    return np.asarray(np.where(whole, np.log(m + 1), least))
