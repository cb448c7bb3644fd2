"""What was recorded: the target's rollouts and one drafter's drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from markov_spec.arrays.checks import ABSENT, Array, as_float, check_indptr, check_log_probs, locate

Kind = Literal["autoregressive", "block"]
KINDS: tuple[Kind, ...] = ("autoregressive", "block")
LOWEST_TURN = np.iinfo(np.int32).min
HALF_FLOATS = ("bfloat16", "float16")


def _check_ids(ids: Sequence[str], name: str) -> tuple[str, ...]:
    values = tuple(ids)
    for i, value in enumerate(values):
        if not isinstance(value, str) or not value:
            raise ValueError(f"{name}: entry {i}: found {value!r}; allowed: a non-empty string")
    return values


def _check_turns(turns: Sequence[int]) -> tuple[int, ...]:
    values = tuple(turns)
    for i, value in enumerate(values):
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or not LOWEST_TURN <= value <= ABSENT:
            raise ValueError(f"turns: entry {i}: found {value!r}; allowed: an integer, {LOWEST_TURN} to {ABSENT}")
    return tuple(map(int, values))


def half_float(values: Any) -> str | None:
    """Name of the float type of 16 bits that values come in, which ``as_float`` widens; None of any other."""
    dtype = getattr(values, "dtype", None)
    name = getattr(dtype, "name", str(dtype)).removeprefix("torch.")
    return name if name in HALF_FLOATS else None


def _check_prompt(prompt: Array, i: int) -> Array:
    if prompt.ndim != 1 or (prompt.dtype.kind not in "iu" and prompt.size):
        raise ValueError(
            f"prompt_tokens: rollout {i}: found shape {prompt.shape}, dtype {prompt.dtype}; allowed: integers, 1 axis"
        )
    if prompt.size and not 0 <= prompt.min() <= prompt.max() <= ABSENT:
        raise ValueError(f"prompt_tokens: rollout {i}: found {prompt.min()} to {prompt.max()}; allowed: 0 to {ABSENT}")
    return prompt.astype(np.int32)


@dataclass(frozen=True, eq=False, repr=False)
class Rollouts:
    """What the target generated, and the probability it gave to each token.

    Parameters
    ----------
    ids : sequence of str, (R,)
        Unique rollout ids.
    prompt_ids : sequence of str, (R,)
        Rollouts of one prompt share its id: the prompt is the unit of resampling.
    benchmarks : sequence of str, (R,)
    prompt_tokens : sequence of int arrays, (R,)
        The token ids that the target read before each rollout; ragged.
    tokens : array of int, (N,)
        Generated token ids, the end token included when it was generated.
    log_p : array of float, (N,)
        Log-probability (nats) of each generated token under the distribution the target decodes with.
    indptr : array of int64, (R+1,)
    finish_reasons : sequence of str, (R,), optional
        ``"stop"`` or ``"length"``; ``"unknown"`` by default.
    turns : sequence of int, (R,), optional
        Conversation turn of each rollout; 0 by default.

    Raises
    ------
    ValueError
        On duplicate ids, lengths that disagree, NaN, positive or ``-inf`` log-probabilities, a bad ``indptr``, turns
        that are no integers of 32 bits.

    Examples
    --------
    >>> import numpy as np, markov_spec as ms
    >>> ms.Rollouts(["a"], ["p"], ["chat"], [np.array([1, 2])], np.array([5, 6, 7]), np.log([.5, .9, .4]), [0, 3])
    Rollouts(1 rollout, 3 tokens, 1 prompt, benchmarks: chat)
    """

    ids: Sequence[str]
    prompt_ids: Sequence[str]
    benchmarks: Sequence[str]
    prompt_tokens: Sequence[Array]
    tokens: Array
    log_p: Array
    indptr: Array
    finish_reasons: Sequence[str] | None = None
    turns: Sequence[int] | None = None

    def __post_init__(self) -> None:
        tokens = np.asarray(self.tokens)
        if tokens.ndim != 1 or (tokens.dtype.kind not in "iu" and tokens.size):
            raise ValueError(f"tokens: found shape {tokens.shape}, dtype {tokens.dtype}; allowed: integers, (N,)")
        indptr = check_indptr(self.indptr, tokens.size)
        count = indptr.size - 1
        ids = _check_ids(self.ids, "rollout ids")
        seen: set[str] = set()
        for i, value in enumerate(ids):
            if value in seen:
                raise ValueError(
                    f"rollout ids: {value!r} stands at {ids.index(value)} and again at {i}; ids are unique"
                )
            seen.add(value)
        reasons = ("unknown",) * count if self.finish_reasons is None else tuple(self.finish_reasons)
        turns = (0,) * count if self.turns is None else _check_turns(self.turns)
        columns = {
            "ids": ids,
            "prompt_ids": _check_ids(self.prompt_ids, "prompt ids"),
            "benchmarks": _check_ids(self.benchmarks, "benchmarks"),
            "prompt_tokens": tuple(_check_prompt(np.asarray(p), i) for i, p in enumerate(self.prompt_tokens)),
            "finish_reasons": _check_ids(reasons, "finish reasons"),
            "turns": turns,
        }
        for name, column in columns.items():
            if len(column) != count:
                raise ValueError(
                    f"{name}: found {len(column)} entries; allowed: {count}, one for each rollout of indptr"
                )
            object.__setattr__(self, name, column)
        log_p = as_float(self.log_p, "log_p")
        if log_p.shape != tokens.shape:
            raise ValueError(f"log_p: found shape {log_p.shape}; allowed: {tokens.shape}, one for each token")
        check_log_probs(log_p, indptr, "log_p", ids)
        bad = (tokens < 0) | (tokens > ABSENT)
        if bad.any():
            row = int(np.argmax(bad))
            raise ValueError(f"tokens: {locate(indptr, row, ids)}: found {tokens[row]}; allowed: 0 to {ABSENT}")
        object.__setattr__(self, "tokens", np.ascontiguousarray(tokens, dtype=np.int32))
        object.__setattr__(self, "log_p", log_p)
        object.__setattr__(self, "indptr", indptr)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        names = ", ".join(sorted(set(self.benchmarks)))
        prompts, count = len(set(self.prompt_ids)), len(self)
        return (
            f"Rollouts({count} rollout{'s' * (count != 1)}, {self.tokens.size} tokens, "
            f"{prompts} prompt{'s' * (prompts != 1)}, benchmarks: {names})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Drafts:
    """What one drafter would have drafted from every start of the rollouts.

    Parameters
    ----------
    name : str
    kind : {"autoregressive", "block"}
        Whether the drafter's distribution depends on the position only, or on (start, depth).
    rule : str
        How this drafter drafts and is verified unless told otherwise: ``"rejection"`` when it samples from ``log_q``,
        ``"match"`` when its draft is deterministic (argmax, lookup): then ``q`` is one-hot whatever rule verifies it.
    log_q : array of float, (N,) or (N, K)
        Log-probability (nats) of the realised token: at each position, or for the block begun at ``s`` at depth ``k``.
        ``-inf`` where the drafter cannot propose it. Cells past a rollout's end are ignored. With ``lists`` among the
        parts NaN where it was not recorded, as of tokens outside them.
    rank : array of int32, same shape, optional
        1-based rank of the realised token in the drafter's order (value down, id up); ``ABSENT`` (the largest int32)
        where its probability is zero.
    drafted : array of int32, (N,), optional
        Tokens proposed at each start; absent means ``K`` everywhere.
    ids : sequence of str, (R,), optional
        Rollout ids in the order of the rows; absent means the store's own order.
    indptr : array of int64, (R+1,), optional
        Row offsets, checked against the store's rollouts.
    parts : mapping, optional
        Optional store parts: part name -> column name -> array with a row for each position, for example
        ``{"divergence": {"overlap": (N,)}, "lists": {"ids": (N, M), "log_q": (N, M)}}``.
    metadata : mapping, optional
        Where the drafts come from and how they are drawn (``sampling``): anything JSON can hold; kept in the store.
        Unless it names a ``dtype``, that of a ``log_q`` given as bfloat16 or float16 is noted.

    Raises
    ------
    ValueError
        If shapes or types disagree; values are validated by ``round_law`` and ``write_store``, which know the ends.

    Examples
    --------
    >>> import numpy as np, markov_spec as ms
    >>> ms.Drafts("quant5", "autoregressive", "rejection", np.log([.5, .8, .4]))
    Drafts('quant5', autoregressive, rule rejection, 3 positions)
    """

    name: str
    kind: Kind
    rule: str
    log_q: Array
    rank: Array | None = None
    drafted: Array | None = None
    ids: Sequence[str] | None = None
    indptr: Array | None = None
    parts: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"drafter {self.name!r}: found kind {self.kind!r}; allowed: {', '.join(KINDS)}")
        log_q = as_float(self.log_q, f"drafter {self.name!r}: log_q")
        wanted = 2 if self.kind == "block" else 1
        if log_q.ndim != wanted:
            shape = "(N, K)" if wanted == 2 else "(N,)"
            raise ValueError(
                f"drafter {self.name!r}: log_q: found shape {log_q.shape}; allowed for {self.kind}: {shape}"
            )
        half = half_float(self.log_q)
        if half is not None:
            object.__setattr__(self, "metadata", {"dtype": half, **self.metadata})
        object.__setattr__(self, "log_q", log_q)
        shapes: dict[str, tuple[int, ...]] = {"rank": log_q.shape, "drafted": log_q.shape[:1]}
        for name, wanted_shape in shapes.items():
            value = getattr(self, name)
            if value is None:
                continue
            value = np.asarray(value)
            if value.shape != wanted_shape or value.dtype.kind not in "iu":
                raise ValueError(
                    f"drafter {self.name!r}: {name}: found shape {value.shape}, dtype {value.dtype}; "
                    f"allowed: integers, {wanted_shape}"
                )
            lowest = 1 if name == "rank" else 0
            if value.size and not lowest <= value.min() <= value.max() <= ABSENT:
                raise ValueError(
                    f"drafter {self.name!r}: {name}: found {value.min()} to {value.max()}; "
                    f"allowed: {lowest} to {ABSENT}"
                )
            object.__setattr__(self, name, np.ascontiguousarray(value, dtype=np.int32))
        if self.ids is not None:
            object.__setattr__(self, "ids", _check_ids(self.ids, f"drafter {self.name!r}: ids"))
        if self.indptr is not None:
            object.__setattr__(self, "indptr", check_indptr(self.indptr, log_q.shape[0]))

    @property
    def depth(self) -> int | None:
        """Recorded draft length ``K`` of a block drafter; None for an autoregressive one."""
        return self.log_q.shape[1] if self.kind == "block" else None

    def __repr__(self) -> str:
        depth = f", K={self.depth}" if self.kind == "block" else ""
        return f"Drafts({self.name!r}, {self.kind}, rule {self.rule}{depth}, {self.log_q.shape[0]} positions)"
