"""The round law: how many drafts a round accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from markov_spec.arrays.checks import LOG_TOLERANCE, Array, as_float, check_draft_length, check_indptr, locate
from markov_spec.arrays.rows import cells_inside

Exactness = Literal["exact", "bound", "heuristic", "teacher-forced"]


def _check_unit(values: Array, indptr: npt.NDArray[np.int64], name: str, length: int | Array | None = None) -> None:
    if values.ndim != 2:
        raise ValueError(f"{name}: found shape {values.shape}; allowed: (N, K), depth 1..K")
    bad = ~((values >= 0) & (values <= 1 + LOG_TOLERANCE)) & cells_inside(indptr, values.shape[1], length)
    if bad.any():
        row, column = (int(j) for j in np.unravel_index(int(np.argmax(bad)), bad.shape))
        raise ValueError(
            f"{name}: {locate(indptr, row)}, depth {column + 1}: found {values[row, column]}; allowed: 0 to 1"
        )


@dataclass(frozen=True, eq=False, repr=False)
class RoundLaw:
    """How many drafts a round accepts, from every start: all that the engine knows of a drafter and a rule.

    Made by ``round_law``, ``from_acceptance`` or ``from_survival``, or from arrays as here.

    Parameters
    ----------
    accept : array of float, (N, K) or (N,)
        The conditional acceptance ``a``: of depth ``k`` of the round begun at ``s``, or (``positions`` form) of
        position ``t``, read at ``t = s+k-1``. Cells past a rollout's end or deeper than ``draft_length`` are ignored.
    indptr : array of int64, (R+1,)
    draft_length : int or array of int32, (N,), optional
        ``L[s]``: drafts proposed from each start. Required in the ``positions`` form; absent means ``K`` for cells.
    exactness : {"exact", "bound", "heuristic", "teacher-forced"}

    Raises
    ------
    ValueError
        If shapes disagree, or a cell that counts is NaN or outside [0, 1].

    Notes
    -----
    ``S[s,k] = prod_{i<=k} a[s,i]`` for ``k <= min(L[s], T-s)``, else 0. The float type of the input is kept.
    """

    accept: Array
    indptr: Array
    draft_length: int | Array | None = None
    exactness: Exactness = "exact"

    def __post_init__(self) -> None:
        self._settle()
        if self.depth:
            positions = self.form == "positions"
            cells = self.accept[:, None] if positions else self.accept
            _check_unit(cells, self.indptr, "accept", None if positions else self.draft_length)

    def _settle(self) -> None:
        accept = as_float(self.accept, "accept")
        if accept.ndim not in (1, 2):
            raise ValueError(f"accept: found shape {accept.shape}; allowed: (N, K) or (N,)")
        object.__setattr__(self, "accept", accept)
        object.__setattr__(self, "indptr", check_indptr(self.indptr, accept.shape[0]))
        recorded = accept.shape[1] if accept.ndim == 2 else None
        object.__setattr__(self, "draft_length", check_draft_length(self.draft_length, self.indptr, recorded))
        if self.exactness not in get_args(Exactness):
            raise ValueError(f"exactness: found {self.exactness!r}; allowed: {', '.join(get_args(Exactness))}")

    @classmethod
    def trusted(
        cls, accept: Array, indptr: Array, draft_length: int | Array | None = None, exactness: Exactness = "exact"
    ) -> RoundLaw:
        """Make a law of acceptances that are known to be probabilities, without reading them."""
        law = cls.__new__(cls)
        for name, value in zip(cls.__match_args__, (accept, indptr, draft_length, exactness), strict=True):
            object.__setattr__(law, name, value)
        law._settle()
        return law

    @classmethod
    def from_acceptance(cls, a: Array, indptr: Array) -> RoundLaw:
        """Make a law from the conditional acceptance.

        Parameters
        ----------
        a : array of float, (N, K)
            ``a[s, k-1]``: probability that depth ``k`` is accepted given that the depths before it were.
        indptr : array of int64, (R+1,)

        Raises
        ------
        ValueError
            If a cell inside its rollout is NaN or outside [0, 1].

        Examples
        --------
        >>> import numpy as np, markov_spec as ms
        >>> law = ms.RoundLaw.from_acceptance(np.full((5, 2), .5), [0, 5])
        >>> ms.solve(law).expected
        array([3.1875])
        """
        values = as_float(a, "a")
        _check_unit(values, check_indptr(indptr, len(values) if values.ndim else None), "a")
        return cls.trusted(np.minimum(values, 1), indptr)

    @classmethod
    def from_survival(cls, S: Array, indptr: Array) -> RoundLaw:
        """Make a law from the survival.

        Parameters
        ----------
        S : array of float, (N, K)
            ``S[s, k-1]``: probability that the round begun at ``s`` accepts at least ``k`` drafts; never rises with k.
        indptr : array of int64, (R+1,)

        Raises
        ------
        ValueError
            If a cell inside its rollout is NaN, outside [0, 1] or larger than the cell before it.

        Examples
        --------
        >>> import numpy as np, markov_spec as ms
        >>> law = ms.RoundLaw.from_survival(np.tile([.5, .25], (5, 1)), [0, 5])
        >>> ms.solve(law).expected
        array([3.1875])
        """
        values = as_float(S, "S")
        offsets = check_indptr(indptr, len(values) if values.ndim else None)
        _check_unit(values, offsets, "S")
        before = np.ones_like(values)
        before[:, 1:] = values[:, :-1]
        rises = (values > before + LOG_TOLERANCE) & cells_inside(offsets, values.shape[1])
        if rises.any():
            row, column = (int(j) for j in np.unravel_index(int(np.argmax(rises)), rises.shape))
            raise ValueError(
                f"S: {locate(offsets, row)}, depth {column + 1}: found {values[row, column]} after "
                f"{before[row, column]}; a survival never rises"
            )
        ratio = np.divide(values, before, out=np.zeros_like(values), where=before > 0)
        return cls.trusted(np.minimum(ratio, 1), offsets)

    @property
    def form(self) -> Literal["cells", "positions"]:
        """``"cells"`` if acceptance depends on (start, depth), ``"positions"`` if on the position only."""
        return "cells" if self.accept.ndim == 2 else "positions"

    @property
    def depth(self) -> int:
        """The largest draft length ``K``."""
        if self.form == "cells":
            return int(self.accept.shape[1])
        return int(np.max(np.asarray(self.draft_length), initial=0))

    def layout(self) -> tuple[Array, int, Array, int, Array]:
        """Give the law as kernels read it.

        Returns
        -------
        accept : ndarray of float, flat
            The acceptance of depth ``k`` from row ``s`` stands at ``s * row + k - 1``.
        row : int
            ``K`` for cells, 1 for positions.
        length : ndarray of int32
            The draft length of row ``s`` stands at ``s * step``.
        step : int
            0 for a constant.
        indptr : ndarray of int64, (R+1,)
        """
        row = int(self.accept.shape[1]) if self.form == "cells" else 1
        length = np.asarray(self.draft_length, dtype=np.int32).reshape(-1)
        return self.accept.reshape(-1), row, length, int(isinstance(self.draft_length, np.ndarray)), self.indptr

    def survival(self) -> Array:
        """Materialise ``S``, float64 ``(N, K)``, zero past the ends and beyond the draft length."""
        return np.cumprod(self.conditional(), axis=1)

    def conditional(self) -> Array:
        """Materialise ``a``, float64 ``(N, K)``, zero past the ends and beyond the draft length."""
        rows, depth = self.accept.shape[0], self.depth
        inside = cells_inside(self.indptr, depth, self.draft_length)
        if self.form == "cells":
            cells = self.accept.astype(np.float64)
        else:
            at = np.arange(rows)[:, None] + np.arange(depth)
            cells = self.accept.astype(np.float64)[np.minimum(at, max(rows - 1, 0))]
        return np.where(inside, cells, 0.0)

    def __repr__(self) -> str:
        rollouts = self.indptr.size - 1
        starts = int(self.indptr[-1])
        counts = f"{rollouts} rollout{'s' * (rollouts != 1)}, {starts} start{'s' * (starts != 1)}"
        return f"RoundLaw({self.form}, K={self.depth}, {counts}, {self.exactness})"
