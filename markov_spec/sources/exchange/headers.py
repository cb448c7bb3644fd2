"""First lines of files of JSON lines: what the file is, how its tokens were drawn, and which columns its lines have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from markov_spec.acceptance import RULES
from markov_spec.arrays import ABSENT, Kind
from markov_spec.sources.exchange.faults import Log, shown
from markov_spec.sources.exchange.lines import Line
from markov_spec.sources.exchange.settings import check_sampling
from markov_spec.store import check_name
from markov_spec.store.metadata import checked_metadata, drawn_as_recorded
from markov_spec.store.schema import DRAFTER_PARTS, TARGET_PARTS, Column, Part

VERSION = 1
ROLLOUTS_FILE, DRAFTS_FILE = "markov_spec rollouts", "markov_spec drafts"
TARGET_FACTS = ("target", "target_fingerprint", "tokenizer", "tokenizer_fingerprint", "vocab_size", "stop_ids")
SHARED_FACTS = ("sampling", "logprob_space")
_SHARED = ("format", "version", *SHARED_FACTS, "columns", "log_zero", "rollouts", "metadata", "crc32")
_ROLLOUTS = (*_SHARED, *TARGET_FACTS, "fingerprint")
_DRAFTS = (*_SHARED, "name", "kind", "rule", "rollouts_fingerprint")
_INTEGER, _LOWEST = 2**63 - 1, 1e300

Columns = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Header:
    """What the first line of rollouts says.

    ``columns`` holds the sizes after the position of each optional column, ``zero`` what is written for log 0,
    ``mark`` the fingerprint of the rollouts, ``rollouts`` the number of lines to come; each None if not said.
    """

    line: Line
    metadata: Mapping[str, Any]
    columns: Columns
    zero: float | None
    mark: str | None
    rollouts: int | None


@dataclass(frozen=True)
class DraftsHeader(Header):
    """What the first line of drafts says, beside what it shares with that of rollouts."""

    name: str
    kind: Kind
    rule: str

    @property
    def depth(self) -> int | None:
        """Recorded ``K`` of a block drafter, else None."""
        return _depth(self.columns, self.kind)


def column_fields(parts: Mapping[str, Part]) -> dict[str, Column]:
    """Give the fields that columns of a store stand in, ``part.column``; those of ``law`` by their own names.

    ``hit`` is laid out as ``log_q``.
    """
    fields = {
        name if part == "law" else f"{part}.{name}": column
        for part, columns in parts.items()
        for name, column in columns.items()
    }
    return {**fields, "hit": fields["log_q"]} if "log_q" in fields else fields


def read_rollouts_header(line: Line, log: Log) -> Header:
    """Read the first line of rollouts.

    Raises
    ------
    LineError
        If it is none, or a value is not allowed.
    """
    _check_form(line, ROLLOUTS_FILE, _ROLLOUTS, log)
    facts = _metadata(line, (*TARGET_FACTS, *SHARED_FACTS), log)
    columns = _columns(line, TARGET_PARTS, {}, None)
    zero, rollouts = _zero(line), line.integer("rollouts", 0, _INTEGER)
    header = Header(line, facts, columns, zero, _mark(line, "fingerprint"), rollouts)
    if not acceptance_known(facts, facts):
        said = facts.get("logprob_space")
        log.note(
            f"{line.file}: logprob_space is {shown(said)} with sampling {facts.get('sampling')}: figures that need the "
            "ratio of probabilities are refused; allowed: 'processed'"
        )
    elif "sampling" not in facts:
        _note_unknown(facts, "log_p", line, log)
    return header


def read_drafts_header(line: Line, name: str | None, target: Header, log: Log) -> DraftsHeader:
    """Read the first line of drafts; ``name`` replaces its own.

    Raises
    ------
    LineError
        If it is none, a value is not allowed, or the log-probabilities are not those that drafts are tested with.
    """
    _check_form(line, DRAFTS_FILE, _DRAFTS, log)
    name = line.text("name") if name is None else name
    try:
        check_name(name)
    except ValueError as error:
        raise line.error("name", str(error)) from None
    kind = _one_of(line, "kind", get_args(Kind))
    rule = _one_of(line, "rule", tuple(RULES))
    facts = _metadata(line, SHARED_FACTS, log)
    if rule != "match" and not acceptance_known(facts, {**target.metadata, **facts}):
        raise line.error(
            "logprob_space",
            f"found {shown(facts.get('logprob_space'))} with sampling "
            f"{facts.get('sampling', target.metadata.get('sampling'))}; allowed: 'processed', the log-probabilities "
            "of the distributions that drafts are drawn from and tested with",
        )
    if facts.get("logprob_space") == "processed":
        del facts["logprob_space"]  # a store's log_q are, unless it says otherwise
    elif rule != "match" and {**target.metadata, **facts}.get("sampling") is None:
        _note_unknown(facts, "log_q", line, log)
    columns = _columns(line, DRAFTER_PARTS, line.required("columns"), kind)
    if "hit" in columns and rule != "match":
        raise line.error("columns", f"found hit with rule {rule!r}; allowed: log_q, or hit with rule 'match'")
    mark = _mark(line, "rollouts_fingerprint")
    if None not in (mark, target.mark) and mark != target.mark:
        raise line.error(
            "rollouts_fingerprint",
            f"found {mark}; allowed: {target.mark}, the fingerprint in {target.line.file}: recorded against other "
            "rollouts, or another pass over them",
        )
    zero, rollouts = _zero(line), line.integer("rollouts", 0, _INTEGER)
    return DraftsHeader(line, facts, columns, zero, mark, rollouts, name, kind, rule)


def acceptance_known(own: Mapping[str, Any], drawn: Mapping[str, Any]) -> bool:
    """Whether the log-probabilities described by ``own`` are those of what is drawn as ``drawn`` says."""
    return drawn_as_recorded(own, drawn.get("sampling"))


def _note_unknown(facts: dict[str, Any], field: str, line: Line, log: Log) -> None:
    """Note that sampling is not known; if the space is not known, either, keep that, which is not to say nothing."""
    if facts.get("logprob_space") is not None:
        log.note(f"{line.file}: sampling is null; it is taken as temperature 1 without filters")
        return
    facts["logprob_space"] = None
    log.note(
        f"{line.file}: logprob_space and sampling are null: figures take {field} as log-probabilities of the "
        "distributions that tokens are drawn from, and warn that this is not known"
    )


def _check_form(line: Line, form: str, known: Sequence[str], log: Log) -> None:
    if line.values.get("format") != form:
        found = shown(line.values["format"]) if "format" in line.values else "nothing"
        raise line.error("format", f'found {found}; allowed: a first line {{"format": "{form}", ...}}')
    if line.integer("version", VERSION, VERSION) is None:
        raise line.error("version", f"found nothing; allowed: {VERSION}")
    for field in line.values:
        if field not in known:
            refuse_unknown(line, field, known, log)
    for field in SHARED_FACTS:
        if field not in line.values:
            raise line.error(field, "found nothing; allowed: its value, or null if it is not known")


def refuse_unknown(line: Line, field: str, known: Sequence[str], log: Log) -> None:
    """Raise for a field that is not in the format if strict, else count it."""
    if log.strict:
        raise line.error(field, f"found an unknown field; allowed: {', '.join(known)}")
    log.tally(line.file, line.number, "line", f"with the unknown field {field!r}, which was not read")


def _metadata(line: Line, flat: Sequence[str], log: Log) -> dict[str, Any]:
    own = line.values.get("metadata", {})
    if type(own) is not dict:
        raise line.error("metadata", f"found {shown(own)}; allowed: an object")
    for key in flat:
        if key in own:
            raise line.error("metadata", f"found {key!r} in it; allowed: outside, in the line itself")
    given = {key: line.values[key] for key in flat if line.values.get(key) is not None}
    try:
        facts = checked_metadata({**given, **own}, "metadata")
    except ValueError as error:
        field, _, message = str(error).removeprefix("metadata.").partition(": ")
        raise line.error(field, message) from None
    check_sampling(line, facts.get("sampling") or {}, log)
    return facts


def _columns(line: Line, parts: Mapping[str, Part], default: Any, kind: Kind | None) -> Columns:
    found, known = line.values.get("columns", default), column_fields(parts)
    if type(found) is not dict:
        raise line.error("columns", f"found {shown(found)}; allowed: an object of column names and sizes")
    columns: dict[str, tuple[int, ...]] = {}
    for field, sizes in found.items():
        if field not in known:
            raise line.error("columns", f"found {field!r}; allowed: {', '.join(known)}")
        if type(sizes) is not list or any(type(n) is not int or not 0 <= n <= ABSENT for n in sizes):
            raise line.error("columns", f"{field}: found {shown(sizes)}; allowed: a list of sizes after the position")
        columns[field] = tuple(sizes)
    if kind is not None and ("hit" in columns) + ("log_q" in columns) != 1:
        raise line.error("columns", f"found {', '.join(columns) or 'none'}; allowed: log_q or hit, one of them")
    depth = _depth(columns, kind)
    for field, sizes in columns.items():
        axes = known[field].axes if kind == "block" else known[field].trailing_axes(None)
        _check_sizes(line, field, sizes, axes, depth)
        part = field.rpartition(".")[0]
        for name, column in parts.get(part, {}).items():
            if column.required and f"{part}.{name}" not in columns:
                raise line.error("columns", f"found {field}, not {part}.{name}; allowed: both, or none of {part}")
    ids, logs = (columns.get(f"lists.{name}") for name in ("ids", "log_p" if kind is None else "log_q"))
    if ids is not None and logs is not None and ids != logs:
        raise line.error("columns", f"lists.ids: found {list(ids)}; allowed: {list(logs)}, as its log-probabilities")
    return columns


def _depth(columns: Columns, kind: Kind | None) -> int | None:
    sizes = columns.get("hit", columns.get("log_q", ()))
    return sizes[0] if kind == "block" and sizes else None


def _check_sizes(line: Line, field: str, sizes: Sequence[int], axes: Sequence[str], depth: int | None) -> None:
    wanted = [depth if axis == "block" else None for axis in axes]
    if len(sizes) != len(axes) or any(w not in (None, n) for n, w in zip(sizes, wanted, strict=True)):
        names = {"block": "K" if depth is None else str(depth), "depth": "K", "entry": "M", "path": "W"}
        allowed = ", ".join(names[axis] for axis in axes)
        raise line.error("columns", f"{field}: found {list(sizes)}; allowed: [{allowed}]")


def _one_of(line: Line, field: str, allowed: Sequence[str]) -> Any:
    value = line.text(field)
    if value not in allowed:
        raise line.error(field, f"found {shown(value)}; allowed: {', '.join(allowed)}")
    return value


def _mark(line: Line, field: str) -> str | None:
    return line.text(field) if field in line.values else None


def _zero(line: Line) -> float | None:
    value = line.values.get("log_zero")
    if value is None or (type(value) in (int, float) and -_LOWEST <= value < 0):
        return value
    raise line.error("log_zero", f"found {shown(value)}; allowed: a number below 0, down to {-_LOWEST:g}")
