"""A drafter's own vocabulary: which of the target's token ids each of its columns stands for.

Drafters often predict a frequent part of the target's vocabulary and keep the map ``d2t`` in their checkpoint, as
offsets (the target's id of column ``i`` is ``i + d2t[i]``, EAGLE-3's way) or as absolute ids. Which of the two is told
and never guessed; without a map, sizes must be equal, but for padding that is declared. A token that a drafter has no
column for has ``q = 0``: it is never drafted. A column that stands for no token of the target has ``p = 0``: its drafts
are rejected.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from markov_spec.arrays import Array, RequestError

FORMS = ("offsets", "absolute")
SIDE_FILES = ("vocab_mapping.pt", "pytorch_model.bin")
SHOWN_MASS = 1e-3


@dataclass(frozen=True, eq=False)
class DraftVocabulary:
    """Which of the target's ids the columns of a drafter stand for.

    Parameters
    ----------
    form : {"identity", "offsets", "absolute"}
        How the map was written; ``"identity"`` has none: column ``i`` is token ``i``.
    ids : ndarray of int64, (D,), or None
        The target's id of each column; None without a map.
    pad : int
        Without a map: by how many columns at most, none of them a token's, the drafter may be wider or narrower than
        the target.

    Examples
    --------
    >>> DraftVocabulary.from_map([1, 3, 3, 6], "offsets", vocab_size=10).ids
    array([1, 4, 5, 9])
    >>> DraftVocabulary.from_map([1, 4, 5, 9], "absolute", vocab_size=10).ids
    array([1, 4, 5, 9])
    """

    form: str = "identity"
    ids: Array | None = None
    pad: int = 0

    @classmethod
    def from_map(cls, d2t: Any, form: str, vocab_size: int, *, t2d: Any = None) -> DraftVocabulary:
        """Read a map from the drafter's columns to the target's ids.

        Parameters
        ----------
        d2t : array of int, (D,)
        form : {"offsets", "absolute"}
            What it holds: ``id - column``, or the ids.
        vocab_size : int
            Width of the target's logits.
        t2d : array of bool, optional
            Which of the target's ids have a column.

        Returns
        -------
        DraftVocabulary

        Raises
        ------
        ValueError
            If an id does not exist or stands twice, or ``t2d`` tells other ids.

        Warns
        -----
        UserWarning
            If offsets look like absolute ids: each larger than the one before it.
        """
        if form not in FORMS:
            raise RequestError(f"d2t: found form {form!r}; allowed: {', '.join(FORMS)}")
        given = np.asarray(d2t)
        if given.ndim != 1 or not given.size or given.dtype.kind not in "iu":
            raise ValueError(f"d2t: found shape {given.shape}, dtype {given.dtype}; allowed: (D,) integers")
        given = given.astype(np.int64)
        ids = given + np.arange(given.size) if form == "offsets" else given
        for column in np.flatnonzero((ids < 0) | (ids >= vocab_size))[:1].tolist():
            raise ValueError(
                f"d2t: column {column}: found {given[column]}, as {form} the id {ids[column]}; allowed: the target's "
                f"ids, 0 to {vocab_size - 1}"
            )
        unique, first = np.unique(ids, return_index=True)
        for column in np.setdiff1d(np.arange(ids.size), first)[:1].tolist():
            raise ValueError(f"d2t: column {column}: found {form} that give id {ids[column]} again; allowed: each once")
        if t2d is not None:
            _check_bits(np.asarray(t2d), unique, vocab_size)
        if form == "offsets" and ids.size > 1 and (np.diff(given) > 0).all():
            warnings.warn(
                f"d2t: the offsets {given[0]}, {given[1]}, ... give the ids {ids[0]}, {ids[1]}, ...; each is larger "
                "than the one before it, as absolute ids are",
                stacklevel=2,
            )
        return cls(form, ids)

    @classmethod
    def from_checkpoint(cls, folder: str | Path, form: str, vocab_size: int) -> DraftVocabulary:
        """Read the tensors ``d2t`` and, where there is one, ``t2d`` of a checkpoint.

        Parameters
        ----------
        folder : path
            Its ``*.safetensors``, ``vocab_mapping.pt`` and ``pytorch_model.bin`` are looked into.
        form : {"offsets", "absolute"}
        vocab_size : int

        Returns
        -------
        DraftVocabulary

        Raises
        ------
        RequestError
            If there is no ``d2t``.
        ValueError
            As `from_map`.
        """
        found = read_tensors(folder, ("d2t", "t2d"))
        if "d2t" not in found:
            raise RequestError(f"{folder}: found no tensor d2t; allowed: one in *.safetensors, {', '.join(SIDE_FILES)}")
        maps = {name: values.cpu().numpy() for name, values in found.items()}
        return cls.from_map(maps["d2t"], form, vocab_size, t2d=maps.get("t2d"))

    def of_width(self, width: int, vocab_size: int, known: int) -> DraftVocabulary:
        """Settle what the columns of a drafter stand for, or refuse.

        Parameters
        ----------
        width : int
            Columns of the drafter.
        vocab_size : int
            Columns of the target.
        known : int
            Ids that the tokenizer has.

        Returns
        -------
        DraftVocabulary
            With ``ids``, unless its columns are those of the target.

        Raises
        ------
        ValueError
            If sizes differ by more than the declared padding, or in tokens that the tokenizer has.
        """
        if self.ids is not None:
            if self.ids.size != width or self.ids.max() >= vocab_size:
                raise ValueError(
                    f"found {width} columns, and a map of {self.ids.size} to ids up to {self.ids.max()}; allowed: as "
                    f"many, and ids up to {vocab_size - 1}"
                )
            return self
        if width == vocab_size:
            return self
        if abs(width - vocab_size) > self.pad or known > min(width, vocab_size):
            raise ValueError(
                f"found {width} token ids, {vocab_size} of the target, {known} of the tokenizer, no map and a declared "
                f"padding of {self.pad}; allowed: equal sizes, a map (hf:PATH?d2t=offsets or d2t=absolute), or a "
                "declared padding (hf:PATH?pad=N) of columns that are no tokens"
            )
        return DraftVocabulary("identity", np.arange(width), self.pad)

    @cached_property
    def order(self) -> Array | None:
        """The columns by rising id; None where they stand so."""
        if self.ids is None or (np.diff(self.ids) > 0).all():
            return None
        order: Array = np.argsort(self.ids)
        return order

    def rising(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Give rows ``(n, D)`` with their columns by rising id, and these ids; None for ``0..D-1``."""
        if self.ids is None:
            return rows, None
        ids = torch.as_tensor(self.ids, device=rows.device)
        if self.order is None:
            return rows, ids
        order = torch.as_tensor(self.order, device=rows.device)
        return rows[:, order], ids[order]

    def to_metadata(self) -> dict[str, Any]:
        """Tell the map as the store's manifest holds it."""
        size = {} if self.ids is None else {"size": int(self.ids.size)}
        return {"map": self.form, **size}


