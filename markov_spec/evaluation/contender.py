"""What is evaluated: a drafter with a way of drafting and verifying."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any

import numpy as np

from markov_spec.acceptance import RULES
from markov_spec.acceptance.lossy import LOSSY
from markov_spec.arrays import ABSENT, RequestError
from markov_spec.drafting import BUILDERS, Builder

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
# What a builder may be told by a contender; all else that it needs is measured on the store.
TREE_SETTINGS: dict[str, tuple[str, ...]] = {
    name: tuple(given.name for given in fields(entry) if given.type in ("int", "int | None"))  # type: ignore[arg-type] # all are dataclasses
    for name, entry in BUILDERS.items()
}
FORMS = "NAME, NAME:K=7,rule=block or NAME:tree=best-first,budget=64"
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
        ``K``, of a tree its depth; by default what was recorded for a block drafter, 5 for an autoregressive one.
    tree : str or Builder, optional
        Draft a tree rather than a chain, followed by the target's own tokens: a name in ``drafting.BUILDERS``, or a
        builder. What a named one is made of (``static``, ``medusa``, ``sequoia``) is measured on the store.
    budget : int, optional
        Nodes of the tree, the root not counted.
    settings : mapping of str to str, int or float, optional
        What the rule needs: ``m``, the drafts at each depth, for ``"independent"``, ``"node-recursive"`` and
        ``"node-k-seq"``; ``of``, the recorded column, for ``"recorded"``; the thresholds of a lossy rule. What a
        builder by name is told: ``beam`` and ``depth`` of ``eagle2``, ``width`` of ``all-children``.

    Raises
    ------
    RequestError
        If the rule, the tree or a setting is unknown, or a value is not allowed.

    Examples
    --------
    >>> import markov_spec as ms
    >>> ms.Contender.parse("block:K=7,rule=block")
    Contender(drafter='block', rule='block', draft_length=7, tree=None, budget=None, settings={})
    >>> str(ms.Contender("quant5", rule="node-recursive", settings={"m": 4}))
    'quant5:rule=node-recursive,m=4'
    >>> str(ms.Contender.parse("block:tree=eagle2,beam=8,budget=60"))
    'block:tree=eagle2,budget=60,beam=8'
    """

    drafter: str
    _: KW_ONLY
    rule: str | None = None
    draft_length: int | None = None
    tree: str | Builder | None = None
    budget: int | None = None
    settings: Mapping[str, Setting] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.rule is not None and self.rule not in RULES:
            raise RequestError(f"contender {self}: found rule {self.rule!r}; allowed: {', '.join(RULES)}")
        if self.draft_length is not None and not 0 <= self.draft_length <= LONGEST_DRAFT:
            raise RequestError(
                f"contender {self}: found draft length {self.draft_length}; allowed: 0 to {LONGEST_DRAFT}"
            )
        if self.tree is not None or self.budget is not None:
            self._check_tree()
            return
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

    def _check_tree(self) -> None:
        if self.tree is None:
            raise RequestError(f"contender {self}: found a budget without a tree; allowed: tree={', '.join(BUILDERS)}")
        named = isinstance(self.tree, str)
        if not (self.tree in BUILDERS if named else isinstance(self.tree, Builder)):
            raise RequestError(f"contender {self}: found tree {self.tree!r}; allowed: {', '.join(BUILDERS)}")
        if self.rule not in (None, "match"):
            raise RequestError(
                f"contender {self}: found rule {self.rule!r} with a tree; allowed: match, as the target's own tokens "
                "are followed through it"
            )
        if self.budget is not None and (not isinstance(self.budget, int | np.integer) or not 0 <= self.budget < ABSENT):
            raise RequestError(f"contender {self}: found budget {self.budget!r}; allowed: 0 to {ABSENT - 1} nodes")
        known = TREE_SETTINGS[self.tree] if isinstance(self.tree, str) else ()
        for name, value in self.settings.items():
            if name not in known:
                told = f"it has {', '.join(known)}" if known else "it has none"
                raise RequestError(f"contender {self}: found setting {name!r} of this tree; {told}")
            if not isinstance(value, int) or value < 0:
                raise RequestError(f"contender {self}: found {name}={value!r}; allowed: an integer >= 0")

    @classmethod
    def parse(cls, text: str) -> Contender:
        """Read ``NAME``, ``NAME:K=7,rule=block`` or ``NAME:tree=best-first,budget=64``.

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
            elif key in ("rule", "tree") and key not in options and value:
                options[key] = value
            elif key == "budget" and key not in options and value.isascii() and value.isdigit():
                options[key] = int(value)
            elif key == "budget" and key not in options:
                raise RequestError(f"contender {text!r}: found {item!r}; allowed: a number of nodes, budget=64")
            elif key.isidentifier() and key not in ("K", "rule", "tree", "budget", *settings) and value:
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
        tree = self.tree if self.tree is None or isinstance(self.tree, str) else self.tree.name
        settings = {"K": self.draft_length, "rule": self.rule, "tree": tree, "budget": self.budget, **self.settings}
        given = ",".join(f"{key}={value}" for key, value in settings.items() if value is not None)
        return f"{self.drafter}:{given}" if given else self.drafter


def as_contender(contender: Contender | str) -> Contender:
    """Read a contender that may be given as text."""
    if not isinstance(contender, str | Contender):
        raise RequestError(f"contender: found {contender!r}; allowed: one name, 'block:K=7' or a Contender")
    return contender if isinstance(contender, Contender) else Contender.parse(contender)


def check_price(price: Any) -> None:
    """Refuse what is no price; None is none."""
    if price is not None and not hasattr(price, "of"):
        raise RequestError(
            f"price: found {price!r}; allowed: latency.Affine, Table, Roofline, read_price(FILE), or what has their "
            "method of"
        )


def _number(text: str) -> Setting:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
