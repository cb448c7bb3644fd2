"""The rules' laws for torch tensors: the formulas of their modules, cell by cell, on the tensors' device.

With ``x[s,k] = log q[s,k] - log p[s+k-1]``, in float64::

    rejection                    a = exp(min(x, 0))
    node-recursive, node-k-seq   a = exp(min(log(scale) + min(x, 0), 0))
    independent                  a = 1 - (1 - q)^m
    recorded                     a = exp(log_accept)
    match, lossy rules           a = 1 where hit
    block                        a[k] = S[k] / S[k-1],  S[k] = min(1, S[k-1], exp(x[1] + ... + x[k]))

torch is not imported: the tensors bring it along. Gradients flow to ``log_p``, ``log_q``, ``scale`` and ``log_accept``;
cells that do not count have none.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

from markov_spec.arrays import (
    LOG_TOLERANCE,
    Exactness,
    TensorLaw,
    as_float,
    check_indptr,
    check_integer,
    check_integers,
    tokens_left,
)
from markov_spec.arrays.tensor_law import check_constant

SCALED = ("node-recursive", "node-k-seq")
FLOATS = ("float64", "float32", "float16", "bfloat16")


def of_tensors(*values: Any) -> bool:
    """Tell whether any of the values is a torch tensor."""
    return sys.modules.get("torch") is not None and any(is_torch_array(value) for value in values)


@dataclass(frozen=True, eq=False)
class Frame:
    """The rows that all values have: ``(B, T)`` or ``(N,)``; inside flat, (N,), with the tokens left from each.

    ``checked`` tells whether values are read to be checked, which would break a compiled graph.
    """

    xp: Any
    device: Any
    rows: tuple[int, ...]
    lengths: Any
    indptr: Any
    left: Any
    checked: bool

    def flat(self, values: Any, name: str, depths: tuple[int, ...] = (0, 1)) -> Any:
        """Give bool or float64 values of every row, (N,) or with depths (N, K)."""
        if not is_torch_array(values):
            values = self.xp.asarray(np.asarray(values) if name == "hit" else as_float(values, name))
        found = values.to(self.device)
        kind, kinds = str(found.dtype).removeprefix("torch."), ("bool",) if name == "hit" else FLOATS
        if kind not in kinds:
            raise ValueError(f"{name}: found dtype {kind}; allowed: {', '.join(kinds)}")
        own, beyond = tuple(found.shape[: len(self.rows)]), tuple(found.shape[len(self.rows) :])
        if own != self.rows or len(beyond) not in depths:
            allowed = f"{self.rows}" + ", and maybe an axis of depths" * (1 in depths)
            raise ValueError(f"{name}: found shape {tuple(found.shape)}; allowed: {allowed}")
        found = self.xp.reshape(found, (self.left.shape[0], *beyond))
        return found if name == "hit" else self.xp.astype(found, self.xp.float64)

    def spread(self, values: Any, depth: int) -> Any:
        """Give values of cells, (N, depth); those of positions are read at ``s+k-1``."""
        if values.ndim == 2:
            return values[:, :depth]
        rows = self.left.shape[0]
        at = self.xp.arange(rows, device=self.device)[:, None] + self.xp.arange(depth, device=self.device)
        flat = self.xp.reshape(at.clamp(max=max(rows - 1, 0)), (-1,))
        return self.xp.reshape(self.xp.take(values, flat), (rows, depth))

    def refuse(self, bad: Any, values: Any, name: str, allowed: str) -> None:
        """Raise an error for the first bad value, (N,) or (N, K), if values are checked."""
        if not self.checked or not bool(self.xp.any(bad)):
            return
        row, *depth = np.argwhere(bad.cpu().numpy())[0].tolist()
        if self.lengths is None:
            rollout = int(np.searchsorted(self.indptr.cpu().numpy(), row, side="right")) - 1
            position = row - int(self.indptr[rollout])
        else:
            rollout, position = divmod(row, self.rows[1])
        where = f"rollout {rollout}, position {position}" + "".join(f", depth {k + 1}" for k in depth)
        raise ValueError(f"{name}: {where}: found {values[(row, *depth)].item()}; allowed: {allowed}")


def _frame(example: Any, shape: tuple[int, ...], indptr: Any, lengths: Any, check_values: bool | None) -> Frame:
    if (lengths is None) == (indptr is None):
        raise ValueError("lengths, indptr: found both or neither; allowed: lengths if padded, indptr if ragged")
    xp, on = array_namespace(example), device(example)
    checked = example.device.type == "cpu" if check_values is None else check_values
    checked = checked and not sys.modules["torch"].compiler.is_compiling()
    if lengths is None:
        rows = shape[:1]
        if checked or not is_torch_array(indptr):
            indptr = check_indptr(indptr.cpu() if is_torch_array(indptr) else indptr, *rows)
        indptr = (indptr if is_torch_array(indptr) else xp.asarray(indptr)).to(on)
        check_integers(indptr, "indptr", (max(int(indptr.shape[0]), 1),))
    else:
        rows = shape[:2]
        if len(rows) < 2:
            raise ValueError(f"drafts: found shape {shape} beside lengths; allowed: (B, T, K) or (B, T)")
        lengths = (lengths if is_torch_array(lengths) else xp.asarray(lengths)).to(on)
        check_integers(lengths, "lengths", rows[:1])
        wrong = np.flatnonzero(((lengths < 0) | (lengths > rows[1])).cpu().numpy()) if checked else np.zeros(0)
        if wrong.size:
            found = int(lengths[int(wrong[0])])
            raise ValueError(f"lengths: rollout {wrong[0]}: found {found}; allowed: 0 to {rows[1]}")
    left = xp.reshape(tokens_left(lengths, indptr, rows), (-1,))
    return Frame(xp, on, rows, lengths, indptr, left, checked)


def _lengths(frame: Frame, draft_length: Any, recorded: int | None) -> tuple[Any, int]:
    """Give the draft length, an integer or (N,), and the depth of the law."""
    if draft_length is None or not np.shape(draft_length):
        constant = check_constant(draft_length, recorded)
        return constant, constant
    length = (draft_length if is_torch_array(draft_length) else frame.xp.asarray(draft_length)).to(frame.device)
    check_integers(length, "draft_length", frame.rows)
    length = frame.xp.reshape(length, (-1,))
    deepest = recorded or 0
    if recorded is None and length.shape[0]:
        deepest = int(frame.xp.max(frame.xp.where(frame.left > 0, length, 0)))
    allowed = "0 or more" if recorded is None else f"0 to the recorded {recorded}"
    frame.refuse((frame.left > 0) & ((length < 0) | (length > deepest)), length, "draft_length", allowed)
    return length, deepest


def _scale_logs(frame: Frame, given: Any, rule: str, inside: Any) -> Any:
    xp = frame.xp
    if not np.shape(given):
        cells = xp.full(inside.shape, float(given), dtype=xp.float64, device=frame.device)
    else:
        cells = frame.spread(frame.flat(given, "scale"), inside.shape[1])
    cells = xp.where(inside, cells, 1.0)
    zero = (cells == 0) & (rule == "node-k-seq")
    bad = ~zero & ~((cells >= 1 - LOG_TOLERANCE) & (cells < xp.inf))
    frame.refuse(bad, cells, "scale", "a finite number >= 1, or 0 for node-k-seq where no token is shared")
    return xp.where(zero, -xp.inf, xp.log(xp.where(zero, 1.0, cells)))


def _block(xp: Any, logs: Any) -> Any:
    total = lowest = xp.zeros_like(logs[:, 0])
    accept = []
    for k in range(logs.shape[1]):
        total = total + logs[:, k]
        lower = xp.minimum(total, lowest)
        accept.append(xp.exp(lower - xp.where(lowest == -xp.inf, 0.0, lowest)))  # 0 once S is 0
        lowest = lower
    return xp.stack(accept, axis=1)


def _acceptance(rule: str, frame: Frame, logs: Any, drafts: int) -> Any:
    """Compute the acceptance from the logarithm of what is drafted, already divided by ``p`` if the rule does that."""
    xp = frame.xp
    if rule == "block":
        return _block(xp, logs) if logs.shape[1] else logs
    if rule == "match":
        frame.refuse((logs != 0) & (logs != -xp.inf), logs, "log_q", "0 or -inf, a draft fixed beforehand, or hit")
    accept = xp.exp(xp.minimum(logs, xp.zeros_like(logs)))
    if drafts == 1:
        return accept
    sure = accept == 1  # its logarithm has no slope, the power has slope 0
    return xp.where(sure, 1.0, -xp.expm1(drafts * xp.log1p(-xp.where(sure, 0.0, accept))))


def tensor_law(
    rule: str, exactness: Exactness, *, log_p: Any, log_q: Any, indptr: Any, lengths: Any, draft_length: Any,
    hit: Any, drafts: Any, scale: Any, log_accept: Any, check_values: bool | None,
) -> TensorLaw:  # fmt: skip
    """Make the law of a rule; the arguments are those of ``round_law``."""
    given = {"log_q": log_q, "log_accept": log_accept, "hit": hit, "log_p": log_p, "scale": scale}
    name = {"recorded": "log_accept", "none": "log_p", "match": "log_q" if hit is None else "hit"}.get(rule, "log_q")
    name = "hit" if exactness == "teacher-forced" else name
    ratio, scaled = rule in ("rejection", "block", *SCALED), rule in SCALED
    for needed in (name, *("log_p",) * ratio, *("scale",) * scaled):
        if given[needed] is None:
            raise ValueError(f"{needed}: absent; rule {rule!r} needs it")
    check_integer(1 if drafts is None else drafts, "drafts", 1)
    example = next(value for value in given.values() if is_torch_array(value))
    frame = _frame(example, tuple(given[name].shape), indptr, lengths, check_values)
    xp, values = frame.xp, frame.flat(given[name], name)
    length, depth = (0, 0) if rule == "none" else _lengths(frame, draft_length, *values.shape[1:] or (None,))
    deepest = frame.left.clamp(max=length) if isinstance(length, int) else xp.minimum(frame.left, length)
    inside = xp.arange(1, depth + 1, device=frame.device) <= deepest[:, None]
    cells = frame.spread(values, depth)
    if log_p is not None:
        log_p = frame.flat(log_p, "log_p", depths=(0,))
        wrong = (frame.left > 0) & ~((log_p <= LOG_TOLERANCE) & (log_p > -xp.inf))
        frame.refuse(wrong, log_p, "log_p", "a finite log-probability <= 0, as the target generated this token")
    if name == "hit":
        accept = xp.astype(cells, xp.float64)
    else:
        # What does not count is put away first: 0 times its gradient may be NaN.
        logs = xp.where(inside, cells, 0.0)
        frame.refuse(~(logs <= LOG_TOLERANCE), logs, name, f"at most {LOG_TOLERANCE}, or -inf")
        logs = logs - xp.where(inside, frame.spread(log_p, depth), 0.0) if ratio else logs
        if scaled:
            logs = xp.minimum(logs, xp.zeros_like(logs)) + _scale_logs(frame, scale, rule, inside)
        accept = _acceptance(rule, frame, logs, 1 if drafts is None else drafts)
    wide = name != "hit" and str(given[name].dtype).endswith("float64") and rule != "none"
    accept = xp.astype(xp.where(inside, accept, 0.0), xp.float64 if wide else xp.float32)
    accept = xp.reshape(accept, (*frame.rows, depth))
    length = length if isinstance(length, int) else xp.reshape(length, frame.rows)
    return TensorLaw(accept, frame.lengths, frame.indptr, length, exactness)
