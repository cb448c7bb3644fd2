"""From logits to the distribution that tokens are drawn from, and what the record keeps of it.

Which transforms act, and in which order, is data (`Sampling.order`) and is written into the store. Logits of any float
type are taken to float32 once, before anything is computed from them. Order among equals is everywhere *value down, id
up*: the first of equal maxima is the argmax.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from markov_spec.arrays import RequestError

COLDEST = 0.001
FILTERS = ("top_k", "top_p", "min_p")
ORDER = ("temperature", *FILTERS)
JOINT = "joint"
NEUTRAL = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    Parameters
    ----------
    temperature : float
        0 is greedy: the distribution is one-hot at the argmax.
    top_k : int
        Keep the ``k`` likeliest tokens; 0 keeps all.
    top_p : float
        Keep the smallest set of likeliest tokens whose probability reaches ``top_p``; 1 keeps all.
    min_p : float
        Keep the tokens of at least this share of the likeliest one's probability; 0 keeps all.
    order : sequence of str
        Names of the transforms in the order applied, by default as in ``transformers``; llama.cpp has the temperature
        last. Each filter is measured on what the transforms before it left, divided by its sum. ``"joint"`` stands for
        all three filters measured on the same distribution, and keeps what each of them keeps.

    Raises
    ------
    RequestError
        Naming the setting, what was found and what is allowed.

    Notes
    -----
    Two engines with equal settings draw from other distributions if their orders differ, unless the temperature is 1 or
    nothing is filtered; among the filters only ``top_p`` minds what was removed before it.

    Examples
    --------
    >>> Sampling(temperature=.5, top_p=.8, order=["top_p", "temperature"]).order
    ('top_p', 'temperature')
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    order: tuple[str, ...] = ORDER

    def __post_init__(self) -> None:
        if self.temperature != 0 and not COLDEST <= self.temperature < float("inf"):
            raise RequestError(f"temperature: found {self.temperature}; allowed: 0 (greedy), or {COLDEST} and more")
        if not isinstance(self.top_k, int) or self.top_k < 0:
            raise RequestError(f"top_k: found {self.top_k}; allowed: 0 (keep all), or an integer above")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p: found {self.top_p}; allowed: above 0, at most 1 (keep all)")
        if not 0 <= self.min_p <= 1:
            raise RequestError(f"min_p: found {self.min_p}; allowed: 0 (keep all) to 1")
        object.__setattr__(self, "order", tuple(self.order))
        named = [name for names in self._groups for name in names]
        if not set(named) <= set(ORDER) or len(set(named)) < len(named):
            raise RequestError(
                f"order: found {', '.join(self.order)}; allowed: {', '.join(ORDER)}, each once, in any order; "
                f"{JOINT} stands for the last three"
            )
        for name, neutral in NEUTRAL.items():
            if getattr(self, name) != neutral and name not in named:
                raise RequestError(f"order: found {', '.join(self.order)}; allowed: with {name}, which is set")

    @classmethod
    def from_metadata(cls, settings: Mapping[str, Any]) -> Sampling:
        """Take the settings from a store's metadata; what is not there is the default, what is not known an error."""
        given = {name: value for name, value in settings.items() if value is not None}
        known = [field.name for field in fields(cls)]
        for name in given.keys() - known:
            raise RequestError(f"sampling: found {name} {given[name]!r}; allowed: {', '.join(known)}")
        return cls(**given)

    @property
    def greedy(self) -> bool:
        """Whether the temperature is 0."""
        return self.temperature == 0

    @property
    def plain(self) -> bool:
        """Whether tokens are drawn from the plain softmax."""
        return not self.steps

    @property
    def steps(self) -> list[tuple[str, ...]]:
        """The transforms that change anything, in order; those that stand together see the same distribution."""
        acting = (tuple(n for n in names if getattr(self, n) != NEUTRAL[n]) for names in self._groups)
        return [names for names in acting if names]

    @property
    def _groups(self) -> list[tuple[str, ...]]:
        return [FILTERS if step == JOINT else (step,) for step in self.order]

    def to_metadata(self) -> dict[str, Any]:
        """Give the settings with their order, as the store's manifest holds them."""
        return {**asdict(self), "order": list(self.order)}


