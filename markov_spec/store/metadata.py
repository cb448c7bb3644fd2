"""Metadata of a store: known keys are checked, unknown ones kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

DEEPEST = 64  # levels; readers of JSON need not go deeper


def plain(value: Any, where: str, level: int = 0) -> Any:
    """Copy a value as JSON will hold it; refuse what JSON cannot hold, or is nested too deep."""
    if level > DEEPEST:
        raise ValueError(f"{where[:80]}...: found more than {DEEPEST} levels; allowed: {DEEPEST}")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{where}: found key {key!r}; allowed: text")
        return {key: plain(item, f"{where}.{key}", level + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{i}]", level + 1) for i, item in enumerate(value)]
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"{where}: found {value!r} ({type(value).__name__}); allowed: what JSON can hold")


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


Check = tuple[str, Callable[[Any], bool]]
_TEXT: Check = ("text", lambda v: isinstance(v, str))
_KNOWN: Mapping[str, Check] = {
    "target": _TEXT,
    "target_fingerprint": _TEXT,
    "tokenizer": _TEXT,
    "tokenizer_fingerprint": _TEXT,
    "vocab_size": ("an integer >= 1", lambda v: _integer(v) and v >= 1),
    "stop_ids": ("a list of token ids", lambda v: isinstance(v, list) and all(_integer(i) and i >= 0 for i in v)),
    "sampling": ("a mapping", lambda v: isinstance(v, dict)),
    "logprob_space": ("'raw' or 'processed'", lambda v: v in ("raw", "processed")),
}
_SAMPLING: Mapping[str, Check] = {
    "temperature": ("a number >= 0", lambda v: _number(v) and v >= 0),
    "top_k": ("an integer", _integer),
    "top_p": ("a number above 0, up to 1", lambda v: _number(v) and 0 < v <= 1),
    "min_p": ("a number from 0 to 1", lambda v: _number(v) and 0 <= v <= 1),
    "order": ("a list of text", lambda v: isinstance(v, list) and all(isinstance(i, str) for i in v)),
}


def _check_known(values: Mapping[str, Any], known: Mapping[str, Check], where: str) -> None:
    for key, (allowed, good) in known.items():
        if key in values and values[key] is not None and not good(values[key]):
            raise ValueError(f"{where}.{key}: found {values[key]!r}; allowed: {allowed}")


_NEUTRAL: Mapping[str, float] = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}
_NO_FILTER = ("order", "joint")


def drawn_as_recorded(facts: Mapping[str, Any], sampling: Mapping[str, Any] | None) -> bool:
    """Whether log-probabilities that ``facts`` describe are those of the distribution that ``sampling`` draws from.

    They are if they are said to be processed, or if nothing is done to the plain softmax. A setting that is not known
    counts as a filter.
    """
    given = {key: value for key, value in (sampling or {}).items() if value is not None and key not in _NO_FILTER}
    untouched = all(key in _NEUTRAL and value == _NEUTRAL[key] for key, value in given.items())
    return untouched or facts.get("logprob_space") == "processed"


def checked_metadata(metadata: Mapping[str, Any], where: str = "metadata") -> dict[str, Any]:
    """Copy the metadata as JSON will hold it, tuples as lists; ``where`` is named in errors.

    Raises
    ------
    ValueError
        If a value is no JSON, or a known key has a wrong type.
    """
    facts: dict[str, Any] = plain(metadata, where)
    _check_known(facts, _KNOWN, where)
    _check_known(facts.get("sampling") or {}, _SAMPLING, f"{where}.sampling")
    return facts
