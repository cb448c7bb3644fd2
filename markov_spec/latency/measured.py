"""A price table from records of measurements: what columns mean, which rows are meant, one price for each cell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from markov_spec.latency.files import Record, number, shown, spread
from markov_spec.latency.inputs import FINITE, Floats
from markov_spec.latency.table import Between, Table

SIZES = {"tokens": 0, "nodes": 1}  # what a column says, and what it leaves out of the verified tokens
UNITS = {"seconds": 1, "milliseconds": 1000, "ms": 1000, "price": 1}
DRAFTS = {f"draft_{name}": unit for name, unit in UNITS.items()}
AXES = ("batch", "context")
ROLES = (*SIZES, *UNITS, *DRAFTS, *AXES)
MOST_SHOWN = 8

Cell = tuple[int, int, int]  # batch, context, size


def table_of(
    records: Sequence[Record],
    *,
    path: str,
    where: Mapping[str, Any],
    columns: Mapping[str, str],
    between: Between = "stair",
    batch: int = 1,
    plain: float | None = None,
    per_call: float | None = None,
    per_depth: float = 0.0,
) -> Table:
    """Make the table of the chosen records; see ``read_price``."""
    present = list(dict.fromkeys(name for record in records for name in record.values))
    if not records:
        raise ValueError(f"{path}: found no record; allowed: one measurement or more")
    roles = _roles(path, columns, present, DRAFTS if per_call is None else {})
    wanted = {roles.get(name, name) if name in AXES else name: value for name, value in where.items()}
    cells = _cells(path, _chosen(path, spread(records, roles.values()), wanted, present), roles)
    if not cells:
        raise ValueError(f"{path}: found only empty lists; allowed: one measurement or more")
    batches, contexts, sizes = (sorted({cell[axis] for cell in cells}) for axis in range(3))
    missing = [(b, c, n) for b in batches for c in contexts for n in sizes if (b, c, n) not in cells]
    if missing:
        told = _told(missing[0], roles)
        raise ValueError(f"{path}: found no price of {told}; allowed: one of each size at each context and batch")
    prices, calls = (
        np.array([[[cells[b, c, n][i] for n in sizes] for c in contexts] for b in batches]) for i in range(2)
    )
    if plain is not None:
        if 1 in sizes:
            raise ValueError(f"{path}: found a price of 1 token, and plain={plain}; allowed: one of them")
        sizes, prices = [1, *sizes], _put_before(prices, plain)
        calls = _put_before(calls, 0.0)
    if sizes[0] == 1 and len(sizes) > 1:
        calls[:, :, 0] = calls[:, :, 1]  # not paid there, but the end of an interpolation
    # A single context is no axis: what was measured at one of them is the price at all.
    several = len(contexts) > 1
    kept: Any = slice(None) if "batch" in roles else 0, slice(None) if several else 0
    try:
        return Table(
            sizes,
            prices[kept],
            contexts=contexts if several else None,
            batches=batches if "batch" in roles else None,
            batch=batch,
            between=between,
            per_call=calls[kept] if per_call is None else per_call,
            per_depth=per_depth,
            unit=None if "price" in roles else "seconds",
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _put_before(values: Floats, first: float) -> Floats:
    return np.concatenate((np.full((*values.shape[:2], 1), first), values), axis=2)


def _roles(path: str, given: Mapping[str, str], present: Sequence[str], drafts: Mapping[str, int]) -> dict[str, str]:
    """Find the column of each role."""
    for role, column in given.items():
        if role not in ROLES:
            raise ValueError(f"{path}: columns: found {role!r}; allowed: {', '.join(ROLES)}")
        if column not in present:
            raise ValueError(f"{path}: {role}: found no column {column!r}; allowed: {', '.join(present)}")
    roles = {role: given.get(role, role) for role in AXES if role in given or role in present}
    for group, needed in ((SIZES, True), (UNITS, True), (drafts, False)):
        named = [role for role in group if role in given]
        found = named or [role for role in group if role in present]
        if len(found) > 1 or (needed and not found):
            told = " and ".join(found) if found else f"columns {', '.join(present)}"
            how = f"one of {', '.join(group)}, or its own name as {next(iter(group))}=NAME"
            raise ValueError(f"{path}: found {told}; allowed: {how}")
        roles |= {role: given.get(role, role) for role in found}
    if ("draft_price" in roles) != ("price" in roles) and any(role in roles for role in DRAFTS):
        told = " and ".join(role for role in roles if role in UNITS or role in DRAFTS)
        raise ValueError(f"{path}: found {told}; allowed: both of the file's own unit, or both of time")
    return roles


def _chosen(path: str, records: list[Record], where: Mapping[str, Any], present: Sequence[str]) -> list[Record]:
    for column, value in where.items():
        if column not in present:
            raise ValueError(f"{path}: where: found no column {column!r}; allowed: {', '.join(present)}")
        kept = [record for record in records if _same(record.values.get(column), value)]
        if not kept:
            allowed = _listed(records, column)
            raise ValueError(f"{path}: where: {column}: found no {shown(value)!r}; allowed: {allowed}")
        records = kept
    return records


def _same(value: Any, wanted: Any) -> bool:
    if shown(value) == shown(wanted):
        return True
    first, second = number(value), number(wanted)
    return first is not None and first == second


def _cells(path: str, records: list[Record], roles: Mapping[str, str]) -> dict[Cell, tuple[float, float]]:
    """Give price and drafter's price of each cell; a cell of several rows is refused."""
    size, unit = (next(role for role in group if role in roles) for group in (SIZES, UNITS))
    draft = next((role for role in DRAFTS if role in roles), None)
    rows: dict[Cell, list[Record]] = defaultdict(list)
    cells: dict[Cell, tuple[float, float]] = {}
    for record in records:
        tokens = _count(record, roles[size], 1 - SIZES[size]) + SIZES[size]
        batch = _count(record, roles["batch"], 1) if "batch" in roles else 1
        context = _count(record, roles["context"], 0) if "context" in roles else 0
        cell = batch, context, tokens
        # A pass of one token drafts nothing, so nobody pays what may stand there.
        call = _price(record, roles[draft]) / DRAFTS[draft] if draft is not None and tokens > 1 else 0.0
        cells[cell] = _price(record, roles[unit]) / UNITS[unit], call
        rows[cell].append(record)
    repeated = [cell for cell, found in rows.items() if len(found) > 1]
    if repeated:
        first = rows[repeated[0]]
        places = " and ".join(record.at(roles[unit]).removeprefix(f"{path}, ") for record in first[:2])
        told = f"{len(first)} prices of {_told(repeated[0], roles)}, such as {places}"
        raise ValueError(f"{path}: found {told}; {_apart([rows[cell] for cell in repeated], set(roles.values()))}")
    return cells


