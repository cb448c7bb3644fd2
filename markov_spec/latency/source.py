"""The string that names a price: ``FILE``, or ``FILE?key=value&key=value``."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

from markov_spec.latency.measured import AXES, ROLES

NUMBERS = ("plain", "per_call", "per_depth")


def split_source(source: str | Path) -> tuple[Path, dict[str, Any]]:
    """Split a string into the file and the options of ``read_price``; ``%xx`` stands for a byte of a value.

    A key that is no option and no column's meaning selects rows. ``context=1024`` selects too, and ``batch=8`` chooses;
    with a text they name a column.

    Raises
    ------
    ValueError
        If an item is no ``key=value``, stands twice, or holds a text for a number.
    """
    if isinstance(source, Path):
        return source, {}
    name, _, query = source.partition("?")
    options: dict[str, Any] = {"where": {}, "columns": {}}
    for item in query.split("&") if query else []:
        key, equals, value = (unquote(part) for part in item.partition("="))
        counted = value.isascii() and value.isdigit()
        group: dict[str, Any] = options["where"]
        entry: Any = value
        if key == "between" or (key == "batch" and counted):
            group, entry = options, int(value) if counted else value
        elif key in NUMBERS:
            group, entry = options, _number(source, key, value)
        elif key in ROLES and not (key in AXES and counted):
            group = options["columns"]
        if not key or not equals or key in group:
            raise ValueError(f"price {source!r}: found {item!r}; allowed: FILE, or FILE?key=value&..., each key once")
        group[key] = entry
    return Path(name), {option: value for option, value in options.items() if value != {}}


def _number(source: str, key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"price {source!r}: {key}: found {value!r}; allowed: a number") from None
