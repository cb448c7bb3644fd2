"""Paired comparison of contenders on named per-rollout vectors."""

from __future__ import annotations

from itertools import combinations
from typing import Any, Literal

import numpy as np
import polars as pl

from markov_spec.comparison.account import SCHEMA, account
from markov_spec.comparison.measures import LENGTH, PRICE, Measure, measures
from markov_spec.comparison.pairs import CONTENDERS, PAIRS, Asked, Drawn, contender_rows, pair_rows
from markov_spec.comparison.resampling import bootstrap_sums, flipped_sums
from markov_spec.comparison.result import Comparison
from markov_spec.comparison.vectors import Texts, read_vectors
from markov_spec.comparison.winners import BENCHMARKS, WINNERS, benchmark_rows, notes, ranked, winner_rows

MOST_RESAMPLES = 1_000_000  # of 8 bytes for each contender and measure


def compare_vectors(
    frame: pl.DataFrame,
    *,
    baseline: str | None = None,
    unit: Literal["rounds", "price"] | None = None,
    texts: Texts = "same",
    level: float = 0.95,
    margin: float | None = None,
    resamples: int = 9999,
    rng: int | np.random.Generator = 0,
) -> Comparison:
    """Compare contenders on the same rollouts, or on the same prompts, of a record or of measured logs.

    Parameters
    ----------
    frame : polars.DataFrame
        A row for each contender and rollout:

        contender, rollout, prompt : names
            Of a measured log, ``rollout`` is the request; ``prompt`` may be the same.
        tokens : number
            Those that the rounds gave.
        rounds : number
            Expected or measured.
        price : number
            Seconds, or any unit, of the whole rollout. Rounds, price or both are needed.
        benchmark : name, optional
        text : name, optional
            What was generated, or a hash of it.
        setting : name, optional
            How it was generated, such as ``"T=1, top-p=0.9"`` or a record's fingerprint. Contenders must agree.
        exactness : name, optional
            Of the figures, such as ``"exact"`` or ``"bound"``: told on.
        variance, price_variance : number, optional
            Of rounds and price, given the rollout: decoding luck.
        family : name, optional
            What the contender is a setting of, such as its drafter: the best is compared with the best of another one.
        expected_inverse : number, optional
            ``E[1/R]`` of the rollout, for the request mean.
        plain_price : number, optional
            Price of the rollout without speculation, for speed-ups.

        Other columns are not read; the order of the rows has no meaning, but contenders are listed as they appear.
    baseline : str, optional
        What the best of the others is compared with. Without it the best is compared with the best of another family,
        or with the runner-up where all are of one.
    unit : {"rounds", "price"}, optional
        What decides who is best; rounds, if there are any. All is computed of both.
    texts : {"same", "own"}
        Whether contenders were judged on the same texts, whose tokens must agree, or generated their own. Rollout ids
        and prompts must agree in either case.
    level : float
        Of confidence, above 0 and below 1.
    margin : float, optional
        Relative difference that does not matter, below 1, 0.01 for 1 %: asks whether each pair is equivalent within it.
    resamples : int
        Draws of the bootstrap, and of the sign flips where they are not all enumerated; a million at most.
    rng : int or numpy.random.Generator
        Seed of the draws. Results of one seed are equal to the bit, at any number of threads.

    Returns
    -------
    Comparison
        ``pairs`` has a row for each measure and pair, that with the better contender first unless it is the baseline.
        ``ratio`` and ``difference`` of pooled figures, intervals ``_low`` to ``_high`` by leaving prompts out (of
        the ratio on its logarithm, whose error is ``log_error``) and ``_bca_`` by the bootstrap; ``p`` by sign flips
        (``p_exact`` if all were enumerated), ``p_holm`` corrected over the pairs with the baseline, of other pairs over
        all; ``p_equivalence`` that of two one-sided tests; ``macro_difference``; ``geometric_ratio``, the geometric
        mean of the prompts' own ratios; ``saved``, rounds or price that a prompt takes less on average; the ratio
        without one prompt (``leave_one_out_prompt`` moves it most); ``decisive_prompt``, if more than half of the
        ratio's variance comes from one, and it is no near-tie.
        ``verdict`` is ``equivalent`` if that test is passed; ``near-tie`` if the interval of the ratio comes within 1 %
        of 1, or within ``margin``, and goes no farther than 10 %: the difference may be too small to matter, be it
        shown or not; ``better`` or ``worse`` if ``p_holm`` and the interval say so; else ``undecided``.
        ``contenders`` has the pooled figure, macro mean, request mean and plug-in request mean (equal if rounds were
        measured) of each, its ``speedup`` over no speculation if prices without it are given, and the ``exactness``
        that it was told; ``benchmarks`` the figures of each benchmark and the ratio to the baseline; ``winners`` who is
        best by each pooling and on each benchmark, none if tied. ``variance_account`` splits the relative variance that
        one run of real decoding would have into ``prompts``, ``rollouts_apart`` (each engine's own texts; the
        contenders' joint ones make ``rollouts``) and ``luck``; ``evaluated`` is that of this comparison, ``removed``
        the share it has not, ``equivalent_runs`` how many runs attain it; null without variances, or where a prompt has
        one rollout. Of one prompt nothing is tested; intervals of pooled figures and macro means that would reach 0, as
        of two unlike prompts, are null.

    Raises
    ------
    ValueError
        If columns are missing, a number is negative or not finite, contenders differ in their rollouts, prompts,
        benchmarks, settings, tokens or texts (the message lists where), or an option is out of range.

    Notes
    -----
    ``O(C P B)`` for ``C`` contenders, ``P`` prompts and ``B`` resamples, and ``O(B log B)`` for each pair. The unit is
    the prompt: rollouts of one prompt are not independent. Intervals are of what other prompts of this kind would give,
    those of the macro mean with the benchmarks as they are.

    Examples
    --------
    >>> import polars as pl
    >>> from markov_spec.comparison import compare_vectors
    >>> names = [f"q{i}" for i in range(10)]
    >>> rows = {"contender": ["a"] * 10 + ["b"] * 10, "rollout": names * 2, "prompt": names * 2, "tokens": [60] * 20}
    >>> rounds = [20, 24, 30, 28, 22, 25, 21, 29, 27, 26] + [19, 21, 28, 27, 19, 24, 20, 25, 24, 24]
    >>> found = compare_vectors(pl.DataFrame(rows | {"rounds": rounds}), baseline="a")
    >>> print(found.headline)
    b is better than a: 2.5974 against 2.3810 tokens per round, +9.1 % (95 % interval +5.6 to +12.6), p = 0.002
    >>> found.pairs.select("ratio_bca_low", "ratio_bca_high", "leave_one_out_prompt").row(0)
    (1.0598, 1.1282, 'q7')
    """
    _check(level, margin, resamples, rng)
    vectors = read_vectors(frame, texts)
    found = measures(vectors)
    main = _main(found, unit)
    base = _index(vectors.contenders, baseline)
    order = ranked(main.values(), main.sign)
    pairs = _pairs(order, base)
    best = [c for c in order if c != base]
    primary = (best[0], _other(order, vectors.families) if base is None else base)
    asked = Asked(vectors.contenders, vectors.prompts, base, texts, level, margin, resamples, vectors.exactness)
    stream = np.random.default_rng(rng)
    rows: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("pairs", "contenders", "benchmarks", "winners", "luck")
    }
    for measure, drawn in zip(found, _draws(found, resamples, stream), strict=True):
        rows["pairs"] += pair_rows(measure, pairs, drawn, asked)
        rows["contenders"] += contender_rows(measure, drawn, asked)
        rows["benchmarks"] += benchmark_rows(measure, vectors, asked, primary[1])
        rows["winners"] += winner_rows(measure, vectors)
        rows["luck"] += account(measure, vectors.contenders, pairs, texts)
    names = vectors.contenders[primary[0]], vectors.contenders[primary[1]]
    return Comparison(
        measure=main.name,
        primary=names,
        baseline=baseline,
        pairs=_frame(rows["pairs"], PAIRS),
        contenders=_frame(rows["contenders"], CONTENDERS),
        benchmarks=_frame(rows["benchmarks"], BENCHMARKS),
        winners=_frame(rows["winners"], WINNERS),
        variance_account=_frame(rows["luck"], SCHEMA),
        prompts=len(vectors.prompts),
        rollouts=vectors.prompt.size,
        level=level,
        margin=margin,
        notes=notes(main, vectors, asked, rows, names),
    )


