"""From a store and a contender to round laws, a chunk of rollouts at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from markov_spec.acceptance import RULES, round_law
from markov_spec.acceptance.lossy import LOSSY
from markov_spec.arrays import Array, Drafts, RequestError, Rollouts, RoundLaw, rollout_spans
from markov_spec.evaluation.contender import ALLOWED, RULE_SETTINGS, Contender, Setting, as_contender
from markov_spec.latency import Price, round_prices
from markov_spec.store import Store
from markov_spec.store.metadata import drawn_as_recorded
from markov_spec.store.schema import MULTI_DRAFTS, SUM_TOLERANCE

DEFAULT_DRAFT_LENGTH = 5
CHUNK_BYTES = 64 << 20
LEAST_WIDTH = 64  # depths that a range of positions has room for
SCALES = {"node-recursive": "c", "node-k-seq": "rho"}


@dataclass(frozen=True, eq=False)
class Plan:
    """A contender made definite on a store: what to read, and how to verify it.

    Parameters
    ----------
    store : Store
        What it is of: the store itself or a range of its rollouts.
    contender : Contender
    rollouts : Rollouts
    drafts : Drafts
    rule : str
        The rule that decides; ``"match"`` for a deterministic drafter under a lossless rule.
    draft_length : int
    settings : mapping
        Of the rule, defaults filled in.
    columns : mapping of str to ndarray
        What the rule reads beside ``log_p``, ``log_q`` and ``rank``, ``(N, K)`` or ``(N,)``.
    """

    store: Store
    contender: Contender
    rollouts: Rollouts
    drafts: Drafts
    rule: str
    draft_length: int
    settings: Mapping[str, Setting]
    columns: Mapping[str, Array]

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Give ranges of rollouts whose laws take at most 64 MB each; one range at least."""
        rows = max(1, CHUNK_BYTES // (8 * max(self.draft_length, 1)))
        yield from list(rollout_spans(self.rollouts.indptr, 0, len(self.rollouts), rows)) or [(0, 0)]

    def lengths(self, rows: slice) -> int | Array:
        """Give the drafts proposed from each start of a range of rows, ends of rollouts aside."""
        drafted = self.drafts.drafted
        return self.draft_length if drafted is None else np.minimum(drafted[rows], self.draft_length)

    def law(self, first: int, last: int) -> RoundLaw:
        """Make the round law of a range of rollouts."""
        offsets = self.rollouts.indptr[first : last + 1]
        rows = slice(int(offsets[0]), int(offsets[-1]))
        offsets = offsets - offsets[0]
        with self._named(first):
            return round_law(
                self.rollouts.log_p[rows],
                self._cut(self.drafts.log_q, rows),
                offsets,
                rule=self.rule,
                draft_length=self.lengths(rows),
                **self._options(rows, offsets),
            )

    def prices(self, price: Price, law: RoundLaw, first: int, last: int) -> Array:
        """Give the price of a round from every start of a range of rollouts, (N,)."""
        prompts = [len(prompt) for prompt in self.rollouts.prompt_tokens[first:last]]
        return round_prices(
            price, drafted=law.draft_length, indptr=law.indptr, prompt_lengths=np.array(prompts, dtype=int)
        )

    @contextmanager
    def _named(self, first: int) -> Iterator[None]:
        # Rules count rollouts from the first of their arrays; whoever reads the error knows them by id.
        try:
            yield
        except ValueError as error:
            told = re.sub(
                r"rollout (\d+)", lambda found: f"rollout {self.rollouts.ids[first + int(found[1])]!r}", str(error)
            )
            if unknown := re.match(r"log_q: (.*): found nan", told):
                raise RequestError(
                    f"contender {self.contender}: log_q: {unknown[1]}: not recorded, as of a token outside the "
                    "drafter's lists; allowed: bounds by lists (evaluate_bounds, markov-spec evaluate --bounds lists)"
                ) from error
            raise ValueError(f"contender {self.contender}: {told}") from error

    def _cut(self, values: Array, rows: slice) -> Array:
        return values[rows] if values.ndim == 1 else values[rows, : self.draft_length]

    def _options(self, rows: slice, offsets: Array) -> dict[str, Any]:
        columns = {name: self._cut(values, rows) for name, values in self.columns.items()}
        if self.rule == "match" and self.drafts.rank is not None:
            return {"hit": self._cut(self.drafts.rank, rows) == 1}
        if self.rule == "independent":
            return {"drafts": self.settings["m"]}
        if self.rule in SCALES:
            return {"scale": _rounded(columns["scale"], np.maximum) if columns else 1}
        if self.rule == "recorded":
            with np.errstate(divide="ignore"):
                return {"log_accept": np.log(_rounded(columns["accept"], np.minimum))}
        if self.rule in LOSSY:
            lossy = LOSSY[self.rule]
            return {"hit": lossy.function(*(columns[name] for name in lossy.reads), offsets, **self.settings)}
        return {}


def _rounded(values: Array, nearest: Callable[[Array, int], Array]) -> Array:
    # A sum over a vocabulary in float32 may end a little beyond 1.
    return np.where(np.abs(values - 1) <= SUM_TOLERANCE, nearest(values, 1), values)


def plans(store: Store, contender: Contender | str) -> Iterator[Plan]:
    """Plan a contender range by range of rollouts, so that memory does not grow with the store.

    Parameters
    ----------
    store : Store
    contender : Contender or str

    Yields
    ------
    Plan
        Of ranges whose drafts take some 64 MB, or of one rollout; one of no rollouts where there are none.

    Raises
    ------
    RequestError, ValueError
        As `plan`.
    """
    chosen = _chosen(store, contender)
    depth = store.facts()["drafters"][chosen.drafter]["depth"] or 1
    if len(store) == 0:
        yield plan(store, chosen)
    for batch in store.batches(max(1, CHUNK_BYTES // (8 * max(depth, LEAST_WIDTH)))):
        yield plan(batch, chosen)


def plan(store: Store, contender: Contender | str) -> Plan:
    """Settle what a contender leaves open, and read what its rule needs.

    Parameters
    ----------
    store : Store
    contender : Contender or str

    Returns
    -------
    Plan

    Raises
    ------
    RequestError
        If the store has no such drafter, its record is shorter than the draft length, or it lacks what the rule needs.
    ValueError
        If the store is damaged, or its log-probabilities are not those that tokens were drawn with.
    """
    chosen = _chosen(store, contender)
    drafts = store.drafter(chosen.drafter)
    rule = _rule(chosen, drafts)
    if rule not in ("match", "none"):
        _check_space(store, drafts)
    settings = _settings(chosen, rule)
    columns = _columns(store, chosen, rule, settings)
    return Plan(store, chosen, store.rollouts(), drafts, rule, _draft_length(chosen, drafts, rule), settings, columns)


def _chosen(store: Store, contender: Contender | str) -> Contender:
    chosen = as_contender(contender)
    if chosen.tree is not None:
        raise RequestError(f"contender {chosen}: found a tree; allowed: a chain, for what was asked")
    if chosen.drafter not in store.drafters:
        allowed = ", ".join(store.drafters) or "none, the store holds no drafter"
        raise RequestError(f"contender {chosen}: found drafter {chosen.drafter!r}; allowed: {allowed}")
    return chosen


def _rule(contender: Contender, drafts: Drafts) -> str:
    rule = contender.rule or drafts.rule
    if rule not in RULES:
        raise ValueError(f"drafter {drafts.name!r}: recorded with rule {rule!r}; allowed: {', '.join(RULES)}")
    if drafts.rule == "match" and rule != "none" and RULES[rule].exactness == "exact":
        return "match"
    if rule == "match" and drafts.rule != "match" and drafts.rank is None:
        raise RequestError(f"contender {contender}: rule 'match' needs the drafter's rank, which was not recorded")
    return rule


def _settings(contender: Contender, rule: str) -> dict[str, Setting]:
    given = contender.settings if rule == contender.rule else {}
    settings: dict[str, Setting] = {}
    for name, default in RULE_SETTINGS.get(rule, {}).items():
        value = given.get(name, default)
        if value is None:
            raise RequestError(f"contender {contender}: rule {rule!r} needs {name}; allowed: {ALLOWED[name]}")
        settings[name] = value
    if rule in SCALES and settings["m"] not in (1, *MULTI_DRAFTS):
        allowed = ", ".join(map(str, (1, *MULTI_DRAFTS)))
        raise RequestError(f"contender {contender}: found m={settings['m']}; allowed: {allowed}, which are recorded")
    if rule in LOSSY:
        lossy = LOSSY[rule]
        try:  # on no positions: the thresholds alone are judged
            nothing = (np.zeros(0, dtype=int if name == "draft_rank" else float) for name in lossy.reads)
            lossy.function(*nothing, [0], **settings)
        except ValueError as error:
            raise RequestError(f"contender {contender}: {error}") from None
    return settings


def _draft_length(contender: Contender, drafts: Drafts, rule: str) -> int:
    if rule == "none":
        return 0
    recorded, depth = drafts.depth, contender.draft_length
    if depth is None:
        return DEFAULT_DRAFT_LENGTH if recorded is None else recorded
    if recorded is not None and depth > recorded:
        raise RequestError(
            f"contender {contender}: found draft length {depth}; allowed: at most the recorded {recorded}"
        )
    return depth


def _check_space(store: Store, drafts: Drafts) -> None:
    # Raw log-probabilities are those of the plain softmax; ratios of them are no acceptance under another sampling.
    own, target = drafts.metadata, store.metadata
    sampling = target.get("sampling")
    described: list[tuple[str, Mapping[str, Any], Any]] = [(f"{store.path}: metadata", target, sampling)]
    if own.get("logprob_space") is not None:
        described.append((f"{store.path}: drafter {drafts.name!r}: metadata", own, own.get("sampling", sampling)))
    for where, facts, drawn in described:
        if not drawn_as_recorded(facts, drawn):
            raise ValueError(
                f"{where}: found logprob_space {facts.get('logprob_space')!r} with sampling {drawn}; allowed: "
                "'processed', the log-probabilities of the distributions that tokens are drawn from"
            )


def space_notes(store: Store, drafter: str, rule: str) -> tuple[str, ...]:
    """Warn where the record says that it is not known which distributions its log-probabilities are of.

    A store that says nothing holds what ``write_store`` asks for.
    """
    own, target = store.batch(0, 0).drafter(drafter).metadata, store.metadata
    drawn = target.get("sampling")
    described = [("the target", target, drawn), (f"drafter {drafter!r}", own, own.get("sampling") or drawn)]
    if rule in ("match", "none"):
        return ()
    return tuple(
        f"logprob_space and sampling of {whose} are recorded as not known: the figures hold if its log-probabilities "
        "are those of the distributions that tokens are drawn from"
        for whose, facts, sampling in described
        if sampling is None and "logprob_space" in facts and facts["logprob_space"] is None
    )


def _columns(store: Store, contender: Contender, rule: str, settings: Mapping[str, Setting]) -> dict[str, Array]:
    if rule in SCALES and settings["m"] != 1:
        return {"scale": _column(store, contender, "multi", f"{SCALES[rule]}_{settings['m']}")}
    if rule == "recorded":
        return {"accept": _column(store, contender, "multi", str(settings["of"]))}
    if rule in LOSSY:
        target = {"entropy", "top_log_p", "second_log_p"}
        return {
            name: _column(store, contender, "divergence" if name in target else "relaxed", name, target=name in target)
            for name in LOSSY[rule].reads
        }
    return {}


def _column(store: Store, contender: Contender, part: str, name: str, *, target: bool = False) -> Array:
    parts = store.parts if target else store.drafter_parts(contender.drafter)
    columns: Mapping[str, Array] = {}
    if part in parts:
        columns = store.part(part) if target else store.drafter_part(contender.drafter, part)
    if name not in columns:
        found = f"; found: {', '.join(columns)}" if columns else ""
        owner = "the target" if target else f"drafter {contender.drafter!r}"
        raise RequestError(
            f"contender {contender}: needs {name!r} in part {part!r} of {owner}, which was not recorded{found}; "
            "markov-spec record --scalars records it"
        )
    return columns[name]