def _apart(groups: list[list[Record]], used: set[str]) -> str:
    """Name the columns that tell rows of one cell apart, those of fewest values first."""
    names = dict.fromkeys(name for group in groups for record in group for name in record.values if name not in used)
    records = [record for group in groups for record in group]
    told = [
        name for name in names if any(len({shown(record.values.get(name)) for record in group}) > 1 for group in groups)
    ]
    told.sort(key=lambda name: len({shown(record.values.get(name)) for record in records}))
    if not told:
        return "no other column tells them apart; allowed: one row of each"
    return f"allowed: one, chosen by {'; '.join(f'{name}: {_listed(records, name)}' for name in told)}"


def _listed(records: Sequence[Record], column: str) -> str:
    values = list(dict.fromkeys(shown(record.values.get(column)) or "(empty)" for record in records))
    more = f" and {len(values) - MOST_SHOWN} more" if len(values) > MOST_SHOWN else ""
    return ", ".join(values[:MOST_SHOWN]) + more


def _told(cell: Cell, roles: Mapping[str, str]) -> str:
    batch, context, size = cell
    told = f"{size} token{'s' if size > 1 else ''}"
    told += f" at context {context}" if "context" in roles else ""
    return told + (f" and batch {batch}" if "batch" in roles else "")


def _count(record: Record, column: str, least: int) -> int:
    allowed = f"an integer from {least} to {2**53}"
    return int(_checked(record, column, allowed, lambda value: least <= value <= 2**53 and value == int(value)))


def _price(record: Record, column: str) -> float:
    return _checked(record, column, FINITE, lambda value: 0 <= value < np.inf)


def _checked(record: Record, column: str, allowed: str, good: Callable[[float], bool]) -> float:
    given = record.values.get(column)
    value = number(given)
    if value is None or not good(value):
        told = "nothing" if given is None else repr(given) if isinstance(given, str) else shown(given)
        raise ValueError(f"{record.at(column)}: found {told}; allowed: {allowed}")
    return value
