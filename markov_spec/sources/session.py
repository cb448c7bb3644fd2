"""A target and its drafters, loaded and checked, and what a rollout of theirs is reduced to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from markov_spec.arrays import Drafts, RequestError
from markov_spec.sources.drafters import (
    BlockDrafter,
    Drafter,
    Lookup,
    check_spec,
    find_object,
    parse_drafter,
    vocabulary_of,
    width_of,
)
from markov_spec.sources.models import CausalLM, load_hf
from markov_spec.sources.reduce import BEYOND, NOTES, Kept, drafter_columns, target_columns
from markov_spec.sources.resume import ASKED, Work, digest
from markov_spec.sources.sampling import Sampling
from markov_spec.sources.score import Columns, Pile, check_blocks, score_target, within
from markov_spec.sources.vocabulary import check_texts, warn_of_mass
from markov_spec.store import check_name

APART, IMPOSSIBLE = "scored_apart", "scored_impossible"
TARGET = ""  # owner of the target's columns among those of the drafters
CAUSALITY_CHECKS = 3
SHORT = 3
Content = dict[str, Columns]


@dataclass(frozen=True, eq=False)
class Rollout:
    """One rollout to score: its id, prompt and tokens, and the log-probabilities (nats) they were drawn with."""

    id: str
    prompt: list[int]
    tokens: list[int]
    log_p: list[float]


@dataclass(frozen=True, eq=False)
class StoppingAt(CausalLM):
    """A model whose rollouts end at these tokens alone, whatever its settings and its tokenizer say."""

    stops: tuple[int, ...] = ()

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The token ids that end a rollout."""
        return self.stops


