"""How a store says that its tokens were drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markov_spec.store.metadata import drawn_as_recorded

_FILTERS = ("top_k", "top_p", "min_p")
_MODELLED = ("temperature", *_FILTERS)


@dataclass(frozen=True)
class Setting:
    """Temperature and filters; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 keep all.

    ``tempered_first``: top-p adds up probabilities after the temperature was applied, and ``cut_first``: after top-k;
    what min-p left out is never missing from its sum. ``min_p_tempered``: min-p compares probabilities after the
    temperature. ``told`` is whether a temperature is recorded, and ``other`` whether there is something that these do
    not describe, such as a top-p after min-p.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    tempered_first: bool = True
    cut_first: bool = True
    min_p_tempered: bool = True
    told: bool = False
    other: bool = False

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Setting:
        """Read a store's or a drafter's metadata, which were checked; what is not told keeps all at temperature 1."""
        told = metadata.get("sampling") or {}
        steps = [_FILTERS if step == "joint" else (step,) for step in told.get("order") or _MODELLED]
        places = {name: i for i, names in enumerate(steps) for name in names}

        def before(name: str, then: str) -> bool:
            return name not in places or then not in places or places[name] < places[then]

        # Engines differ in which of these comes first.
        summed = bool(told.get("order")) and not before("min_p", "top_p")
        temperature, top_k, top_p, min_p = (told.get(key) for key in _MODELLED)
        unknown = {key: value for key, value in told.items() if key not in _MODELLED}
        return cls(
            1.0 if temperature is None else float(temperature),
            max(top_k or 0, 0),
            1.0 if top_p is None else float(top_p),
            min_p or 0.0,
            before("temperature", "top_p"),
            before("top_k", "top_p"),
            before("temperature", "min_p"),
            temperature is not None,
            not drawn_as_recorded({}, unknown) or (bool(min_p) and top_p not in (None, 1) and not summed),
        )

    @property
    def random(self) -> bool:
        """Whether more than one token can be drawn."""
        return self.temperature > 0 and self.top_k != 1

    @property
    def plain(self) -> bool:
        """Whether tokens are drawn from the plain softmax."""
        return (self.temperature, self.top_k, self.top_p, self.min_p, self.other) == (1, 0, 1, 0, False)

    @property
    def filtered(self) -> bool:
        """Whether a filter leaves tokens out."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0 or self.other

    def __str__(self) -> str:
        words = [f"temperature {self.temperature:g}"] + [f"top_k {self.top_k}"] * (self.top_k > 0)
        words += [f"top_p {self.top_p:g}"] * (self.top_p < 1) + [f"min_p {self.min_p:g}"] * (self.min_p > 0)
        return ", ".join(words + ["more"] * self.other)
