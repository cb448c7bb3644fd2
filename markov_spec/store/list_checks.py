"""Whether a target's tokens, their log-probabilities and its lists of likeliest tokens agree, and what they look like.

Lists are of the plain softmax, as ``record`` writes them, or of the distribution that tokens are drawn from: which of
them is seen by the setting at which they give ``log_p``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from markov_spec.arrays import Array
from markov_spec.store.findings import Cause, Report
from markov_spec.store.listed import UNKNOWN_VOCABULARY, Fit, Listed
from markov_spec.store.reader import Store
from markov_spec.store.sampled import NOISE, allowed_deviation, covered_rows, sample
from markov_spec.store.setting import Setting
from markov_spec.store.shifts import Neighbours, id_shift, neighbours

# Nats a token: passes over the same tokens differ by less than the first, other settings or tokens by more.
AGREED, APART = 0.1, 0.5
# A rollout of fewer listed tokens is not judged by itself.
FEWEST_TOKENS = 5
# Nats; a tie that rounding turns over is smaller. A larger share of greedy tokens that are not the likeliest is no tie.
TIE, TIE_SHARE, FEWEST_WORSE = 0.5, 0.01, 5
# A temperature that is known less well is not told where nothing is wrong.
TOLD_WIDTH = 0.2
# Rounds in which top-p and temperature settle to two digits.
TOP_P_STEPS = 6
SHOWN = 3
CORRECT = "correct the recorded sampling, or store log_p of the distribution that tokens are drawn from"


def check_lists(store: Store, metadata: Mapping[str, Any], where: str, report: Report, *, scored: bool) -> Cause | None:
    """Report what the target's lists say of its tokens, whose log-probabilities can be judged by if ``scored``.

    Returns
    -------
    Cause or None
        What the tokens look like, if not what is recorded; the caller reports it.
    """
    listed, likeliest = _read(store, metadata.get("vocab_size") or UNKNOWN_VOCABULARY)
    recorded = Setting.of(metadata)
    shift = None if scored and listed is not None and _in_place(listed, recorded) else id_shift(likeliest)
    if shift is not None:
        report.add("warning", where, f"the lists {shift}; record them again at the positions of their tokens")
    elif recorded.other:
        report.add(
            "note", where, f"the lists judge no temperature: sampling {metadata.get('sampling')} is more than they know"
        )
    elif listed is not None and not recorded.random:
        _check_greedy(listed, recorded, where, report)
    elif listed is not None and scored:
        return _cause(listed, recorded, metadata.get("logprob_space"), store.index[0], where, report)
    return None


def _read(store: Store, vocab_size: int) -> tuple[Listed | None, list[Neighbours]]:
    """Lists of a sample of rollouts, and their first entries beside the tokens around them."""
    width, pieces, likeliest = store._target.sizes("lists")["ids"][0], [], []
    for first, some in sample(store, width) if width else ():
        rollouts, part = some.rollouts(), some.part("lists")
        rows, logs = covered_rows(part, rollouts.indptr), part["log_p"].astype(np.float64)
        found = part["ids"] == rollouts.tokens[rows][:, None]
        tail = part["tail_mass"].astype(np.float64) if "tail_mass" in part else 1 - np.exp(logs).sum(axis=1)
        number = np.repeat(np.arange(first, first + len(rollouts)), np.diff(rollouts.indptr))[rows]
        place = np.where(found.any(axis=1), found.argmax(axis=1), width)
        good = logs[:, 0] > -np.inf
        columns = (logs, np.clip(tail, 0, 1), place, rollouts.log_p[rows].astype(np.float64), number)
        pieces.append([values[good] for values in columns])
        best = np.full(rows.size, -1, dtype=np.int64)
        best[rows] = part["ids"][:, 0]
        likeliest.append(neighbours(best, rollouts.tokens, rows, rollouts.indptr, first))
    if not sum(len(piece[0]) for piece in pieces):
        return None, likeliest
    logs, tail, place, log_p, number = (np.concatenate(values) for values in zip(*pieces, strict=True))
    return Listed(logs, tail, place, log_p, number, vocab_size), likeliest


def _check_greedy(listed: Listed, recorded: Setting, where: str, report: Report) -> None:
    logs = np.column_stack([listed.logs, np.full(len(listed.logs), -np.inf)])
    gaps = logs[:, 0] - np.take_along_axis(logs, listed.place[:, None], axis=1)[:, 0]
    worse = int(np.count_nonzero(gaps > TIE))
    if worse >= max(FEWEST_WORSE, TIE_SHARE * len(gaps)):
        report.add(
            "warning",
            where,
            f"{worse} of {len(gaps)} tokens are less likely than the first of their list, by more than {TIE} nats, "
            f"though {recorded} is recorded: {_Judgement(listed, Setting()).looks()}; correct the recorded sampling",
        )


class _Judgement:
    """How well tokens fit their lists at a setting, and what they look like if they do not."""

    def __init__(self, listed: Listed, setting: Setting) -> None:
        self._listed, self.setting = listed, setting
        keep = listed.kept(setting).keep
        self.score = listed.score(1 / setting.temperature, keep)
        self.fit = listed.fit(keep)
        self.excluded = int(np.count_nonzero(listed.excluded(setting)))
        # The filter that is looked for makes the tokens look colder; two standard errors are on the safe side.
        self._cut = None if self.fit is None else listed.cut(self.fit.cold_beta, setting)

    @property
    def good(self) -> bool:
        if self.beyond:
            return False
        allowed = allowed_deviation(self.score.variance, self.score.largest) + NOISE * self.score.terms
        return abs(self.score.surplus) <= allowed and (self._cut is None or self._cut.kind is None)

    @property
    def beyond(self) -> bool:
        """Whether the setting leaves out more of the tokens than ties that rounding turns over."""
        return self.excluded >= max(FEWEST_WORSE, TIE_SHARE * len(self._listed.place))

    @property
    def z(self) -> float:
        """Of the surprise, as in the whole distributions: below 0 if the tokens are too likely."""
        return -self.score.surplus / math.sqrt(self.score.variance) if self.score.variance else 0.0

    def likeliest(self) -> tuple[Setting, Fit | None]:
        """The setting that the tokens look like, and how well its temperature is known."""
        if not self._listed.place.any():
            return Setting(0.0), None
        if self._cut is None or self._cut.kind is None:
            return self._fitted(self.setting)
        if self._cut.kind == "top_k":
            return self._fitted(replace(self.setting, top_k=self._cut.rank))
        found, fit = replace(self.setting, top_p=self._cut.reached), self.fit
        for _ in range(TOP_P_STEPS):  # what top-p keeps depends on the temperature, and the other way round
            found, fit = self._fitted(found)
            found = replace(found, top_p=self._listed.cut(1 / found.temperature, self.setting).reached)
        return found, fit

    def _fitted(self, setting: Setting) -> tuple[Setting, Fit | None]:
        fit = self._listed.fit(self._listed.kept(setting).keep)
        return (setting if fit is None else replace(setting, temperature=fit.temperature)), fit

    def looks(self) -> str:
        """Say what setting the tokens look like."""
        if self.beyond:
            whole = _Judgement(self._listed, Setting()).looks()
            return f"{self.excluded} of {len(self._listed.place)} tokens are beyond {self.setting}, {whole}"
        found, fit = self.likeliest()
        if found.temperature == 0:
            return "these look greedy (T = 0)"
        known = f" ({fit.low:.2f} to {fit.high:.2f})" if fit else ""
        filters = f", top_k {found.top_k}" * (found.top_k > 0) + f", top_p {found.top_p:.2f}" * (found.top_p < 1)
        filters += f", min_p {found.min_p:g}" * (found.min_p > 0)
        return f"these look like T = {found.temperature:.2f}{known}{filters}"


def _cause(
    listed: Listed, recorded: Setting, space: str | None, ids: tuple[str, ...], where: str, report: Report
) -> Cause | None:
    """Say what else the tokens look like, if not what is recorded; report what else is wrong."""
    apart = {setting: _means(listed, setting)[1] for setting in _readings(recorded)}
    agreed = [setting for setting, means in apart.items() if not means.size or np.median(means) <= AGREED]
    agreed.sort(key=lambda setting: float(apart[setting].mean()) if apart[setting].size else 0.0)
    judgements = [_Judgement(listed, setting) for setting in agreed or [recorded]]
    best = next((judgement for judgement in judgements if judgement.good), judgements[0])
    drawn = next((own for own in judgements if own.setting == recorded), None) or _Judgement(listed, recorded)
    if agreed:
        _check_passes(listed, best.setting, ids, where, report)
    # Lists of the plain softmax with log_p of it say nothing for a setting that leaves out some of what they hold.
    usual = best is drawn or listed.may_be_decoded(recorded) or (drawn.good and recorded in agreed)
    if best.good and agreed and usual:
        if best.fit is not None and best.fit.high - best.fit.low <= TOLD_WIDTH * best.fit.temperature:
            report.add("note", where, f"z-statistic {best.z:.2f} by the lists: {best.looks()}")
        near = best.fit is None or best.fit.low <= best.setting.temperature <= best.fit.high
        return None if near else Cause(f"perhaps, by the lists, {best.looks()}", False)
    temperature = None if agreed else listed.scored_at(Setting())
    scored = str(best.setting) if agreed else "" if temperature is None else f"temperature {temperature:g}"
    if best.good and not agreed:
        what = f"of {scored}" if scored else "of another model or pass, or of filters that are not recorded"
        report.add("warning", where, f"log_p are not those that the lists give at {recorded}, but {what}; {CORRECT}")
        return None
    if not drawn.good:
        looks = (drawn if drawn.beyond else best).looks()
        whose = f"log_p are those of {scored}" if scored else "log_p fit neither"
        return Cause(f"by the lists (z {best.z:.1f}), {looks}, and {whose}; {CORRECT}", True)
    if space == "raw":
        return None
    told = f"by the lists (z {best.z:.1f}), {drawn.looks()}, as recorded, but log_p are those of the plain softmax: "
    return Cause(told + "store them after temperature and filters (logprob_space processed)", True)


def _readings(recorded: Setting) -> list[Setting]:
    """Settings whose log-probabilities may stand beside the lists."""
    return [recorded] if recorded.plain else [recorded, Setting()]


def _in_place(listed: Listed, recorded: Setting) -> bool:
    """Whether the lists give the log-probabilities of the tokens beside them."""
    if recorded.other or not recorded.random:
        return False
    means = [_means(listed, setting)[1] for setting in _readings(recorded)]
    return any(own.size > 0 and float(np.median(own)) <= AGREED for own in means)


def _check_passes(listed: Listed, setting: Setting, ids: tuple[str, ...], where: str, report: Report) -> None:
    """Name single rollouts whose log-probabilities are far from the lists."""
    numbers, means = _means(listed, setting)
    bad = means > APART
    if bad.any():
        names = ", ".join(repr(ids[i]) for i in numbers[bad][:SHOWN].tolist())
        more = f" and {int(bad.sum()) - SHOWN} more" if bad.sum() > SHOWN else ""
        report.add(
            "warning",
            where,
            f"log_p of rollouts {names}{more} are up to {means.max():.2g} nats a token from the lists, while those of "
            "the others agree: a pass that went wrong for some requests; score them again",
        )


def _means(listed: Listed, setting: Setting) -> tuple[Array, Array]:
    """Rollouts with enough listed tokens, and the mean distance of each, nats a token."""
    apart = listed.distances(setting)
    good = ~np.isnan(apart)
    count = np.bincount(listed.rollout[good])
    sums = np.bincount(listed.rollout[good], apart[good])
    numbers = np.flatnonzero(count >= FEWEST_TOKENS)
    return numbers, sums[numbers] / count[numbers]
