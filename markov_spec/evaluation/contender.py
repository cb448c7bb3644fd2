"""What is evaluated: a drafter with a way of drafting and verifying."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from markov_spec.acceptance import RULES
from markov_spec.acceptance.lossy import LOSSY
from markov_spec.arrays import RequestError

LONGEST_DRAFT = 1024

Setting = str | int | float
# What a rule reads beside its arrays, and the default; None means that it must be given.
RULE_SETTINGS: dict[str, dict[str, Setting | None]] = {
    "independent": {"m": 1},
    "node-recursive": {"m": None},
    "node-k-seq": {"m": None},
    "recorded": {"of": None},
    **{name: dict(entry.thresholds) for name, entry in LOSSY.items()},
}
FORMS = "NAME, or NAME:K=7,rule=block"
ALLOWED = {
    "m": "m=2, drafts at each depth",
    "of": "of=coupling or of=without_replacement_2",
    "t": "t=0.1, a probability",
    "alpha": "alpha=0.5, a share of the largest probability",
    "margin": "margin=0.1, a difference of probabilities",
}
RECORDED = ("coupling", "without_replacement_2")


@dataclass(frozen=True)
class Contender:
    """What is evaluated: a drafter with a way of drafting and verifying.

    Parameters
    ----------
    drafter : str
        Name in the store.
    rule : str, optional
        Acceptance rule; the drafter's own by default. A deterministic drafter is matched under every lossless rule.
    draft_length : int, optional
        ``K``; by default what was recorded for a block drafter, 5 for an autoregressive one.
    settings : mapping of str to str, int or float, optional
        What the rule needs: ``m``, the drafts at each depth, for ``"independent"``, ``"node-recursive"`` and
        ``"node-k-seq"``; ``of``, the recorded column, for ``"recorded"``; the thresholds of a lossy rule.

    Raises
    ------
    RequestError
        If the rule or a setting is unknown, or a value is not allowed.

    Examples
    --------
    >>> import markov_spec as ms
    >>> ms.Contender.parse("block:K=7,rule=block")
    Contender(drafter='block', rule='block', draft_length=7, settings={})
    >>> str(ms.Contender("quant5", rule="node-recursive", settings={"m": 4}))
    'quant5:rule=node-recursive,m=4'
    """

    drafter: str
    _: KW_ONLY
    rule: str | None = None
    draft_length: int | None = None
    settings: Mapping[str, Setting] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.rule is not None and self.rule not in RULES:
            raise RequestError(f"contender {self}: found rule {self.rule!r}; allowed: {', '.join(RULES)}")
        if self.draft_length is not None and not 0 <= self.draft_length <= LONGEST_DRAFT:
            raise RequestError(
                f"contender {self}: found draft length {self.draft_length}; allowed: 0 to {LONGEST_DRAFT}"
            )
        known = RULE_SETTINGS.get(self.rule or "", {})
        for name, value in self.settings.items():
            if name not in known:
                users = [rule for rule, names in RULE_SETTINGS.items() if name in names]
                told = f"rules {', '.join(users)} use it" if users else "no rule uses it"
                raise RequestError(f"contender {self}: found setting {name!r} with rule {self.rule}; {told}")
            allowed = {"of": " or ".join(RECORDED), "m": "an integer >= 1"}.get(name, "a number")
            good = value in RECORDED if name == "of" else isinstance(value, int | float)
            if not good or (name == "m" and (not isinstance(value, int) or value < 1)):
                raise RequestError(f"contender {self}: found {name}={value!r}; allowed: {allowed}")

    @classmethod
    def parse(cls, text: str) -> Contender:
        """Read ``NAME`` or ``NAME:K=7,rule=block``.

        Parameters
        ----------
        text : str

        Returns
        -------
        Contender

        Raises
        ------
        RequestError
            Saying which setting was not understood.
        """
        name, _, rest = text.partition(":")
        options: dict[str, Any] = {}
        settings: dict[str, Setting] = {}
        for item in rest.split(",") if rest else []:
            key, _, value = item.partition("=")
            if key == "K" and "draft_length" not in options and value.isascii() and value.isdigit():
                options["draft_length"] = int(value)
            elif key in ("k", "K") and re.fullmatch(r"\d+(-\d+)?", value):
                allowed = "one draft length; Contender.parse_all reads a range" if "-" in value else f"K={value}, once"
                raise RequestError(f"contender {text!r}: found {item!r}; allowed: {allowed}")
            elif key == "rule" and "rule" not in options and value:
                options["rule"] = value
            elif key.isidentifier() and key not in ("K", "rule", *settings) and value:
                settings[key] = _number(value)
            else:
                raise RequestError(f"contender {text!r}: found {item!r}; allowed: {FORMS}")
        return cls(name, **options, settings=settings)

    @classmethod
    def parse_all(cls, text: str) -> list[Contender]:
        """Read ``NAME``, ``NAME:K=7,rule=block`` or a range of draft lengths, ``NAME:K=1-8``.

        Parameters
        ----------
        text : str

        Returns
        -------
        list of Contender
            One for each draft length of a range, else one.

        Raises
        ------
        RequestError
            Saying which setting was not understood.

        Examples
        --------
        >>> import markov_spec as ms
        >>> [str(contender) for contender in ms.Contender.parse_all("block:K=2-4,rule=match")]
        ['block:K=2,rule=match', 'block:K=3,rule=match', 'block:K=4,rule=match']
        """
        found = re.search(r"(?<=[:,]K=)(\d{1,4})-(\d{1,4})(?=,|$)", text)
        if found is None:
            return [cls.parse(text)]
        first, last = int(found[1]), int(found[2])
        if first > last:
            raise RequestError(f"contender {text!r}: found K={found[0]}; allowed: a range that rises, such as K=1-8")
        return [cls.parse(f"{text[: found.start()]}{k}{text[found.end() :]}") for k in range(first, last + 1)]

    def __str__(self) -> str:
        settings = {"K": self.draft_length, "rule": self.rule, **self.settings}
        given = ",".join(f"{key}={value}" for key, value in settings.items() if value is not None)
        return f"{self.drafter}:{given}" if given else self.drafter


def _number(text: str) -> Setting:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
