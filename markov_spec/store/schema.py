"""The schema of a store: parts, their columns, and what each value may be.

A part is a Parquet file with a row per rollout. Its columns are flat lists of 64-bit offsets: a value per position,
row-major, times the column's trailing sizes, which the manifest holds. Axes of a column, after the position:

``block``
    depth ``k = 1..K`` of a block drafter; an autoregressive drafter's column does not have it.
``depth``
    depth ``k = 1..K`` of any drafter.
``entry``
    list entry ``1..M``.
``path``
    path ``1..W`` of a beam.

``divergence``
    Of the distributions ``p`` that the target decodes with and ``q`` that drafts are drawn from: ``overlap``;
    ``kl_pq``, KL(p||q), ``kl_qp`` and ``entropy`` in nats; ``varentropy``, the variance of ``-log``; ``cost``, the
    stop-aware cost. A drafter's are of ``q``, the target's of ``p``. ``raw_`` columns are those of the plain softmaxes,
    before temperature and filters. ``top_log_p`` and ``second_log_p`` are the two largest log-probabilities of ``p``.
``law``
    ``log_q`` and ``rank`` of the realised token, ``drafted``. Of a drafter with ``lists``, ``log_q`` may be NaN: not
    recorded, as the token is in none of its lists.
``multi``
    What several drafts at one depth are accepted with: ``c_m`` and ``rho_m``, the scales of rules A6 and A7 for ``m``
    drafts; given the realised token, ``coupling`` (A5), ``without_replacement_2`` and the ends ``transport_m_low`` and
    ``transport_m_high`` of what optimal transport may accept (A10).
``relaxed``
    What lossy rules judge a deterministic draft by, the drafter's likeliest token (the lowest id of equals):
    ``draft_log_p`` and ``draft_rank`` are its log-probability and rank in ``p``; ``-inf`` and ``ABSENT`` where ``p``
    has none of it, and where nothing is proposed (depths above ``drafted``).
``lists``
    ``tail_mass`` is the probability outside a list. Draft trees hold nodes of every depth, so a block drafter's lists
    past the end of a rollout are data: the drafter's own, checked as all others, or from some depth of a start on not
    recorded (NaN in ``log_q`` and ``tail_mass``, id -1).
``beam``
    Paths that an autoregressive drafter would draft from a start, for trees: its ``W`` best at each depth, best first.
    ``token`` is a path's last token, ``parent`` the path of the depth before that it goes on from, counted from 0 (-1
    at depth 1), and ``log_q`` the token's log-probability in the plain softmax after the path before it. Token -1 with
    ``-inf`` is no path; a start without paths was not searched. Past the end beams are data, as such lists are.

``tree-rank``
    Where the rollout's prefix of each depth stands in the order in which the drafter's trees take their nodes, from 1;
    ``exact_to`` is the largest number of nodes of which that is certain, ``nodes`` how many the largest tree has, and
    ``reach`` how many are taken up to the first one of each depth, past the end, too.
    The drafter's metadata tell of which trees, in ``tree_rank``: ``tree``, ``max_budget`` and ``depth``.

A lookup's draft has no distribution: its ``divergence`` holds ``overlap`` and ``cost`` with ``q`` 1 at what it
proposes, 0 where it proposes nothing, and it has no ``multi``.

Other cells past a rollout's end (``s + k > T``) hold no data: NaN, id -1, rank ``ABSENT``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from markov_spec.arrays import ABSENT, LOG_TOLERANCE

SCHEMA_VERSION = 1
STORE_FORMAT = "markov_spec store"
DRAFTER_FORMAT = "markov_spec drafter"
NO_TOKEN = -1
MULTI_DRAFTS = (2, 4, 8)

Axis = Literal["block", "depth", "entry", "path"]

FLOAT, INT = pa.float32(), pa.int32()
LARGEST = float(np.finfo(np.float32).max)
# A sum over a vocabulary of 1e5 tokens in float32 is off by up to about 1e-5.
SUM_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Column:
    """Type, axes, range and filler of one column.

    ``required`` columns stand in every file of their part, those of ``past_end`` hold data past a rollout's end, too.
    """

    type: Any
    axes: tuple[Axis, ...] = ()
    low: float = 0.0
    high: float = LARGEST
    slack: float = SUM_TOLERANCE
    fill: float = float("nan")
    required: bool = False
    past_end: bool = False

    def trailing_axes(self, depth: int | None) -> tuple[Axis, ...]:
        """Axes after the position, for a drafter of recorded depth ``K`` (None: autoregressive, or the target)."""
        return tuple(axis for axis in self.axes if depth is not None or axis != "block")


def _log(*axes: Axis, required: bool = False) -> Column:
    return Column(FLOAT, axes, low=-np.inf, high=0, slack=LOG_TOLERANCE, required=required)


def _unit(*axes: Axis) -> Column:
    return Column(FLOAT, axes, high=1)


def _ids(*axes: Axis) -> Column:
    return Column(INT, axes, low=NO_TOKEN, high=ABSENT, slack=0, fill=NO_TOKEN, required=True)


def _rank(*axes: Axis, required: bool = False) -> Column:
    return Column(INT, axes, low=1, high=ABSENT, slack=0, fill=ABSENT, required=required)


Part = Mapping[str, Column]

TARGET_PARTS: Mapping[str, Part] = {
    "divergence": {
        "entropy": Column(FLOAT),
        "varentropy": Column(FLOAT),
        "raw_entropy": Column(FLOAT),
        "raw_varentropy": Column(FLOAT),
        "top_log_p": _log(),
        "second_log_p": _log(),
    },
    "lists": {"ids": _ids("entry"), "log_p": _log("entry", required=True), "tail_mass": _unit()},
}
DRAFTER_PARTS: Mapping[str, Part] = {
    "law": {
        "log_q": _log("block", required=True),
        "rank": _rank("block"),
        "drafted": Column(INT, high=ABSENT, slack=0),
    },
    "divergence": {
        "overlap": _unit("block"),
        "kl_pq": Column(FLOAT, ("block",), high=np.inf),
        "kl_qp": Column(FLOAT, ("block",), high=np.inf),
        "entropy": Column(FLOAT, ("block",)),
        "varentropy": Column(FLOAT, ("block",)),
        "cost": _unit("block"),
        "raw_kl_pq": Column(FLOAT, ("block",), high=np.inf),
        "raw_kl_qp": Column(FLOAT, ("block",), high=np.inf),
        "raw_entropy": Column(FLOAT, ("block",)),
    },
    "multi": {
        "coupling": _unit("block"),
        "without_replacement_2": _unit("block"),
        **{f"c_{m}": Column(FLOAT, ("block",), low=1) for m in MULTI_DRAFTS},
        **{f"rho_{m}": Column(FLOAT, ("block",)) for m in MULTI_DRAFTS},
        **{f"transport_{m}_{end}": _unit("block") for m in MULTI_DRAFTS for end in ("low", "high")},
    },
    "relaxed": {"draft_log_p": _log("block"), "draft_rank": _rank("block")},
    "lists": {
        "ids": _ids("block", "entry"),
        "log_q": _log("block", "entry", required=True),
        "tail_mass": _unit("block"),
    },
    "beam": {
        "token": _ids("depth", "path"),
        "parent": _ids("depth", "path"),
        "log_q": _log("depth", "path", required=True),
    },
    "tree-rank": {
        "rank": _rank("depth", required=True),
        "exact_to": Column(INT, high=ABSENT, slack=0),
        "nodes": Column(INT, high=ABSENT, slack=0),
        "reach": Column(INT, ("depth",), low=1, high=ABSENT, slack=0, fill=ABSENT, past_end=True),
    },
}

ROLLOUTS_SCHEMA = pa.schema(
    [
        ("rollout_id", pa.large_string()),
        ("prompt_id", pa.large_string()),
        ("prompt_hash", pa.large_string()),
        ("prompt_tokens", pa.large_list(INT)),
        ("turn", INT),
        ("benchmark", pa.large_string()),
        ("tokens", pa.large_list(INT)),
        ("log_p", pa.large_list(FLOAT)),
        ("finish_reason", pa.large_string()),
    ]
)
VOCAB_SCHEMA = pa.schema([("token_id", INT), ("text", pa.large_string())])
FIXED_SCHEMAS = {"rollouts": ROLLOUTS_SCHEMA, "vocab": VOCAB_SCHEMA}


def part_schema(part: Part, columns: Sequence[str]) -> Any:
    """Arrow schema of a part that holds these columns."""
    fields = [(name, pa.large_list(part[name].type)) for name in columns]
    return pa.schema([("rollout_id", pa.large_string()), *fields])


def find_part(parts: Mapping[str, Part], name: str, columns: Sequence[str], owner: str) -> Part:
    """Look up a part and refuse unknown or missing columns."""
    if name not in parts:
        raise ValueError(f"{owner}: found part {name!r}; allowed: {', '.join(parts)}")
    part = parts[name]
    if not columns:
        raise ValueError(f"{owner}: part {name!r} has no columns; allowed: {', '.join(part)}")
    for column in columns:
        if column not in part:
            raise ValueError(f"{owner}: part {name!r}: found column {column!r}; allowed: {', '.join(part)}")
    for column, spec in part.items():
        if spec.required and column not in columns:
            raise ValueError(f"{owner}: part {name!r}: column {column!r} is missing; found: {', '.join(columns)}")
    return part


def check_name(name: str) -> str:
    """Refuse a drafter name that is no plain folder name.

    Parameters
    ----------
    name : str

    Returns
    -------
    str
        The name.

    Raises
    ------
    ValueError
        If it is not 1 to 64 letters, digits, ``.``, ``_`` or ``-``, beginning with a letter or digit.

    Examples
    --------
    >>> import markov_spec as ms
    >>> ms.store.check_name("llama-1b.q4")
    'llama-1b.q4'
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise ValueError(
            f"drafter name: found {name!r}; allowed: 1 to 64 letters, digits, '.', '_', '-', "
            "the first a letter or digit"
        )
    return name