def _check(level: float, margin: float | None, resamples: int, rng: int | np.random.Generator) -> None:
    if not _is_share(level):
        raise ValueError(f"level: found {level!r}; allowed: a number above 0 and below 1, 0.95 for 95 %")
    if margin is not None and not _is_share(margin):
        raise ValueError(f"margin: found {margin!r}; allowed: None, or a number above 0 and below 1, 0.01 for 1 %")
    if not _is_count(resamples) or not 1 <= resamples <= MOST_RESAMPLES:
        raise ValueError(f"resamples: found {resamples!r}; allowed: an integer from 1 to {MOST_RESAMPLES}")
    if not isinstance(rng, np.random.Generator) and not (_is_count(rng) and rng >= 0):
        raise ValueError(f"rng: found {rng!r}; allowed: an integer of 0 or more, or a numpy.random.Generator")


def _is_share(value: Any) -> bool:
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return number and 0 < value < 1


def _is_count(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _other(order: list[int], families: tuple[str, ...]) -> int:
    """Find the best contender of another family than the best one's, or the runner-up where there is none."""
    return next((c for c in order if families[c] != families[order[0]]), order[1])


def _main(found: list[Measure], unit: str | None) -> Measure:
    names = {"rounds": LENGTH, "price": PRICE}
    if unit is None:
        return found[0]
    if unit not in names:
        raise ValueError(f"unit: found {unit!r}; allowed: {', '.join(map(repr, names))}")
    for measure in found:
        if measure.name == names[unit]:
            return measure
    raise ValueError(f"unit: found {unit!r} for a frame without a column {unit}; allowed: what the frame has")


def _index(names: tuple[str, ...], baseline: str | None) -> int | None:
    if baseline is None:
        return None
    if baseline not in names:
        raise ValueError(f"baseline: found {baseline!r}; allowed: {', '.join(map(repr, names))}")
    return names.index(baseline)


def _pairs(order: list[int], base: int | None) -> list[tuple[int, int]]:
    return [(b, a) if a == base else (a, b) for a, b in combinations(order, 2)]


def _draws(found: list[Measure], resamples: int, stream: np.random.Generator) -> list[Drawn]:
    """Draw once for all measures: the same prompts, and the same exchanges."""
    sums = np.stack([rows for measure in found for rows in measure.sums])
    # Contenders of the same texts share their tokens, as do measures: what is equal is drawn once.
    rows, own = np.unique(sums.reshape(-1, sums.shape[-1]), axis=0, return_inverse=True)
    own = own.reshape(len(found), 2, -1)
    again, flipped = bootstrap_sums(rows, resamples, stream), flipped_sums(rows, resamples, stream)
    return [Drawn((again[top], again[bottom]), (flipped[top], flipped[bottom])) for top, bottom in own]


def _frame(rows: list[dict[str, Any]], schema: dict[str, Any]) -> pl.DataFrame:
    columns = {name: [row.get(name) for row in rows] for name in schema}
    frame = pl.DataFrame(columns, schema=schema, strict=False)
    return frame.with_columns(pl.selectors.float().fill_nan(None))
