"""What is wrong with the rollouts of a store: read once, range by range, with the entropies where they were recorded.

If tokens come from the distributions recorded for them, the total surprise ``sum -log p`` exceeds the total entropy by
about ``z`` standard deviations, ``z`` about standard normal (MATH 7). How large ``|z|`` may be by chance is Bernstein's
bound, as short peaked rollouts are skewed, plus what a half-precision pass moves the mean by. Where the variance of the
surprise is 0, surprise and entropy are equal.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from markov_spec.arrays import Array, Rollouts
from markov_spec.store.findings import Cause, Report
from markov_spec.store.manifest import MANIFEST, Fingerprint
from markov_spec.store.reader import Store
from markov_spec.store.sampled import NOISE, RARE, allowed_deviation, ranges
from markov_spec.store.setting import Setting
from markov_spec.store.value_checks import SentinelWatch, ZeroWatch
from markov_spec.store.values import Rows

# Tokens of a smaller probability than exp(-15) are met once in three million.
LARGEST_SURPRISE = 15.0
# Nats a token, and in all, by which half precision and other passes part surprise and entropy where varentropy is 0.
APART, APART_IN_ALL = 0.05, 1.0
# So many tokens of no surprise at all are not drawn from a whole softmax.
FEWEST_TOKENS = 20
SHOWN = 3


class Surprise:
    """Sums of surprise, entropy and varentropy over rollouts, at the setting that they are recorded at."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._surplus = self._variance = self._largest = self._apart = 0.0
        self._count = self._certain = 0

    @property
    def random(self) -> bool:
        """Whether any token could have been another one."""
        return self._variance > 0

    def add(self, log_p: Array, spread: dict[str, Array]) -> None:
        """Add some positions."""
        surplus = -log_p.astype(np.float64) - spread["entropy"]
        certain = spread["varentropy"] == 0
        self._surplus += float(surplus.sum())
        self._apart += float(np.abs(surplus[certain]).sum())
        self._certain += int(np.count_nonzero(certain))
        self._variance += float(spread["varentropy"].sum(dtype=np.float64))
        self._count += int(np.count_nonzero(spread["varentropy"]))
        self._largest = max(self._largest, float(spread["entropy"].max(initial=0)))

    def tell(self, where: str, cause: Cause | None, report: Report) -> bool:
        """Report the z-statistic, with its likely cause if it is beyond; tell whether it is."""
        if self._apart > max(APART * self._certain, APART_IN_ALL):
            report.add(
                "warning",
                where,
                f"varentropy is 0 at {self._certain} positions, so that every token there has as much surprise as the "
                f"entropy, but -log_p differs from it by {self._apart / self._certain:.2g} nats on average: entropies "
                "that were not computed, or of another distribution; record those that tokens are drawn from",
            )
            return False
        if not self.random:
            report.add("note", where, "no z-statistic: nothing in these rollouts was random")
            return False
        z = self._surplus / math.sqrt(self._variance)
        # No token is less surprising than the mean by more than the entropy.
        largest = LARGEST_SURPRISE if self._surplus > 0 else self._largest
        allowed = allowed_deviation(self._variance, largest) + NOISE * self._count
        if abs(self._surplus) <= allowed:
            told = f"z-statistic {z:.2f}: the rollouts fit the distribution recorded for them ({self._setting})"
            report.add("note", where, told)
            return False
        likely = "another temperature, a missing filter, another model, or rollouts that were selected"
        if cause is not None:
            likely = cause.message if cause.certain else f"{likely}; {cause.message}"
        report.add(
            "warning",
            where,
            f"z-statistic {z:.1f}, beyond {allowed / math.sqrt(self._variance):.1f}: the rollouts do not come from the "
            f"distribution recorded for them ({self._setting}); {likely}",
        )
        return True


