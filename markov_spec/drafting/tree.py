"""A draft tree itself: its tokens, what verifies it, and a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from markov_spec.arrays import Array
from markov_spec.drafting.inputs import check_ids

ROOT = -1
SHOWN_LINES = 60  # of a tree in a notebook


@dataclass(frozen=True, eq=False, repr=False)
class DraftTree:
    """The nodes that one round drafts; the root, the last committed token, is none of them. Made by ``build_tree``.

    Parameters
    ----------
    tokens : array of int, (n,)
        In any order that has a parent before its children.
    parents : array of int, (n,)
        Index of each node's parent, -1 for the root.
    log_values : array of float, (n,), optional
        Sum of the drafter's log-probabilities (nats) along each path.
    rank_path : sequence of tuple of int, optional
        Places from 0 in the lists of depths 1, 2, ... that lead to each node.

    Attributes
    ----------
    depths : ndarray of int64, (n,)
        1 for children of the root.

    Raises
    ------
    ValueError
        If lengths disagree, a parent does not stand before its child, or a node has two children of one token.

    Examples
    --------
    >>> from markov_spec.drafting import DraftTree
    >>> tree = DraftTree([5, 6, 7], [-1, -1, 0])
    >>> tree.depths
    array([1, 1, 2])
    >>> tree.accepted([5, 7, 9])
    2
    >>> print(tree.to_text())
    root
    +- 5
    |  +- 7
    +- 6
    """

    tokens: Array
    parents: Array
    log_values: Array | None = None
    rank_path: Sequence[tuple[int, ...]] | None = None
    depths: npt.NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        tokens, parents = check_ids(self.tokens, "tokens"), np.asarray(self.parents)
        for name, values in (("tokens", tokens), ("parents", parents)):
            if values.shape != (tokens.size,) or (values.dtype.kind not in "iu" and values.size):
                raise ValueError(
                    f"{name}: found shape {values.shape}, dtype {values.dtype}; allowed: ({tokens.size},) integers"
                )
        for name in ("log_values", "rank_path"):
            given = getattr(self, name)
            if given is not None and (not hasattr(given, "__len__") or len(given) != tokens.size):
                found = f"{len(given)} entries" if hasattr(given, "__len__") else repr(given)
                raise ValueError(f"{name}: found {found}; allowed: {tokens.size}, one for each node")
        depths = np.ones(tokens.size, np.int64)
        seen: set[tuple[int, int]] = set()
        for i, (token, parent) in enumerate(zip(tokens.tolist(), parents.tolist(), strict=True)):
            if not ROOT <= parent < i:
                raise ValueError(f"parents: node {i}: found {parent}; allowed: -1 for the root, or a node before it")
            if (parent, token) in seen:
                raise ValueError(f"tokens: node {i}: found {token}, which its parent {parent} has as a child already")
            seen.add((parent, token))
            depths[i] = 1 if parent == ROOT else depths[parent] + 1
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "parents", parents.astype(np.int32))
        object.__setattr__(self, "depths", depths)

    def __len__(self) -> int:
        return int(self.tokens.size)

    def accepted(self, tokens: Any) -> int:
        """Give how many of the tokens that follow the root the tree has on one path from it: ``N`` of that round."""
        return len(self._followed(tokens))

    def _followed(self, tokens: Any) -> list[int]:
        children = {(int(p), int(x)): i for i, (p, x) in enumerate(zip(self.parents, self.tokens, strict=True))}
        nodes: list[int] = []
        for token in np.asarray(tokens).tolist():
            if (nodes[-1] if nodes else ROOT, token) not in children:
                break
            nodes.append(children[nodes[-1] if nodes else ROOT, token])
        return nodes

    def attention_mask(self) -> npt.NDArray[np.bool_]:
        """Give which verified tokens each one sees, bool (n+1, n+1): its ancestors and itself, the root being 0."""
        mask = np.eye(len(self) + 1, dtype=bool)
        for i, parent in enumerate(self.parents):
            mask[i + 1] |= mask[parent + 1]
        return mask

    def retrieve_indices(self) -> npt.NDArray[np.int64]:
        """Give the verified tokens on the way to each leaf, int64 (leaves, depth + 1), -1 after its end.

        The root is 0 and node ``i`` is ``i + 1``, as in ``attention_mask``; leaves in the order of the nodes.
        """
        inner = set(self.parents.tolist())
        leaves = [i for i in range(len(self)) if i not in inner] or [ROOT]
        out = np.full((len(leaves), int(self.depths.max(initial=0)) + 1), -1, np.int64)
        for row, leaf in zip(out, leaves, strict=True):
            way = [leaf]
            while way[-1] != ROOT:
                way.append(int(self.parents[way[-1]]))
            row[: len(way)] = np.array(way[::-1]) + 1
        return out

    def to_text(self, *, tokens: Any = (), text: Mapping[int, str] | None = None) -> str:
        """Draw the tree: a line for each node with its token, and the probability of its path if it is known.

        Parameters
        ----------
        tokens : array of int
            The tokens that follow the root: nodes that they go through, the accepted ones, are marked with ``*``.
        text : mapping of int to str, optional
            Text of the tokens, shown quoted beside their ids.

        Examples
        --------
        >>> from markov_spec.drafting import DraftTree
        >>> print(DraftTree([5, 6, 7], [-1, -1, 0]).to_text(tokens=[5, 6], text={5: " a", 6: " b"}))
        root
        +- 5 ' a' *
        |  +- 7
        +- 6 ' b'
        """
        return "\n".join(["root", *self._lines(ROOT, "", set(self._followed(tokens)), text or {})])

    def _lines(self, node: int, indent: str, accepted: set[int], text: Mapping[int, str]) -> Iterator[str]:
        children = np.flatnonzero(self.parents == node).tolist()
        for i in children:
            token = int(self.tokens[i])
            words = [f"+- {token}", *([repr(text[token])] if token in text else [])]
            value = "" if self.log_values is None else f"  {np.exp(self.log_values[i]):.3g}"
            yield indent + " ".join(words) + value + " *" * (i in accepted)
            yield from self._lines(i, indent + ("   " if i == children[-1] else "|  "), accepted, text)

    def _repr_html_(self) -> str:
        lines = self.to_text().splitlines()
        left = len(lines) - SHOWN_LINES
        if left > 0:
            lines = [*lines[:SHOWN_LINES], f"and {left} more nodes"]
        return f"<p>{escape(repr(self))}</p><pre>{escape(chr(10).join(lines))}</pre>"

    def __repr__(self) -> str:
        return f"DraftTree({len(self)} node{'s' * (len(self) != 1)}, depth {self.depths.max(initial=0)})"
