"""Lines of rollouts and of drafts, each read into arrays and checked by itself and against its rollout."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from markov_spec.arrays import ABSENT, Array
from markov_spec.sources.exchange.faults import Log, counted, shown
from markov_spec.sources.exchange.fields import PAST_END, Leaves, Zeros, listed_depths, padded, read_column, read_lists
from markov_spec.sources.exchange.headers import DraftsHeader, Header, column_fields, refuse_unknown
from markov_spec.sources.exchange.lines import Line
from markov_spec.store.schema import DRAFTER_PARTS, TARGET_PARTS, Column, Part

_IDS = Column(DRAFTER_PARTS["law"]["drafted"].type, high=ABSENT, slack=0)
_LOG_Q = DRAFTER_PARTS["law"]["log_q"]
_ROLLOUT = (
    "id", "prompt_id", "prompt_tokens", "tokens", "log_p", "logprobs", "benchmark", "finish_reason", "turn",
    "completion_tokens", "crc32",
)  # fmt: skip
_DRAFT = ("id", "prompt_tokens", "prompt_hash", "tokens", "crc32")


@dataclass(frozen=True, eq=False)
class Generated:
    """What a rollout's drafts are checked against, and where it stands."""

    id: str
    prompt: Array
    tokens: Array
    file: str
    line: int


@dataclass(frozen=True, eq=False)
class RolloutRow:
    """One rollout, its optional columns by their fields."""

    generated: Generated
    prompt_id: str
    benchmark: str
    finish_reason: str
    turn: int
    log_p: Array
    columns: Mapping[str, Array]


def prompt_hash(prompt: Array) -> str:
    """SHA-256 of prompt ids as little-endian 32-bit integers, in hexadecimal."""
    return hashlib.sha256(prompt.astype("<i4").tobytes()).hexdigest()


def read_rollout(line: Line, name: str, header: Header, log: Log) -> RolloutRow:
    """Read one rollout, to be known by ``name``.

    Raises
    ------
    LineError
        Naming the field that is missing or wrong.
    """
    if "tokens" not in line.values and "text" in line.values:
        raise line.error(
            "text",
            "found a text without tokens; allowed: the ids that were generated, since a text made into ids again may "
            "give others: have the engine log its token ids, or run the prompts again",
        )
    _check_fields(line, _ROLLOUT, header, TARGET_PARTS, log)
    high = header.metadata.get("vocab_size", ABSENT + 1) - 1
    ids, zeros = replace(_IDS, high=high), Zeros(header.zero, log)
    tokens = _vector(line, "tokens", ids, zeros)
    prompt = _vector(line, "prompt_tokens", ids, zeros) if "prompt_tokens" in line.values else tokens[:0]
    counted = line.integer("completion_tokens", 0, ABSENT)
    if counted not in (None, tokens.size):
        log.tally(line.file, line.number, "line", "whose completion_tokens is not the number of tokens, which counts")
    return RolloutRow(
        Generated(name, prompt, tokens, line.file, line.number),
        line.text("prompt_id"),
        line.text("benchmark", "all"),
        line.text("finish_reason", "unknown"),
        line.integer("turn", 0, ABSENT) or 0,
        _realised(line, tokens.size, zeros),
        _columns(line, header, TARGET_PARTS, tokens, zeros, high),
    )


def _check_fields(line: Line, own: Sequence[str], header: Header, parts: Mapping[str, Part], log: Log) -> None:
    """Refuse columns that the first line does not declare, and fields that are none."""
    for field in line.values:
        if field in own or field in header.columns:
            continue
        if field in column_fields(parts):
            raise line.error(field, "found an undeclared column; allowed: those in columns of the first line")
        refuse_unknown(line, field, (*own, *header.columns), log)


def _realised(line: Line, rows: int, zeros: Zeros) -> Array:
    given = [field for field in ("log_p", "logprobs") if field in line.values]
    if len(given) != 1:
        found = " and ".join(given) or f"nothing; the line has: {', '.join(line.values)}"
        raise line.error("log_p", f"found {found}; allowed: log_p or logprobs, one of them")
    leaves = Leaves(line, given[0], _LOG_Q, (), rows)
    log_p = leaves.numbers(Zeros(zeros.declared))
    leaves.refuse(
        np.isneginf(log_p),
        "a log-probability above that of probability 0, as the target generated this token (log_zero of the first "
        "line declares what stands for log 0)",
    )
    return log_p


def read_draft(line: Line, rollout: Generated, header: DraftsHeader, log: Log) -> dict[str, Array]:
    """Read what was drafted along one rollout, a column for each that the header declares but ``hit``.

    Raises
    ------
    LineError
        Naming the field that is missing or wrong, or that does not fit the rollout.
    """
    _check_fields(line, _DRAFT, header, DRAFTER_PARTS, log)
    zeros, rows = Zeros(header.zero, log), rollout.tokens.size
    _check_same(line, rollout, zeros)
    each = f"tokens of rollout {rollout.id!r} ({rollout.file}, line {rollout.line})"
    columns = _columns(line, header, DRAFTER_PARTS, rollout.tokens, zeros, ABSENT, each)
    if "hit" in header.columns:
        columns["log_q"] = _hits(line, header, rows, each)
    if header.rule == "match" and "rank" not in header.columns:
        soft = (columns["log_q"] != 0) & (columns["log_q"] > -np.inf)
        if soft.any():
            cell = np.argwhere(soft)[0]
            depth = "".join(f", depth {k + 1}" for k in cell[1:])
            raise line.error(
                "log_q",
                f"position {cell[0]}{depth}: found {columns['log_q'][tuple(cell)]}; allowed: 0 or what stands for "
                "probability 0, as rule 'match' finds no rank",
            )
    if "drafted" in header.columns and "drafted" not in line.values:
        columns["drafted"] = np.full(rows, ABSENT if header.depth is None else header.depth, dtype=np.int32)
    return columns