def argmax(values: Tensor) -> Tensor:
    """Index of the largest value along the last axis, the first of equals; ``torch.argmax`` promises no order.

    Parameters
    ----------
    values : Tensor, (..., V)

    Returns
    -------
    Tensor of int64, (...)

    Raises
    ------
    ValueError
        On NaN.

    Examples
    --------
    >>> import torch
    >>> int(argmax(torch.tensor([1., 3., 3., 2.])))
    1
    """
    best = values.amax(-1, keepdim=True)
    if torch.isnan(best).any():
        raise ValueError("logits: found NaN; allowed: numbers and -inf")
    ids = torch.arange(values.shape[-1], device=values.device)
    return torch.where(values == best, ids, values.shape[-1]).amin(-1)


def log_probs(logits: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities (nats, float32) of the distribution that ``sampling`` draws from.

    Parameters
    ----------
    logits : Tensor, (..., V)
        Logits or log-probabilities, of any float type.
    sampling : Sampling

    Returns
    -------
    Tensor of float32, (..., V)
        ``-inf`` for tokens that a filter removes.

    Examples
    --------
    >>> import torch
    >>> logits = torch.tensor([1., 0., -1., -2.])
    >>> log_probs(logits, Sampling(temperature=.5)).exp().numpy().round(4)
    array([0.865 , 0.1171, 0.0158, 0.0021], dtype=float32)
    """
    logits = logits.float()
    if sampling.greedy:
        one_hot = torch.full_like(logits, -torch.inf)
        return one_hot.scatter_(-1, argmax(logits)[..., None], 0.0)
    if sampling.steps == [("temperature",)]:
        logits = logits / sampling.temperature
    elif sampling.steps:
        values, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
        for names in sampling.steps:
            values = _apply(values, names, sampling)
        logits = torch.empty_like(values).scatter_(-1, ids, values)
    return torch.log_softmax(logits, -1)


def _apply(values: Tensor, names: tuple[str, ...], sampling: Sampling) -> Tensor:
    """Scale logits that are sorted downwards, or remove what any of these filters removes, never the first."""
    if names == ("temperature",):
        return values / sampling.temperature
    removed = torch.zeros_like(values, dtype=torch.bool)
    if "top_k" in names:
        removed[..., sampling.top_k :] = True
    if "top_p" in names:
        before = torch.softmax(values, -1).cumsum(-1).roll(1, -1)
        before[..., 0] = 0
        removed |= before >= sampling.top_p
    if "min_p" in names:
        removed |= values < values[..., :1] + math.log(sampling.min_p)
    return values.masked_fill(removed, -torch.inf)


def draw(log_p: Tensor, uniforms: Tensor) -> Tensor:
    """Draw a token from each row by inverting the cumulative distribution in float64.

    Parameters
    ----------
    log_p : Tensor, (B, V)
        Log-probabilities, nats.
    uniforms : Tensor of float64, (B,)
        In [0, 1).

    Returns
    -------
    Tensor of int64, (B,)
        Tokens of positive probability.
    """
    cumulative = log_p.double().exp().cumsum(-1)
    at = torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:], right=True)[:, 0]
    return at.clamp_max(log_p.shape[-1] - 1)


def rank(values: Tensor, tokens: Tensor) -> Tensor:
    """1-based rank of a token in each row, by value down and id up.

    Parameters
    ----------
    values : Tensor, (n, V)
    tokens : Tensor of int64, (n,)

    Returns
    -------
    Tensor of int64, (n,)
    """
    own = values.gather(-1, tokens[:, None])
    ids = torch.arange(values.shape[-1], device=values.device)
    return 1 + counted((values > own) | ((values == own) & (ids < tokens[:, None])))


def counted(marks: Tensor) -> Tensor:
    """Number of marks in each row, int64; summed in int32, which on a processor is 20 times as fast."""
    return marks.sum(-1, dtype=torch.int32).long()


def top_list(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Give the ``count`` largest entries of each row, by value down and id up, on any device.

    Parameters
    ----------
    values : Tensor, (n, V)
    count : int

    Returns
    -------
    ids : Tensor of int64, (n, count)
    values : Tensor, (n, count)

    Examples
    --------
    >>> import torch
    >>> top_list(torch.tensor([[3., 2., 3., 2., 1., 1.]]), 3)[0]
    tensor([[0, 2, 1]])
    """
    count = min(count, values.shape[-1])
    best, ids = torch.topk(values, count, dim=-1)
    tied = counted(values >= best[:, -1:]) > count
    if tied.any():  # topk may keep any of the equals at the cut
        ids[tied] = torch.sort(values[tied], dim=-1, descending=True, stable=True).indices[:, :count]
    ids = ids.sort(-1).values
    by_value = torch.sort(values.gather(-1, ids), dim=-1, descending=True, stable=True)
    return ids.gather(-1, by_value.indices), by_value.values
