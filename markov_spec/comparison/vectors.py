"""Named per-rollout vectors of several contenders, checked and aligned by rollout id."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

Array = npt.NDArray[Any]
Texts = Literal["same", "own"]
IDS = ("contender", "rollout", "prompt")
QUANTITIES = ("rounds", "price")
OPTIONAL = ("variance", "price_variance", "expected_inverse", "plain_price")
NAMES = ("benchmark", "text", "setting", "exactness", "family")
TIMES = ("seconds", "milliseconds", "ms", "time", "latency", "duration")
MOST_SHOWN = 8
MOST = 1e100  # whose sums and their squares are numbers still


@dataclass(frozen=True, eq=False)
class Vectors:
    """What was counted of each contender on each rollout; rows are contenders, columns rollouts in the order of ids.

    Parameters
    ----------
    contenders : tuple of str, (C,)
    prompts : tuple of str, (P,)
    benchmarks : tuple of str
    prompt : ndarray of int, (R,)
        Which prompt each rollout is of.
    benchmark : ndarray of int, (P,)
        Which benchmark each prompt is of.
    texts : {"same", "own"}
    idle : int
        Prompts that were left out, since no contender had anything to decode.
    tokens : ndarray, (C, R)
    exactness : tuple of str, (C,), or None
        Of each contender's figures, as it was told.
    families : tuple of str, (C,)
        Of each contender; its own name if no family was told.
    rounds, price, variance, price_variance, expected_inverse, plain_price : ndarray, (C, R), or None
    """

    contenders: tuple[str, ...]
    prompts: tuple[str, ...]
    benchmarks: tuple[str, ...]
    prompt: Array
    benchmark: Array
    texts: Texts
    idle: int
    tokens: Array
    exactness: tuple[str, ...] | None
    families: tuple[str, ...]
    rounds: Array | None
    price: Array | None
    variance: Array | None
    price_variance: Array | None
    expected_inverse: Array | None
    plain_price: Array | None


def read_vectors(frame: pl.DataFrame, texts: Texts) -> Vectors:
    """Check a frame and align its contenders; see ``compare_vectors``."""
    if not isinstance(frame, pl.DataFrame):
        raise ValueError(f"frame: found {type(frame).__name__}; allowed: polars.DataFrame")
    if texts not in ("same", "own"):
        raise ValueError(f"texts: found {texts!r}; allowed: 'same', 'own'")
    rows = _checked(frame)
    names = tuple(dict.fromkeys(rows["contender"]))
    if len(names) < 2:
        raise ValueError(f"contender: found {', '.join(names) or 'no row'}; allowed: two contenders or more")
    parts = [rows.filter(pl.col("contender") == name).sort("rollout") for name in names]
    _refuse_repeats(names, parts)
    _refuse_differences(names, parts, texts)
    first = parts[0]
    prompts, prompt = np.unique(first["prompt"].to_numpy(), return_inverse=True)
    benchmarks = tuple(dict.fromkeys(rows["benchmark"]))
    values = {
        name: np.stack([part[name].to_numpy() for part in parts]) if name in rows.columns else None
        for name in ("tokens", *QUANTITIES, *OPTIONAL)
    }
    kept = _busy(values, prompt, len(prompts))
    _refuse_nothing(names, {name: values[name] for name in ("tokens", *QUANTITIES)})
    chosen = kept[prompt]
    return Vectors(
        contenders=names,
        prompts=tuple(prompts[kept].tolist()),
        benchmarks=benchmarks,
        prompt=(np.cumsum(kept) - 1)[prompt[chosen]],
        benchmark=_benchmarks(first, benchmarks, prompt, len(prompts))[kept],
        texts=texts,
        idle=int(np.sum(~kept)),
        exactness=_labels(parts),
        families=_families(names, parts),
        **{name: None if value is None else value[:, chosen] for name, value in values.items()},  # type: ignore[arg-type] # each has its own
    )


def _checked(frame: pl.DataFrame) -> pl.DataFrame:
    missing = [name for name in (*IDS, "tokens") if name not in frame.columns]
    if not missing and not set(QUANTITIES) & set(frame.columns):
        missing = ["rounds or price"]
    if missing:
        found = ", ".join(frame.columns)
        raise ValueError(
            f"frame: found columns {found}, without {', '.join(missing)}; allowed: {', '.join((*IDS, 'tokens'))}, one "
            f"of {', '.join(QUANTITIES)} or both, and if wanted {', '.join((*NAMES, *OPTIONAL))}{_hint(frame)}"
        )
    strings = [name for name in (*IDS, *NAMES) if name in frame.columns]
    numbers = [name for name in ("tokens", *QUANTITIES, *OPTIONAL) if name in frame.columns]
    for name in (*strings, *numbers):
        if frame[name].null_count():
            raise ValueError(f"{_row(frame, frame[name].is_null(), name)}: found null; allowed: a value in each row")
    for name in numbers:
        if not frame[name].dtype.is_numeric():
            raise ValueError(f"{name}: found a column of {frame[name].dtype}; allowed: numbers")
    rows = frame.select(pl.col(strings).cast(pl.String), pl.col(numbers).cast(pl.Float64))
    if "benchmark" not in rows.columns:
        rows = rows.with_columns(benchmark=pl.lit(""))
    for name in numbers:
        # A rollout of nothing to decode has no mean.
        idle = (rows["tokens"] == 0) & rows[name].is_nan() if name == "expected_inverse" else pl.Series([False])
        bad = ~((rows[name] >= 0) & (rows[name] <= MOST) | idle)
        if bad.any():
            found = rows.filter(bad)[name][0]
            raise ValueError(f"{_row(rows, bad, name)}: found {found:g}; allowed: a number from 0 to {MOST:g}")
    if "rounds" in numbers:
        bad = (rows["tokens"] > 0) & (rows["rounds"] == 0)
        if bad.any():
            found = rows.filter(bad)["tokens"][0]
            raise ValueError(f"{_row(rows, bad, 'rounds')}: found 0 for {found:g} tokens; allowed: some for any token")
    return rows


def _hint(frame: pl.DataFrame) -> str:
    times = [name for name in frame.columns if name.lower() in TIMES]
    if not times or set(QUANTITIES) & set(frame.columns):
        return ""
    return f"; a time is a price: frame.rename({{{times[0]!r}: 'price'}})"


def _row(frame: pl.DataFrame, bad: pl.Series, name: str) -> str:
    row = frame.filter(bad).row(0, named=True)
    return f"{name}: rollout {row['rollout']!r} of {row['contender']!r}"


def _refuse_repeats(names: tuple[str, ...], parts: list[pl.DataFrame]) -> None:
    for name, part in zip(names, parts, strict=True):
        ids = part["rollout"]
        if ids.n_unique() < len(ids):
            again = sorted(set(ids.filter(ids.is_duplicated())))
            raise ValueError(
                f"rollout: contender {name!r}: found {_listed(map(repr, again))} more than once; allowed: one row each"
            )


def _refuse_differences(names: tuple[str, ...], parts: list[pl.DataFrame], texts: Texts) -> None:
    """Refuse contenders that were not judged on the same rollouts, with the list of what differs."""
    told, lengths = [], False
    first = parts[0]
    ids = set(first["rollout"])
    wanted = ("setting", "prompt", "benchmark", *(("tokens", "text") if texts == "same" else ()))
    shared = [name for name in wanted if name in first.columns]
    for name, part in zip(names[1:], parts[1:], strict=True):
        own = set(part["rollout"])
        for what, lost in (("lacks", ids - own), ("alone has", own - ids)):
            if lost:
                told.append(f"{name!r} {what} {_count(len(lost))} ({_listed(map(repr, sorted(lost)))})")
        both = first.join(part, on="rollout", how="inner", suffix="_other", maintain_order="left")
        for column in shared:
            apart = both.filter(pl.col(column) != pl.col(f"{column}_other"))
            if len(apart):
                lengths |= column in ("tokens", "text")
                cells = apart.select("rollout", column, f"{column}_other").rows()
                shown = (f"{rollout!r}: {_shown(a)}, {_shown(b)}" for rollout, a, b in cells)
                told.append(f"{name!r} has another {column} in {_count(len(apart))} ({_listed(shown)})")
    if told:
        hint = "; contenders that generated their own texts are compared by texts='own'" if lengths else ""
        what = "rollouts of the same prompt, benchmark" + (" and tokens" if texts == "same" else "")
        what += " under the same setting" if "setting" in first.columns else ""
        raise ValueError(f"rollout: beside {names[0]!r}, found {'; '.join(told)}; allowed: the same {what}{hint}")


def _count(number: int) -> str:
    return f"{number} rollout{'s' * (number != 1)}"


def _shown(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 40 else f"{text[:36]}...{text[-1]}"


def _listed(values: Iterable[str]) -> str:
    shown = list(values)
    more = f" and {len(shown) - MOST_SHOWN} more" if len(shown) > MOST_SHOWN else ""
    return ", ".join(shown[:MOST_SHOWN]) + more


def _benchmarks(first: pl.DataFrame, names: tuple[str, ...], prompt: Array, count: int) -> Array:
    index = {name: b for b, name in enumerate(names)}
    own = np.array([index[name] for name in first["benchmark"]], dtype=np.int64)
    found = np.empty(count, dtype=np.int64)
    found[prompt] = own
    apart = found[prompt] != own
    if apart.any():
        i = int(np.argmax(apart))
        where = f"{names[own[i]]!r} and {names[found[prompt[i]]]!r}"
        raise ValueError(
            f"prompt {first['prompt'][i]!r}: found it in benchmarks {where}; allowed: one for each prompt id"
        )
    return found


def _labels(parts: list[pl.DataFrame]) -> tuple[str, ...] | None:
    if "exactness" not in parts[0].columns:
        return None
    return tuple(", ".join(part["exactness"].unique().sort()) for part in parts)


def _families(names: tuple[str, ...], parts: list[pl.DataFrame]) -> tuple[str, ...]:
    if "family" not in parts[0].columns:
        return names
    for name, part in zip(names, parts, strict=True):
        if part["family"].n_unique() > 1:
            found = _listed(map(repr, part["family"].unique().sort()))
            raise ValueError(f"family: contender {name!r}: found {found}; allowed: one for each contender")
    return tuple(part["family"][0] for part in parts)


def _busy(values: dict[str, Array | None], prompt: Array, count: int) -> Array:
    counted = [value for name in ("tokens", *QUANTITIES) if (value := values[name]) is not None]
    busy: Array = np.sum([np.bincount(prompt, value.sum(0), count) for value in counted], axis=0) > 0
    return busy


def _refuse_nothing(names: tuple[str, ...], values: dict[str, Array | None]) -> None:
    for what, value in values.items():
        if value is not None and not value.sum(axis=1).all():
            name = names[int(np.argmin(value.sum(axis=1)))]
            raise ValueError(f"{what}: contender {name!r}: found 0 in all of its rollouts; allowed: some above 0")
