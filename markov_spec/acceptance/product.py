"""Laws of the rules that test each depth for itself: ``S[s,k] = prod_{i<=k} a[s,i]``, ``a`` a function of the ratio.

All run the kernel of rejection sampling, ``min(1, r)``. Where acceptance depends on the position only, so does the law.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from markov_spec.acceptance import _numba
from markov_spec.acceptance.inputs import Finish, Inputs, exponential, ratio_cells
from markov_spec.arrays import Array, Exactness, RoundLaw


def product_law(
    inputs: Inputs,
    exactness: Exactness,
    *,
    name: str = "log_q",
    log_p: Array | None = None,
    finish: Finish = exponential,
) -> RoundLaw:
    """Make the law of a product rule.

    Parameters
    ----------
    inputs : Inputs
    exactness : {"exact", "bound", "heuristic", "teacher-forced"}
    name : {"log_q", "log_accept"}
        The argument to be divided by ``p``.
    log_p : ndarray of float64, (N,), optional
        Absent means that nothing is divided by.
    finish : callable
        Gives the acceptance from the logarithm of ``min(1, r)``; see ``ratio_cells``.
    """
    values = inputs.log_probs(name)
    length = inputs.lengths(values)
    if log_p is None:
        log_p = np.zeros(len(values))
    run = partial(ratio_cells, _numba.rejection, inputs, values, log_p=log_p, name=name, finish=finish)
    if values.ndim == 1 and not np.any(length):
        return RoundLaw.trusted(np.zeros_like(values), inputs.indptr, length, exactness)  # no value counts
    if values.ndim == 1:
        # A round of one draft from every position: the acceptance at a position is the same whatever the start.
        return RoundLaw.trusted(run(1, 1)[:, 0], inputs.indptr, length, exactness)
    depth = length if isinstance(length, int) else values.shape[1]
    return RoundLaw.trusted(run(length, depth), inputs.indptr, length, exactness)


def scaled_law(inputs: Inputs, exactness: Exactness, *, zero: bool = False) -> RoundLaw:
    """Make the law of ``a = min(1, scale r)``, which is ``min(1, scale min(1, r))`` since ``scale`` is at least 1.

    Parameters
    ----------
    inputs : Inputs
    exactness : {"exact", "bound", "heuristic", "teacher-forced"}
    zero : bool
        Whether ``scale`` may be 0 as well.
    """
    scale = inputs.scales(inputs.log_probs(), zero=zero)

    def finish(logs: Array, rows: slice, out: Array) -> None:
        with np.errstate(divide="ignore"):
            logs += np.log(_cells(scale, rows, logs.shape[1]), dtype=np.float64)
        exponential(np.minimum(logs, 0, out=logs), rows, out)

    return product_law(inputs, exactness, log_p=inputs.target_log_probs, finish=finish)


def _cells(scale: Array, rows: slice, depth: int) -> Array:
    if scale.ndim == 2:
        return scale[rows, :depth]
    if scale.ndim == 0:
        return scale
    at = np.arange(rows.start, rows.stop)[:, None] + np.arange(depth)
    return scale[np.minimum(at, scale.size - 1)]
