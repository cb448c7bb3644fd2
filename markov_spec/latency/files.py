"""Files of measurements, CSV and JSON, as records that know where they stand."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Record:
    """The values of a record by column, and where it stands, for errors.

    Parameters
    ----------
    place : str
        The file, and the line or entry in it.
    values : dict
        CSV holds texts only; JSON any value.
    entry : dict
        For columns that held a list: the index of this value.
    """

    place: str
    values: dict[str, Any]
    entry: dict[str, str] = field(default_factory=dict)

    def at(self, column: str) -> str:
        """Say where a value stands."""
        return f"{self.place}, {column}{self.entry.get(column, '')}"


def read_file(path: Path) -> Any:
    """Read a file: records of a CSV file, and of a JSON file whatever it holds.

    Raises
    ------
    ValueError
        Naming the file and line where it is no CSV or JSON.
    """
    kind = path.suffix.lower()
    if kind not in (".csv", ".json"):
        raise ValueError(f"{path}: found a name that ends in {kind!r}; allowed: .csv, .json")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: found bytes that are no UTF-8, at {error.start}; allowed: text in UTF-8") from error
    if not text.strip():
        raise ValueError(f"{path}: found an empty file; allowed: measurements")
    if kind == ".csv":
        return _csv_records(path, text)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from error


def _csv_records(path: Path, text: str) -> list[Record]:
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    records: list[Record] = []
    try:
        header = [name.strip() for name in next(rows)]
        if not header or len(set(header)) < len(header) or "" in header:
            raise ValueError(f"{path}, line 1: found columns {', '.join(map(repr, header))}; allowed: names, each once")
        for row in rows:
            place = f"{path}, line {rows.line_num}"
            if row and len(row) != len(header):
                raise ValueError(f"{place}: found {len(row)} values; allowed: {len(header)}, one for each column")
            if row:
                records.append(Record(place, {name: value.strip() for name, value in zip(header, row, strict=True)}))
    except csv.Error as error:
        raise ValueError(f"{path}, line {rows.line_num}: not CSV: {error}") from error
    return records


def json_records(path: Path, content: Any) -> list[Record]:
    """Find the list of records in what a JSON file holds.

    Raises
    ------
    ValueError
        If it is neither a list of records nor an object that holds one such list.
    """
    allowed = "a list of records, an object that holds one such list, or one price by its name"
    lists = {"": content} if isinstance(content, list) else {}
    if isinstance(content, dict):
        lists = {key: value for key, value in content.items() if _records_in(value)}
    if len(lists) != 1:
        told = f"lists of records {', '.join(lists)}" if lists else f"{_kind(content)} without a list of records"
        raise ValueError(f"{path}: found {told}; allowed: {allowed}")
    ((name, entries),) = lists.items()
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise ValueError(f"{path}, {name}[{number}]: found {_kind(entry)}; allowed: a record, which is an object")
    return [Record(f"{path}, {name}[{number}]", entry) for number, entry in enumerate(entries)]


def spread(records: Iterable[Record], columns: Collection[str]) -> list[Record]:
    """Give a record for each entry where values of these columns are lists, other values repeated.

    Raises
    ------
    ValueError
        If the lists of a record are not equally long.
    """
    found: list[Record] = []
    for record in records:
        lists = {key: record.values[key] for key in columns if isinstance(record.values.get(key), list)}
        if not lists:
            found.append(record)
            continue
        lengths = {len(values) for values in lists.values()}
        if len(lengths) > 1:
            told = ", ".join(f"{len(values)} values of {key}" for key, values in lists.items())
            raise ValueError(f"{record.place}: found {told}; allowed: lists of equal length")
        for i in range(lengths.pop()):
            values = {**record.values, **{key: values[i] for key, values in lists.items()}}
            found.append(Record(record.place, values, dict.fromkeys(lists, f"[{i}]")))
    return found


def shown(value: Any) -> str:
    """Write a value as the string form of a price takes it: nothing for an absent one."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def number(value: Any) -> float | None:
    """Give the number that a value is, or that a text of a CSV file says; None if it is none."""
    if isinstance(value, str) and value.isascii() and "_" not in value:
        try:
            return float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _records_in(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(entry, dict) for entry in value)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", type(None): "null"}
    return names.get(type(value), "a number" if not isinstance(value, bool) else "true or false")