@dataclass(frozen=True, eq=False)
class Session:
    """What is recorded: a target, its drafters, how both draw, and what is kept beside the law."""

    target: CausalLM
    drafters: Mapping[str, Drafter]
    sampling: Sampling
    drafting: Sampling
    kept: Kept

    @property
    def _reads_hidden(self) -> bool:
        return any(isinstance(d, BlockDrafter) and len(d.hidden_layers) > 0 for d in self.drafters.values())

    def check_drafters(self, prompt: list[int]) -> None:
        """Tell faults of block drafters on a prompt, before hours of decoding."""
        if len(prompt) > SHORT:
            halves = prompt[: len(prompt) // 2], prompt[len(prompt) // 2 :]
            check_blocks(self.drafters, score_target(self.target, *halves, self.sampling, hidden=self._reads_hidden))

    def score(self, rollouts: Iterable[Rollout], checks: int, advance: Callable[[], object]) -> Content:
        """Score rollouts teacher-forced.

        Parameters
        ----------
        rollouts : iterable of Rollout
        checks : int
            For how many of them block drafters are checked not to read the future.
        advance : callable
            Called after each rollout.

        Returns
        -------
        dict of owner -> part -> column -> array
            Rows of all rollouts, one after the other; `NOTES` have a row for each rollout.

        Raises
        ------
        ValueError
            Naming the rollout, and the drafter that is at fault.
        """
        piles = {name: Pile() for name in (TARGET, *self.drafters)}
        for done, rollout in enumerate(rollouts):
            with within(f"rollout {rollout.id!r}"):
                scored = score_target(
                    self.target, rollout.prompt, rollout.tokens, self.sampling, hidden=self._reads_hidden
                )
                apart, impossible = scored.apart_from(rollout.log_p)
                notes = {APART: np.array([apart]), IMPOSSIBLE: np.array([impossible])}
                piles[TARGET].add({**target_columns(scored, self.kept), NOTES: notes})
                if done < checks:
                    check_blocks(self.drafters, scored)
                for name, drafter in self.drafters.items():
                    with within(f"drafter {name!r}"):
                        piles[name].add(drafter_columns(drafter, scored, self.kept, self.drafting))
            advance()
        return {name: pile.stacked() for name, pile in piles.items()}

    def drafts(self, name: str, columns: Columns, notes: Mapping[str, float]) -> Drafts:
        """Make the drafts of one drafter from its columns; ``notes`` go into its metadata."""
        drafter = self.drafters[name]
        law = columns["law"]
        deterministic = self.drafting.greedy or isinstance(drafter, Lookup)
        return Drafts(
            name,
            "autoregressive" if isinstance(drafter, CausalLM) else "block",
            "match" if deterministic else "rejection",
            law["log_q"],
            law["rank"],
            law.get("drafted"),
            parts={part: own for part, own in columns.items() if part not in ("law", NOTES)},
            metadata={**self._drafter_metadata[name], ASKED: self.asked(name), **notes},
        )

    def notes(self, work: Work, count: int) -> dict[str, dict[str, float]]:
        """Sum up the notes in chunks, of the target and of each drafter, for their metadata.

        Warns
        -----
        UserWarning
            Of probability on ids that the tokenizer does not have.
        """
        told: dict[str, dict[str, float]] = {name: {} for name in (TARGET, *self.drafters)}
        for number in range(count):
            for owner, columns in work.load(number, NOTES).items():
                for name, values in columns[NOTES].items():
                    before = told[owner].get(name, 0)
                    counts = name == IMPOSSIBLE
                    told[owner][name] = before + int(values.sum()) if counts else max(before, float(values.max()))
        for name in self.drafters:
            warn_of_mass(name, told[name].get(BEYOND, 0.0), self.target.known)
        return told

    def request(self) -> dict[str, Any]:
        """All that settles what is recorded of given rollouts, but for the target."""
        return {"kept": asdict(self.kept), "drafters": self._drafter_metadata}

    def asked(self, name: str) -> str:
        """Digest of all that settles what is recorded of one drafter, given rollouts and target."""
        return digest(asdict(replace(self.kept, target_top=0)), self._drafter_metadata[name])

    def is_told(self, name: str) -> bool:
        """Whether that settles the drafter itself: of a block drafter it tells the class, and not the weights."""
        return isinstance(self.drafters[name], CausalLM | Lookup)

    def target_metadata(self) -> dict[str, Any]:
        """What the store keeps of the target."""
        return {
            "target": self.target.name,
            "target_fingerprint": self.target.fingerprint(),
            "dtype": self.target.dtype,
            "tokenizer": type(self.target.tokenizer).__name__,
            "tokenizer_fingerprint": self.target.tokenizer_fingerprint(),
            "vocab_size": self.target.vocab_size,
            "stop_ids": list(self.target.stop_ids),
            "sampling": self.sampling.to_metadata(),
            "logprob_space": "processed",
        }

    @cached_property
    def _drafter_metadata(self) -> dict[str, dict[str, Any]]:
        return {name: self._metadata_of(drafter) for name, drafter in self.drafters.items()}

    def _metadata_of(self, drafter: Drafter) -> dict[str, Any]:
        if isinstance(drafter, Lookup):
            return {"source": f"ngram:{drafter.ngram},{drafter.depth}"}
        own: dict[str, Any] = {"source": f"py:{type(drafter).__module__}:{type(drafter).__name__}"}
        if isinstance(drafter, CausalLM):
            own = {"source": drafter.name, "fingerprint": drafter.fingerprint(), "dtype": drafter.dtype}
        vocabulary = vocabulary_of(drafter).to_metadata()
        return {**own, "vocabulary": vocabulary, "sampling": self.drafting.to_metadata()}


def open_session(
    target: str | CausalLM,
    drafters: Mapping[str, str | Drafter],
    sampling: Sampling,
    drafting: Sampling,
    kept: Kept,
    stop_ids: Sequence[int] | None,
) -> Session:
    """Load what is given as a spec, and refuse drafters whose ids are not the target's.

    Rollouts end at ``stop_ids``, or at the target's own if they are None.

    Raises
    ------
    RequestError
        On specs that name what is not there.
    ValueError
        If a drafter's vocabulary differs from the target's, and neither a map nor a padding was declared.
    """
    model = load_hf(check_spec(target, target=True)[1]) if isinstance(target, str) else target
    if stop_ids is not None:
        stops = tuple(sorted(set(stop_ids)))
        model = StoppingAt(model.name, model.model, model.tokenizer, model.vocabulary, stops)
    chosen = {name: parse_drafter(d, model) if isinstance(d, str) else d for name, d in drafters.items()}
    for name, drafter in chosen.items():
        if isinstance(drafter, Lookup):
            continue
        with within(f"drafter {name!r}"):
            width, known = width_of(drafter, model.vocab_size), model.known
            vocabulary = vocabulary_of(drafter).of_width(width, model.vocab_size, known)
            if isinstance(drafter, CausalLM) and drafter.readable < known:
                raise ValueError(f"found {drafter.readable} ids that it can read; allowed: the tokenizer's {known}")
        if isinstance(drafter, CausalLM):
            chosen[name] = replace(drafter, vocabulary=vocabulary)
            if vocabulary.form == "identity" and drafter.tokenizer is not model.tokenizer:
                check_texts(drafter.tokenizer.get_vocab(), model.tokenizer.get_vocab(), name)
    return Session(model, chosen, sampling, drafting, kept)


def drafting_as(sampling: Sampling, temperature: float | None) -> Sampling:
    """How drafts are drawn: as the target's tokens, but for a temperature of their own."""
    try:
        return sampling if temperature is None else replace(sampling, temperature=temperature)
    except RequestError as error:
        raise RequestError(f"draft_{error}") from None


def check_drafters(drafters: Mapping[str, str | Drafter]) -> None:
    """Refuse names and specs that cannot be right.

    Raises
    ------
    RequestError
    """
    for name, drafter in drafters.items():
        try:
            check_name(name)
        except ValueError as error:
            raise RequestError(str(error)) from None
        if isinstance(drafter, str):
            kind, rest = check_spec(drafter)
            if kind == "py":
                find_object(*rest.split(":", 1))


class Texts(Mapping[int, str]):
    """The text of each token id, decoded when it is asked for."""

    def __init__(self, model: CausalLM) -> None:
        self._model = model

    def __getitem__(self, token: int) -> str:
        return str(self._model.tokenizer.decode([token]))

    def __contains__(self, token: object) -> bool:
        return isinstance(token, int) and 0 <= token < len(self)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return self._model.known
