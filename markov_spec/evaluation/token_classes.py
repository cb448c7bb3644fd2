"""Classes of the tokens of rollouts: where they stand, how sure the target was, and what their text is."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from markov_spec.arrays import Array, Rollouts
from markov_spec.evaluation.certificates import BREAKS, LABELS
from markov_spec.evaluation.tracing import target_entropy
from markov_spec.store import Store

POSITIONS = (8, 32, 128, 512, 2048)
ENTROPIES = (0.1, 0.5, 1.0, 2.0, 4.0)
NOT_RECORDED = "not recorded"
TEXTS = ("word", "digit", "punctuation", "code", "whitespace", "end", "other")
CLASSES = {
    "position": (*(f"{low} to {high - 1}" for low, high in pairwise((0, *POSITIONS))), f"{POSITIONS[-1]} on"),
    "entropy": (*(f"{low:g} to {high:g}" for low, high in pairwise((0, *ENTROPIES))), f"{ENTROPIES[-1]:g} on"),
    "margin": (*LABELS, NOT_RECORDED),
    "text": TEXTS,
}
CODE_SYMBOLS = frozenset("_{}[]<>=+*/\\|&^%$#@~`")


def text_class(text: str) -> str:
    r"""Tell what a token's text is.

    Parameters
    ----------
    text : str
        Space around it does not count.

    Returns
    -------
    {"word", "digit", "punctuation", "code", "whitespace", "other"}
        ``"word"``: letters, and signs that are not of code; ``"digit"``: digits without letters; ``"code"``: a sign of
        ``CODE_SYMBOLS`` without digits, or letters with one or with a digit; ``"punctuation"``: other punctuation;
        ``"whitespace"``: space alone; ``"other"``: the rest, pieces of characters among it.

    Examples
    --------
    >>> from markov_spec.evaluation.token_classes import text_class
    >>> [text_class(text) for text in (" don't", " 1,5", "x1", " +=", ".\n", "\n  ", "\N{DEGREE SIGN}")]
    ['word', 'digit', 'code', 'code', 'punctuation', 'whitespace', 'other']
    """
    body = text.strip()
    if not body:
        return "whitespace" if text else "other"
    kinds = {unicodedata.category(char)[0] for char in body if not char.isspace()}
    code = not CODE_SYMBOLS.isdisjoint(body)
    if "L" in kinds:
        return "code" if code or "N" in kinds else "word"
    if "N" in kinds:
        return "digit"
    if code:
        return "code"
    return "punctuation" if kinds == {"P"} else "other"


class TokenClasses:
    """Classes of tokens by every kind that a store has recorded.

    Parameters
    ----------
    store : Store
    vocab : mapping of int to str
        Its own, empty if none was recorded.
    """

    def __init__(self, store: Store, vocab: Mapping[int, str]) -> None:
        stops = set(store.metadata.get("stop_ids") or ())
        self._ids = np.array(sorted(vocab), dtype=np.int64)
        names = ("end" if token in stops else text_class(vocab[token]) for token in self._ids.tolist())
        self._texts = np.array([*map(TEXTS.index, names), TEXTS.index("other")])
        lists = store._target.sizes("lists")["ids"][0] if "lists" in store.parts else 0
        self._margins = lists > 1
        kept = {} if "divergence" not in store.parts else store._target.sizes("divergence")
        self._decoded_margins = not self._margins and {"top_log_p", "second_log_p"} <= set(kept)
        self._entropies = target_entropy(store.batch(0, 0)) is not None

    def codes(self, batch: Store, rollouts: Rollouts) -> dict[str, Array]:
        """Give the class of each token by each recorded kind, (N,) of numbers in ``CLASSES``."""
        offsets = rollouts.indptr
        position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
        found = {"position": np.searchsorted(POSITIONS, position, side="right")}
        spread = target_entropy(batch)
        if spread is not None:
            found["entropy"] = np.searchsorted(ENTROPIES, spread, side="right")
        if self._margins or self._decoded_margins:
            found["margin"] = self._margin_codes(batch, rollouts)
        if self._ids.size:
            at = np.minimum(np.searchsorted(self._ids, rollouts.tokens), self._ids.size - 1)
            found["text"] = self._texts[np.where(self._ids[at] == rollouts.tokens, at, -1)]
        return found

    def _margin_codes(self, batch: Store, rollouts: Rollouts) -> Array:
        codes = np.full(len(rollouts.tokens), len(BREAKS) + 1)
        if self._decoded_margins:
            part = batch.part("divergence")
            best, second, rows = part["top_log_p"], part["second_log_p"], np.ones(len(codes), dtype=bool)
        else:
            lists = batch.part("lists")
            best, second = lists["log_p"][:, 0], lists["log_p"][:, 1]
            covered = lists.get("covered", np.ones(len(rollouts), dtype=bool))
            rows = np.repeat(covered, np.diff(rollouts.indptr))
        margin = np.exp(best.astype(np.float64)) - np.exp(second.astype(np.float64))
        codes[rows] = np.searchsorted(BREAKS, margin, side="right")
        return codes

    def notes(self) -> tuple[str, ...]:
        """Tell which kinds were not recorded."""
        missing = []
        if not self._entropies:
            missing.append("no classes by entropy: the target's part 'divergence' was not recorded, or lacks it")
        if self._decoded_margins:
            missing.append(
                "margins are of the distribution that the target decodes with, as its lists were not recorded"
            )
        elif not self._margins:
            missing.append("no classes by margin: the target's lists were not recorded; --target-top 32 records them")
        if not self._ids.size:
            missing.append("no text and no classes by it: the store has no vocabulary")
        return tuple(missing)
