"""The round law of torch tensors: padded or ragged, on any device, with its gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

from markov_spec.arrays.checks import Array, check_draft_length, check_indptr
from markov_spec.arrays.law import Exactness, RoundLaw


class Tensor(Protocol):
    """A torch tensor, for type checkers; the package does not import torch to make laws."""

    @property
    def requires_grad(self) -> bool:
        """Whether autograd follows it."""


def check_integers(values: Any, name: str, shape: tuple[int, ...]) -> None:
    """Refuse a tensor that is not of integers or of another shape; its values are not read."""
    if not is_torch_array(values):
        raise ValueError(f"{name}: found {type(values).__name__}; allowed: a tensor {shape} of int64")
    if tuple(values.shape) != shape or str(values.dtype) != "torch.int64":
        raise ValueError(f"{name}: found shape {tuple(values.shape)}, dtype {values.dtype}; allowed: {shape} of int64")


def check_constant(length: Any, depth: int | None) -> int:
    """Validate one draft length for all starts, as ``check_draft_length``; ``torch.compile`` follows the usual case."""
    if type(length) is int and depth is not None and 0 <= length <= depth:
        return length
    return int(check_draft_length(length, np.zeros(1, np.int64), depth))


def tokens_left(lengths: Any, indptr: Any, rows: tuple[int, ...]) -> Any:
    """Compute ``T-s`` of each row, ``(B, T)`` or ``(N,)``; 0 or less past an end.

    Parameters
    ----------
    lengths : Tensor of int64, (B,), or None
    indptr : Tensor of int64, (R+1,), or None
        Either of the two.
    rows : tuple of int
        ``(B, T)`` or ``(N,)``.

    Returns
    -------
    Tensor of int64
    """
    given = indptr if lengths is None else lengths
    xp = array_namespace(given)
    starts = xp.arange(rows[-1], device=device(given))
    if lengths is not None:
        return lengths[:, None] - starts
    # The end of a row's rollout is the first offset above it; nothing on the device is waited for.
    ends = xp.searchsorted(indptr, starts, side="right")
    return xp.take(indptr, ends.clamp(max=indptr.shape[0] - 1)) - starts


@dataclass(frozen=True, eq=False, repr=False)
class TensorLaw:
    """How many drafts a round accepts, from every start, in torch tensors on one device. Made by ``round_law``.

    Parameters
    ----------
    accept : Tensor of float32 or float64, (B, T, K) or (N, K)
        The conditional acceptance ``a[s, k-1]``, rollouts padded to ``T`` or one after the other. Cells past a
        rollout's end or deeper than ``draft_length`` are ignored. It may carry a gradient.
    lengths : Tensor of int64, (B,), optional
        Tokens of each padded rollout.
    indptr : Tensor of int64, (R+1,), optional
        Of ragged rollouts: rollout ``i`` owns rows ``indptr[i]:indptr[i+1]``.
    draft_length : int or Tensor of int64, (B, T) or (N,), optional
        ``L[s]``: drafts proposed from each start; absent means ``K``.
    exactness : {"exact", "bound", "heuristic", "teacher-forced"}

    Raises
    ------
    ValueError
        If shapes or types disagree. Values are not read: on a device that would be waiting for them.

    Examples
    --------
    >>> import torch, markov_spec as ms
    >>> law = TensorLaw(torch.full((1, 5, 2), .5), lengths=torch.tensor([5]))
    >>> ms.solve(law).expected
    tensor([3.1875], dtype=torch.float64)
    """

    accept: Any
    lengths: Any = None
    indptr: Any = None
    draft_length: Any = None
    exactness: Exactness = "exact"

    def __post_init__(self) -> None:
        if (self.lengths is None) == (self.indptr is None):
            raise ValueError("lengths, indptr: found both or neither; allowed: lengths if padded, indptr if ragged")
        if self.accept.ndim != (2 if self.lengths is None else 3):
            allowed = "(N, K) with indptr, (B, T, K) with lengths"
            raise ValueError(f"accept: found shape {tuple(self.accept.shape)}; allowed: {allowed}")
        if str(self.accept.dtype) not in ("torch.float32", "torch.float64"):
            raise ValueError(f"accept: found dtype {self.accept.dtype}; allowed: float64, float32")
        if self.lengths is not None:
            check_integers(self.lengths, "lengths", (int(self.accept.shape[0]),))
        else:
            check_integers(self.indptr, "indptr", (math.prod(np.shape(self.indptr)),))
        if self.draft_length is None:
            object.__setattr__(self, "draft_length", self.depth)
        elif isinstance(self.draft_length, int):
            check_constant(self.draft_length, self.depth)
        else:
            check_integers(self.draft_length, "draft_length", self.rows)
        if self.exactness not in get_args(Exactness):
            raise ValueError(f"exactness: found {self.exactness!r}; allowed: {', '.join(get_args(Exactness))}")

    @property
    def form(self) -> Literal["padded", "ragged"]:
        """How the rollouts lie in the rows."""
        return "ragged" if self.lengths is None else "padded"

    @property
    def rows(self) -> tuple[int, ...]:
        """``(B, T)`` or ``(N,)``."""
        return tuple(int(size) for size in self.accept.shape[:-1])

    @property
    def depth(self) -> int:
        """The largest draft length ``K``."""
        return int(self.accept.shape[-1])

    def proposed(self) -> Any:
        """Give ``min(L[s], T-s)``, at least 0, in the rows' shape."""
        xp, left = array_namespace(self.accept), tokens_left(self.lengths, self.indptr, self.rows)
        if isinstance(self.draft_length, int):
            return left.clamp(0, self.draft_length)
        return xp.minimum(left, self.draft_length).clamp(0, self.depth)

    def survival(self) -> Any:
        """Materialise ``S``, float64 in the shape of ``accept``, zero past the ends and beyond the draft length."""
        xp = array_namespace(self.accept)
        depths = xp.arange(1, self.depth + 1, device=device(self.accept))
        cells = xp.where(depths <= self.proposed()[..., None], xp.astype(self.accept, xp.float64), 0.0)
        return xp.cumulative_prod(cells, axis=-1)

    def numpy(self) -> RoundLaw:
        """Give the law of arrays, for what takes no tensors; of a padded one, a copy without the padding."""
        accept, length = _array(self.accept), self.draft_length
        length = length if isinstance(length, int) else _array(length)
        if self.lengths is None:
            return RoundLaw.trusted(accept, _array(self.indptr), length, self.exactness)
        sizes = _array(self.lengths)
        own = np.arange(self.rows[1]) < sizes[:, None]
        indptr = check_indptr(np.concatenate(([0], np.cumsum(sizes))))
        return RoundLaw.trusted(accept[own], indptr, length if isinstance(length, int) else length[own], self.exactness)

    def __repr__(self) -> str:
        held = f"{len(self.lengths)} rollouts" if self.indptr is None else f"{len(self.indptr) - 1} rollouts"
        return f"TensorLaw({self.form}, K={self.depth}, {held}, {self.exactness}, {device(self.accept)})"


def _array(tensor: Any) -> Array:
    found: Array = tensor.detach().cpu().numpy()
    return found