def _columns(
    line: Line, header: Header, parts: Mapping[str, Part], tokens: Array, zeros: Zeros, high: int, each: str = "tokens"
) -> dict[str, Array]:
    """Read the declared columns but ``hit``, and but ``drafted`` and all lists where the line has none."""
    known = column_fields(parts)
    listed = any(field.startswith("lists.") for field in line.values)
    columns: dict[str, Array] = {}
    for field, sizes in header.columns.items():
        lacks = field not in line.values and (field == "drafted" or (field.startswith("lists.") and not listed))
        if field == "hit" or lacks:
            continue
        if field == "lists.ids":
            other = "lists.log_p" if "lists.log_p" in known else "lists.log_q"
            pair = replace(known[field], low=0, high=high), known[other]
            columns[field], columns[other] = read_lists(line, (field, other), pair, sizes, tokens, zeros)
        elif field not in ("lists.log_p", "lists.log_q"):
            column = known[field]
            if field == "drafted" and isinstance(header, DraftsHeader) and header.depth is not None:
                column = replace(column, high=header.depth)
            beyond = field.partition(".")[0] in PAST_END
            nulls = field == "log_q" and listed
            columns[field] = read_column(
                line, field, column, sizes, tokens.size, zeros, each, beyond=beyond, nulls=nulls
            )
    if "lists.tail_mass" in columns and "lists.log_q" in columns and columns["lists.log_q"].ndim == 3:
        _check_tails(line, columns["lists.tail_mass"], columns["lists.log_q"])
    return columns


def _check_tails(line: Line, tails: Array, log_q: Array) -> None:
    """Refuse a tail past the end without a list, and a list there without a tail."""
    found, wanted = (~np.isnan(tails)).sum(axis=1), listed_depths(log_q)
    if (found != wanted).any():
        i = int(np.argmax(found != wanted))
        raise line.error("lists.tail_mass", f"position {i}: found {found[i]} values; allowed: {wanted[i]}, one a list")


def _hits(line: Line, header: DraftsHeader, rows: int, each: str) -> Array:
    sizes = header.columns["hit"]
    leaves = Leaves(line, "hit", _LOG_Q, sizes, rows, each)
    leaves.of_type("true or false", bool)
    log_q = np.where(np.array(leaves.values, dtype=bool), np.float32(0), np.float32(-np.inf))
    return padded(log_q, leaves.counts[1], sizes[0], np.nan) if sizes else log_q


def _vector(line: Line, field: str, column: Column, zeros: Zeros) -> Array:
    """Read a list of any length."""
    given = line.required(field)
    return read_column(line, field, column, (), len(given) if type(given) is list else 0, zeros)


def _check_same(line: Line, rollout: Generated, zeros: Zeros) -> None:
    """Refuse drafts after another prompt, or along other tokens, than the rollout's own."""
    other = f"{rollout.file}, line {rollout.line}"
    if "tokens" in line.values:
        tokens = _vector(line, "tokens", _IDS, zeros)
        if tokens.size != rollout.tokens.size:
            raise line.error(
                "tokens",
                f"found {tokens.size}; allowed: the {counted(rollout.tokens.size, 'token')} of {other} (ids made from "
                "text again may differ from those generated)",
            )
        apart = np.flatnonzero(tokens != rollout.tokens)
        if apart.size:
            i = int(apart[0])
            raise line.error("tokens", f"position {i}: found {tokens[i]}; allowed: {rollout.tokens[i]}, as in {other}")
    found = None
    if "prompt_tokens" in line.values:
        prompt = _vector(line, "prompt_tokens", _IDS, zeros)
        found = prompt_hash(prompt), f"{counted(prompt.size, 'token')}, {shown(prompt.tolist())}"
    elif "prompt_hash" in line.values:
        found = line.text("prompt_hash"), shown(line.values["prompt_hash"])
    if found is not None and found[0] != prompt_hash(rollout.prompt):
        field = "prompt_tokens" if "prompt_tokens" in line.values else "prompt_hash"
        allowed = f"the prompt of {other}: {counted(rollout.prompt.size, 'token')}, {shown(rollout.prompt.tolist())}"
        raise line.error(field, f"found {found[1]}; allowed: {allowed}{_doubled(rollout.prompt, found[0])}")


def _doubled(prompt: Array, other: str) -> str:
    """Say whether two prompts differ by a first token that one of them has twice, as when it is added twice."""
    if prompt.size > 1 and prompt[0] == prompt[1] and prompt_hash(prompt[1:]) == other:
        return f"; there the first id {prompt[0]} is doubled"
    if prompt.size and prompt_hash(np.concatenate([prompt[:1], prompt])) == other:
        return f"; here the first id {prompt[0]} is doubled"
    return ""