class _Repeats:
    """Rollouts of one prompt that are equal, and prompts that are."""

    def __init__(self, random: bool) -> None:
        self._random = random
        self._rollouts: dict[bytes, str] = {}
        self._turns: dict[bytes, int] = {}
        self._prompts: dict[bytes, str] = {}
        self._equal: list[tuple[str, str, float]] = []
        self._same: dict[tuple[str, str], None] = {}

    def add(self, rollouts: Rollouts) -> None:
        chances = np.add.reduceat(np.append(rollouts.log_p.astype(np.float64), 0.0), rollouts.indptr[:-1])
        chances[np.diff(rollouts.indptr) == 0] = 0.0
        turns = rollouts.turns or ()
        for i, (name, prompt) in enumerate(zip(rollouts.ids, rollouts.prompt_ids, strict=True)):
            asked = _digest(rollouts.prompt_tokens[i], turns[i])
            own = _digest(rollouts.tokens[rollouts.indptr[i] : rollouts.indptr[i + 1]], prompt, asked)
            of_prompt = _digest(prompt, asked)
            self._turns[of_prompt] = self._turns.get(of_prompt, 0) + 1
            first = self._rollouts.setdefault(own, name)
            if first != name and self._random and chances[i] < math.log(RARE):
                self._equal.append((first, name, float(chances[i])))
            other = self._prompts.setdefault(asked, prompt)
            if other != prompt and rollouts.prompt_tokens[i].size:
                self._same[other, prompt] = None

    def tell(self, where: str, report: Report) -> None:
        pairs = sum(n * (n - 1) // 2 for n in self._turns.values())
        limit = math.log(RARE / pairs) if pairs else -math.inf
        equal = [(one, other) for one, other, chance in self._equal if chance < limit]
        if equal:
            report.add(
                "warning",
                where,
                f"rollouts {_pairs(equal)} have the same prompt and the same tokens, which by their own probability no "
                "two draws have: one seed for several draws, or one reply recorded twice; keep one of each",
            )
        if self._same:
            report.add(
                "warning",
                where,
                f"prompts {_pairs(list(self._same))} are the same tokens under different ids: they count as "
                "independent where prompts are resampled; give them one prompt_id",
            )


def _digest(*parts: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.astype("<i4").tobytes() if isinstance(part, np.ndarray) else repr(part).encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    more = f" and {len(pairs) - SHOWN} more pairs" if len(pairs) > SHOWN else ""
    return ", ".join(f"{one!r} and {other!r}" for one, other in pairs[:SHOWN]) + more


def check_unique(ids: Sequence[str]) -> None:
    """Refuse ids that stand twice."""
    places: dict[str, int] = {}
    for i, name in enumerate(ids):
        if places.setdefault(name, i) != i:
            raise ValueError(f"rollout ids: {name!r} stands at {places[name]} and again at {i}; ids are unique")


class Judged(NamedTuple):
    """Whether log-probabilities of rollouts can be judged by, and their surprise where entropies were recorded."""

    scored: bool
    surprise: Surprise | None


def check_rollouts(store: Store, facts: Mapping[str, Any], where: str, report: Report, *, spread: bool) -> Judged:
    """Report what is wrong with the rollouts of a store.

    Parameters
    ----------
    store : Store
    facts : mapping
        The manifest.
    where : str
        The file of the rollouts.
    report : Report
    spread : bool
        Whether a part ``divergence`` is there and sound.
    """
    ids, indptr = store.index
    setting = Setting.of(facts["metadata"])
    mark, repeats, surprise = Fingerprint(), _Repeats(setting.told and setting.random), Surprise(setting)
    sentinels, zeros = SentinelWatch(), ZeroWatch()
    spread = spread and {"entropy", "varentropy"} <= facts["parts"]["divergence"]["columns"].keys()
    for _, some in ranges(store):
        rollouts = some.rollouts()
        mark.add(rollouts)
        repeats.add(rollouts)
        sentinels.add(rollouts.log_p, Rows("target", rollouts.ids, rollouts.indptr, None, 0, len(rollouts)))
        zeros.add(rollouts.log_p)
        if spread:
            surprise.add(rollouts.log_p, some.part("divergence"))
    for key, found in (("rollouts", len(ids)), ("positions", int(indptr[-1])), ("fingerprint", mark.hexdigest())):
        if facts[key] != found:
            report.add("error", MANIFEST, f"{key}: found {facts[key]}; the rollouts give {found}")
    repeats.tell(where, report)
    bad = sentinels.tell("error", where, "log_p", report)
    # Filters may leave one token everywhere, and a few tokens may be certain: then only entropies tell.
    drawn = surprise.random or (not setting.filtered and zeros.all_of(FEWEST_TOKENS))
    if setting.told and setting.random and zeros.all_of(1) and drawn:
        bad = True
        told = f"every log-probability is 0 though {setting} is recorded: recorded without log-probabilities?"
        report.add("warning", where, told)
    raw = facts["metadata"].get("logprob_space") == "raw" and not setting.plain
    if raw and spread:
        told = (
            f"no z-statistic: log_p are those of the plain softmax (logprob_space raw), tokens are drawn at {setting}"
        )
        report.add("note", where, told)
    return Judged(not bad, surprise if spread and not (bad or raw) else None)
