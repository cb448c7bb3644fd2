"""The accepted length while training, exact, beside the figures that trainers print for it.

Over all rollouts that were shown, with ``o`` the occupancy, ``S`` the survival and ``E[R] = sum_s o[s]``::

    accepted_length        sum tokens / sum E[R]                       what a round commits, the bonus included
    conditional[k]         sum o[s] S[s,k] / sum o[s] S[s,k-1]         over the starts with a token at depth k
    eal                    sum_k prod_{i<=k} mean hit[i]               also simulated_acc_len; no bonus
    tau                    mean_s (1 + sum_k prod_{i<=k} overlap[s,i])
    uniform_start_length   mean_s (1 + sum_k S[s,k])
    slot_accuracy[k]       mean hit[k] over the starts with a token at depth k

All are quotients of sums over rollouts, so that sums of several processes give what one would have found. The standard
error takes a rollout for one observation, however many blocks of it were scored: they overlap.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal

import torch
import torch.distributed

from markov_spec.arrays import RequestError, check_integer
from markov_spec.chain import _torch
from markov_spec.metrics import eal
from markov_spec.objectives.scores import CellScores
from markov_spec.objectives.weights import acceptance, log_ratio

FAR = 2  # times the drafts accepted: what accuracies may promise without a warning


@dataclass(frozen=True, repr=False)
class AcceptanceFigures:
    """What a meter has seen, all floats; None where nothing was seen that a figure could be of.

    Parameters
    ----------
    accepted_length : float or None
        Tokens by expected rounds, the target's own included.
    standard_error : float or None
        Of ``accepted_length``, over other rollouts of this kind; None of fewer than two.
    rounds, tokens : float
        What it divides.
    rollouts : int
        With something to decode.
    conditional : tuple of float or None, (K,)
        Acceptance at depth 1, 2, ... of the rounds that tested it.
    slot_accuracy : tuple of float or None, (K,)
        Share of the starts with a token at depth 1, 2, ... whose likeliest draft is this token.
    eal, simulated_acc_len : float or None
        Two names of one figure, drafts only.
    tau, uniform_start_length : float or None
        The target's own token included.
    error : dict of str to float or None
        What each of these four is by the accepted length in its own counting, less 1.
    """

    accepted_length: float | None
    standard_error: float | None
    rounds: float
    tokens: float
    rollouts: int
    conditional: tuple[float | None, ...]
    slot_accuracy: tuple[float | None, ...]
    eal: float | None
    simulated_acc_len: float | None
    tau: float | None
    uniform_start_length: float | None
    error: dict[str, float | None]

    def __repr__(self) -> str:
        found = f"{self.rollouts} rollouts, {self.tokens:.0f} tokens"
        if self.accepted_length is None:
            return f"AcceptanceFigures({found})"
        error = "" if self.standard_error is None else f" +- {self.standard_error:.2g}"
        return f"AcceptanceFigures(accepted length {self.accepted_length:.4g}{error}, {found})"

    def to_dict(self) -> dict[str, float]:
        """Give all figures as floats by flat names, for loggers; without those that there are none of.

        Returns
        -------
        dict of str to float
            Depths as ``conditional_1``, errors as ``error_tau``.

        Examples
        --------
        >>> from markov_spec import objectives
        >>> objectives.AcceptanceMeter(2).compute().to_dict()
        {'rounds': 0.0, 'tokens': 0.0, 'rollouts': 0.0}
        """
        flat: dict[str, float | None] = {}
        for name, value in vars(self).items():
            if isinstance(value, tuple):
                flat |= {f"{name}_{k}": one for k, one in enumerate(value, 1)}
            elif isinstance(value, dict):
                flat |= {f"{name}_{key}": one for key, one in value.items()}
            else:
                flat[name] = value
        return {name: float(value) for name, value in flat.items() if value is not None}


class AcceptanceMeter:
    """Add up validation batches; give the exact accepted length of all of them.

    Parameters
    ----------
    depth : int
        ``K``: drafts of a round.
    rule : {"rejection", "block", "match"}
        How drafts are verified; ``"match"`` drafts the likeliest token and keeps it if it is the rollout's.
    first_start : int
        ``s0``: 0 when the first token is drafted too, 1 when the prefill emits it.

    Raises
    ------
    ValueError
        If the rule is unknown, ``depth`` below 1 or ``first_start`` below 0.

    Notes
    -----
    The state is one float64 vector, ``sums``, on the device of the last scores. An update costs ``O(B T K)`` beside the
    scores, and no collective.

    Examples
    --------
    >>> import torch
    >>> from markov_spec import objectives
    >>> draft = torch.tensor([.25, .75]).log().expand(1, 4, 2, 2)
    >>> target = torch.tensor([.5, .5]).log().expand(1, 4, 2)
    >>> meter = objectives.AcceptanceMeter(2)
    >>> meter.update(objectives.score_cells(draft, target, torch.tensor([[0, 1, 1, 0]]), torch.tensor([4])))
    >>> figures = meter.compute()
    >>> figures.accepted_length, figures.conditional
    (2.0, (0.625, 1.0))
    >>> figures.tau, figures.error["tau"]
    (2.171875, 0.0859375)
    """

    def __init__(
        self, depth: int, *, rule: Literal["rejection", "block", "match"] = "rejection", first_start: int = 0
    ) -> None:
        if rule not in ("rejection", "block", "match"):
            raise RequestError(f"rule: found {rule!r}; allowed: rejection, block, match")
        check_integer(depth, "depth", 1)
        check_integer(first_start, "first_start", 0)
        self.depth, self.rule, self.first_start = int(depth), rule, int(first_start)
        self.sums = torch.zeros(9 + 4 * self.depth, dtype=torch.float64)

    def __repr__(self) -> str:
        return f"AcceptanceMeter(K = {self.depth}, {self.rule}, {int(self.sums[0])} rollouts)"

    @torch.no_grad()
    def update(self, scores: CellScores) -> None:
        """Add the rollouts of a batch, scored from every start.

        Parameters
        ----------
        scores : CellScores
            Of ``score_cells`` without ``starts``.

        Raises
        ------
        ValueError
            If they are of another depth, or not of every start in order.
        """
        rows, count, depth = scores.log_q.shape
        if depth != self.depth or count != scores.log_p.shape[1]:
            allowed = (rows, scores.log_p.shape[1], self.depth)
            raise ValueError(f"scores: found (B, M, K) = {(rows, count, depth)}; allowed: {allowed}, of every start")
        if scores.starts is not None:
            every = torch.arange(count, device=scores.starts.device)
            wrong = (scores.starts != every).any(1)
            if wrong.any():
                row = int(wrong.int().argmax())
                found = scores.starts[row].tolist()
                raise ValueError(f"scores: rollout {row}: found starts {found}; allowed: 0 to {count - 1}, in order")
        lengths = scores.lengths.long()
        ratio, valid = log_ratio(scores.log_p, scores.log_q, lengths)
        hits = (scores.hit & valid).double()
        accept = hits if self.rule == "match" else acceptance(ratio, valid, self.rule)
        occupancy, _ = _torch.recursions(accept, lengths, first_start=self.first_start)
        rounds, tokens = occupancy.sum(1), (lengths - self.first_start).clamp(min=0).double()
        survival, overlaps = (torch.cumprod(one.double().where(valid, 0), 2) for one in (accept, scores.overlap))
        reached = torch.cat([torch.ones_like(survival[..., :1]), survival[..., :-1]], 2).where(valid, 0)
        starts = lengths.sum()
        scalars = (
            (tokens > 0).sum(), tokens.sum(), rounds.sum(), tokens @ tokens, tokens @ rounds, rounds @ rounds,
            starts, starts + overlaps.sum(), starts + survival.sum(),
        )  # fmt: skip
        by_depth = (occupancy[..., None] * survival, occupancy[..., None] * reached, hits, valid.double())
        found = [torch.stack([one.double() for one in scalars]), *(one.sum((0, 1)) for one in by_depth)]
        self.sums = self.sums.to(lengths.device) + torch.cat(found)

    def reset(self) -> None:
        """Forget all that was added."""
        self.sums = torch.zeros_like(self.sums)

    def reduce(self, group: Any = None) -> None:
        """Add up the sums of all processes of a ``torch.distributed`` group: once, before ``compute``."""
        # All processes take part on one kind of device, also those that saw no batch: on the CPU if the group can.
        config = torch.distributed.get_backend_config(group)
        kinds = [pair.split(":")[0] for pair in str(config).split(",")]
        self.sums = self.sums.to("cpu" if "cpu" in kinds else kinds[0])
        torch.distributed.all_reduce(self.sums, group=group)

    def compute(self) -> AcceptanceFigures:
        """Give the figures of all that was added.

        Returns
        -------
        AcceptanceFigures

        Warns
        -----
        UserWarning
            If accuracies promise more than twice the drafts that are accepted.
        """
        count, tokens, rounds, _, _, _, starts, overlaps, survivals, *rest = self.sums.tolist()
        passed, tested, hits, seen = (rest[i * self.depth : (i + 1) * self.depth] for i in range(4))
        length, promised = _quotient(tokens, rounds), eal(hits, seen)
        tau, uniform = _quotient(overlaps, starts), _quotient(survivals, starts)
        drafts = None if length is None else length - 1
        if promised is not None and drafts is not None and promised > FAR * drafts:
            warnings.warn(
                f"accuracies by depth promise {promised:.4g} accepted drafts a round, decoding accepts {drafts:.4g} on "
                "the same rollouts: rounds start where drafts were just rejected",
                stacklevel=2,
            )
        return AcceptanceFigures(
            length, self._standard_error(), rounds, tokens, int(count), _quotients(passed, tested),
            _quotients(hits, seen), promised, promised, tau, uniform,
            {
                "eal": _excess(promised, drafts), "simulated_acc_len": _excess(promised, drafts),
                "tau": _excess(tau, length), "uniform_start_length": _excess(uniform, length),
            },
        )  # fmt: skip

    def _standard_error(self) -> float | None:
        # Of a ratio of sums over rollouts, by the delta method.
        count, tokens, rounds, tt, tr, rr = self.sums[:6].tolist()
        if count < 2:
            return None
        length = tokens / rounds
        error: float = sqrt(max(tt - 2 * length * tr + length**2 * rr, 0.0) * count / (count - 1)) / rounds
        return error


def _quotient(above: float, below: float) -> float | None:
    return above / below if below else None


def _quotients(above: list[float], below: list[float]) -> tuple[float | None, ...]:
    return tuple(_quotient(*pair) for pair in zip(above, below, strict=True))


def _excess(value: float | None, exact: float | None) -> float | None:
    return None if value is None or not exact else value / exact - 1
