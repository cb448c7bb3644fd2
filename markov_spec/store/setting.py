"""How a store says that its tokens were drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """Temperature and filters; ``top_k`` 0 and ``top_p`` 1 keep all. ``told`` is whether a temperature is recorded.

    ``tempered_first``: top-p adds up probabilities after the temperature was applied, and ``cut_first``: after top-k.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    tempered_first: bool = True
    cut_first: bool = True
    told: bool = False

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Setting:
        """Read a store's or a drafter's metadata, which were checked; what is not told keeps all at temperature 1."""
        told = metadata.get("sampling") or {}
        order = told.get("order") or ["temperature", "top_k", "top_p"]

        def before(name: str) -> bool:
            return "top_p" not in order or name not in order or order.index(name) < order.index("top_p")

        temperature, top_k, top_p = (told.get(key) for key in ("temperature", "top_k", "top_p"))
        return cls(
            1.0 if temperature is None else float(temperature),
            max(top_k or 0, 0),
            1.0 if top_p is None else float(top_p),
            before("temperature"),
            before("top_k"),
            temperature is not None,
        )

    @property
    def random(self) -> bool:
        """Whether more than one token can be drawn."""
        return self.temperature > 0 and self.top_k != 1

    @property
    def plain(self) -> bool:
        """Whether tokens are drawn from the plain softmax."""
        return (self.temperature, self.top_k, self.top_p) == (1, 0, 1)

    @property
    def filtered(self) -> bool:
        """Whether a filter leaves tokens out."""
        return self.top_k > 0 or self.top_p < 1

    def __str__(self) -> str:
        words = [f"temperature {self.temperature:g}"] + [f"top_k {self.top_k}"] * (self.top_k > 0)
        return ", ".join(words + [f"top_p {self.top_p:g}"] * (self.top_p < 1))
