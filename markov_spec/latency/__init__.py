"""Prices of a round, in seconds or any other unit, from what it drafts and how long its context is.

A round from start ``s`` of a rollout whose prompt has ``P`` tokens drafts ``D`` tokens to depth ``k`` and reads a
context of ``P + s``. A chain has ``D = k = min(K, L[s], T-s)``; in a tree ``D`` counts its nodes. The target verifies
``D + 1`` tokens in one pass.

    affine     base + per_draft D + per_context (P + s)
    table      what was measured at D + 1 verified tokens, and at contexts and batches if it was measured at several
    roofline   what the hardware's arithmetic and memory allow, in tiles and captured sizes

and on top of each what drafting costs, ``per_call [D > 0] + per_depth k``: a block drafter makes one pass a round, an
autoregressive one a pass for each depth, and a round that drafts nothing pays for none.

A price of a pass need neither rise nor be convex in its tokens: kernels are switched and tiles filled, so a pass of 9
may cost less than one of 8. A table is therefore read where it was measured, and between two sizes only when told to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from markov_spec.latency.affine import Affine
from markov_spec.latency.files import json_records, read_file
from markov_spec.latency.inputs import Price
from markov_spec.latency.measured import table_of
from markov_spec.latency.roofline import Roofline
from markov_spec.latency.rounds import round_prices
from markov_spec.latency.source import split_source
from markov_spec.latency.table import BETWEEN, Between, Table

__all__ = ["BETWEEN", "PRICES", "Affine", "Between", "Price", "Roofline", "Table", "read_price", "round_prices"]

PRICES: dict[str, type[Price]] = {"affine": Affine, "table": Table, "roofline": Roofline}


def read_price(
    source: str | Path,
    *,
    where: Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
    between: Between | None = None,
    batch: int | None = None,
    plain: float | None = None,
    per_call: float | None = None,
    per_depth: float | None = None,
) -> Price:
    """Read the price of a round from a file of measurements, or from one that names a price and its arguments.

    A CSV file has a line for each measured pass, under a line of column names::

        gpu,tokens,context,ms,draft_ms
        A100,1,1024,30.2,4.8
        A100,4,1024,34.7,4.8

    A JSON file has the same as a list of records, or an object that holds one such list beside other facts; values of
    a record may be lists of equal length::

        {"source": "a run", "probes": [{"gpu": "A100", "tokens": [1, 4], "ms": [30.2, 34.7], "draft_ms": 4.8}]}

    or it names a price with its constructor's arguments: ``{"affine": {"base": .03, "per_draft": .0001}}``.

    ``tokens``
        Tokens that the target verifies, the root counted; or ``nodes``, drafted tokens, the root not counted.
    ``seconds``
        The price of the pass; or ``milliseconds``, ``ms``, which are read as seconds; or ``price``, in any unit.
    ``draft_seconds``, ``draft_milliseconds``, ``draft_ms``, ``draft_price``
        What a round that drafts anything pays beside it, once; optional, and not read where one token is verified.
    ``context``, ``batch``
        Tokens before the round, and requests that the pass serves; optional. Of several contexts each has all sizes;
        what was measured at one context is the price at all.

    Parameters
    ----------
    source : str or path
        The file, ``.csv`` or ``.json``. A string may hold the options too, as on a command line:
        ``"FILE?gpu=A100&tokens=verify_width&between=linear"``. There an option, or a column's meaning, is set by its
        name and any other key selects rows; ``context=1024`` selects too, and ``batch=8`` chooses.
    where : mapping of str to value, optional
        Rows to read, by the values of their columns.
    columns : mapping of str to str, optional
        The file's own names of the columns above: ``{"tokens": "verify_width", "price": "k_mean"}``.
    between : {"stair", "linear", "refuse"}
        What a size between two measured ones costs, as in `Table`: by default a stair, what the next larger measured
        size costs, to which any engine can pad. Below the smallest and above the largest there is no price.
    batch : int
        Which of the measured batches, 1 by default. The price is that of the whole pass.
    plain : float, optional
        Price of a pass of one token, where a file only has passes that draft: 1 if its unit is such a pass.
    per_call : float, optional
        What a round that drafts anything pays, in place of the file's column.
    per_depth : float, optional
        What it pays for each depth, such as a pass of an autoregressive drafter.

    Returns
    -------
    Table, Affine or Roofline

    Raises
    ------
    ValueError
        If the file is no CSV or JSON of that form, a value is not allowed, rows hold several prices of one size,
        context and batch (the columns that tell them apart are named) or lack one, or an option has no meaning.
    OSError
        If the file cannot be read.

    Notes
    -----
    ``O(rows)``.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from markov_spec.latency import read_price
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "passes.json")
    ...     _ = file.write_text('''[{"gpu": "A100", "tokens": [1, 4], "ms": [30, 35], "draft_ms": 5},
    ...                           {"gpu": "H100", "tokens": [1, 4], "ms": [15, 17], "draft_ms": 2}]''')
    ...     read_price(f"{file}?gpu=H100").of([0, 1, 3], [0, 1, 3], 0)
    array([0.015, 0.019, 0.019])
    """
    path, asked = split_source(source)
    given = {"where": where, "columns": columns, "between": between, "batch": batch, "plain": plain}
    given |= {"per_call": per_call, "per_depth": per_depth}
    named = {name: value for name, value in given.items() if value is not None}
    if both := asked.keys() & named.keys():
        raise ValueError(f"price {source!r}: found {sorted(both)[0]} in it and beside it; allowed: one of them")
    options: dict[str, Any] = {"where": {}, "columns": {}} | asked | named
    content = read_file(path)
    if isinstance(content, dict) and (kinds := [name for name in PRICES if isinstance(content.get(name), dict)]):
        return _formula(path, content, kinds, asked | named)
    records = content if path.suffix.lower() == ".csv" else json_records(path, content)
    return table_of(records, path=str(path), **options)


def _formula(path: Path, content: Mapping[str, Any], kinds: list[str], options: Mapping[str, Any]) -> Price:
    """Make a price of its name and arguments; options are arguments too, which stand for those of the file."""
    name = kinds[0]
    entry: Any = PRICES[name]
    if len(kinds) > 1:
        raise ValueError(f"{path}: found {' and '.join(kinds)}; allowed: one price")
    arguments: dict[str, Any] = {**content[name], **options}
    known = {field.name: field.default is MISSING for field in fields(entry) if field.init}
    wrong = [argument for argument in arguments if argument not in known]
    lacking = [argument for argument, needed in known.items() if needed and argument not in arguments]
    if wrong or lacking:
        found = f"found {wrong[0]!r}" if wrong else f"found no {lacking[0]}"
        raise ValueError(f"{path}: {name}: {found}; allowed: {', '.join(known)}")
    try:
        made: Price = entry(**arguments)
    except ValueError as error:
        raise ValueError(f"{path}: {name}: {error}") from error
    return made