IDENTITY = DraftVocabulary()


def _check_bits(t2d: Array, ids: Array, vocab_size: int) -> None:
    if t2d.ndim != 1 or t2d.dtype != bool or t2d.size > vocab_size:
        raise ValueError(f"t2d: found shape {t2d.shape}, dtype {t2d.dtype}; allowed: ({vocab_size},) bools")
    odd = np.setxor1d(np.flatnonzero(t2d), ids)
    if odd.size:
        told, mapped = ("set", "not in") if odd[0] < t2d.size and t2d[odd[0]] else ("not set", "in")
        raise ValueError(f"t2d: id {odd[0]} is {told} and {mapped} d2t; allowed: exactly the {ids.size} ids of d2t set")


def read_tensors(folder: str | Path, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Read the tensors of these names, whatever stands before them, from the files of a checkpoint."""
    found: dict[str, Tensor] = {}
    for name, tensor in _named_tensors(Path(folder), names):
        found.setdefault(name, tensor)
    return found


def _named_tensors(folder: Path, names: tuple[str, ...]) -> Iterator[tuple[str, Tensor]]:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for key in file.keys():
                for name in names:
                    if f".{key}".endswith(f".{name}"):
                        yield name, file.get_tensor(key)
    for path in (folder / name for name in SIDE_FILES):
        if path.is_file():
            content: Mapping[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            for name in names:
                if name in content:
                    yield name, content[name]


def check_texts(own: Mapping[str, int], target: Mapping[str, int], name: str) -> int:
    """Count the ids that stand for other texts than the target's, and warn of them.

    Parameters
    ----------
    own, target : mapping of str to int
        Vocabularies of the two tokenizers.
    name : str
        The drafter's.

    Returns
    -------
    int
    """
    texts = {i: text for text, i in target.items()}
    other = sorted((i, text) for text, i in own.items() if i in texts and texts[i] != text)
    if other:
        i, text = other[0]
        warnings.warn(
            f"drafter {name!r}: {len(other)} of its {len(own)} token ids stand for other texts than the target's, the "
            f"first id {i}: {text!r}, the target's {texts[i]!r}",
            stacklevel=2,
        )
    return len(other)


def warn_of_mass(name: str, mass: float, known: int) -> None:
    """Warn of probability that a drafter puts on ids that are no tokens."""
    if mass > SHOWN_MASS:
        warnings.warn(
            f"drafter {name!r}: up to {mass:.3g} of its probability lies on ids from {known} on, which the tokenizer "
            "does not have; drafts of them are only ever rejected",
            stacklevel=2,
        )
