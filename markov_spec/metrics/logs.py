"""What an engine's log says of its rounds, brought to what was delivered: no token past the end, no round twice."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class CommittedRounds:
    """Rounds cut at the end of a rollout. Made by `committed_lengths`.

    Parameters
    ----------
    lengths : tuple of int
        Tokens that each round commits.
    finish : {"stop", "length"} or None
        What ended the rollout; None if it goes on.
    cut : int
        Tokens of the last round that lie past the end.
    """

    lengths: tuple[int, ...]
    finish: Literal["stop", "length"] | None
    cut: int


def committed_lengths(
    raw: Sequence[int], budget: int, *, stop: int | None = None, first_start: int = 0
) -> CommittedRounds:
    """Cut the last round at the stop token or the length cap, whichever comes first; at the same token it is a stop.

    Parameters
    ----------
    raw : sequence of int
        Tokens of each round as verified, the target's own included.
    budget : int
        Tokens that the rollout may have.
    stop : int, optional
        Position of the first stop token in the rollout; absent if no round gave one.
    first_start : int
        Tokens of the rollout that no round gives: 1 when the prefill emits the first one.

    Returns
    -------
    CommittedRounds
        ``first_start + sum(lengths)`` is the rollout's length.

    Raises
    ------
    ValueError
        If a round is empty or begins after the end, the stop token lies past all rounds, or the budget is below
        ``first_start``.

    Examples
    --------
    >>> committed_lengths([5, 5], 8, first_start=1)
    CommittedRounds(lengths=(5, 2), finish='length', cut=3)
    """
    if budget < first_start:
        raise ValueError(f"budget: found {budget}; allowed: at least the {first_start} before the first round")
    total = first_start + sum(raw)
    if stop is not None and not 0 <= stop < total:
        raise ValueError(f"stop: found position {stop}; allowed: 0 to {total - 1}, a token that was verified")
    end = budget if stop is None else min(budget, stop + 1)
    lengths: list[int] = []
    start = first_start
    for i, count in enumerate(raw):
        if count < 1:
            raise ValueError(f"raw: round {i}: found {count} tokens; allowed: 1 or more, one is the target's own")
        if start >= end:
            raise ValueError(f"raw: round {i}: found a start at {start}; allowed: below the rollout's end {end}")
        lengths.append(min(count, end - start))
        start += count
    finish: Literal["stop", "length"] | None = None
    if total >= end:
        finish = "stop" if stop is not None and stop < budget else "length"
    return CommittedRounds(tuple(lengths), finish, max(total - end, 0))


def delivered_tokens(
    token_ids: Sequence[int],
    *,
    completion: int | None = None,
    reasoning: int | None = None,
    log_probs: int | None = None,
) -> tuple[int, tuple[str, ...]]:
    """Count the tokens of a reply; usage counters are compared, not believed.

    Parameters
    ----------
    token_ids : sequence of int
        The tokens delivered.
    completion, reasoning : int, optional
        The usage counters of all tokens and of the reasoning among them.
    log_probs : int, optional
        Log-probability entries.

    Returns
    -------
    int
        The number of token ids.
    tuple of str
        A finding for each counter that disagrees.

    Examples
    --------
    >>> delivered_tokens([4, 8, 15], completion=5)
    (3, ('completion: found 5 for 3 token ids; the ids are counted',))
    """
    count = len(token_ids)
    wrong = {
        "completion": completion if completion != count else None,
        "reasoning": reasoning if reasoning is not None and reasoning > count else None,
        "log_probs": log_probs if log_probs != count else None,
    }
    findings = (
        f"{name}: found {found} for {count} token ids; the ids are counted"
        for name, found in wrong.items()
        if found is not None
    )
    return count, tuple(findings)


def rounds_of(tokens: int, accepted: int) -> int:
    """Count rounds from counters: each gives one token of the target's own.

    Parameters
    ----------
    tokens : int
        Tokens that the rounds gave: none from the prefill, none cut off.
    accepted : int
        Drafts among them.

    Returns
    -------
    int

    Raises
    ------
    ValueError
        If there are drafts without a round that gave them.

    Examples
    --------
    >>> rounds_of(192, 138)
    54
    """
    if not 0 <= accepted <= max(tokens - 1, 0):
        raise ValueError(f"accepted: found {accepted} drafts in {tokens} tokens; allowed: 0 to {max(tokens - 1, 0)}")
    return tokens - accepted


@dataclass(frozen=True)
class MergedRounds:
    """One entry for each round of a log that held replays. Made by `merge_replays`.

    Parameters
    ----------
    requests : tuple of hashable
    starts, proposed, accepted : tuple of int
        The order is that of the rounds' first records.
    replays : tuple of int
        Indices of the records that repeat an earlier one's round.
    """

    requests: tuple[Hashable, ...]
    starts: tuple[int, ...]
    proposed: tuple[int, ...]
    accepted: tuple[int, ...]
    replays: tuple[int, ...]


def merge_replays(
    requests: Sequence[Hashable], starts: Sequence[int], proposed: Sequence[int], accepted: Sequence[int]
) -> MergedRounds:
    """Merge records of the same request and start, which are one round: drafts of the first, acceptance of the last.

    Parameters
    ----------
    requests : sequence of hashable
        Request of each record.
    starts : sequence of int
        Tokens of the request committed before it.
    proposed, accepted : sequence of int
        Its drafts.

    Returns
    -------
    MergedRounds

    Raises
    ------
    ValueError
        If the sequences differ in length, more drafts are accepted than proposed, or a repeated record is neither the
        same again nor a replay: the accepted drafts of a round first logged with none, all accepted.

    Examples
    --------
    >>> merge_replays(["a", "a", "a"], [0, 0, 3], [4, 2, 4], [0, 2, 1])
    MergedRounds(requests=('a', 'a'), starts=(0, 3), proposed=(4, 4), accepted=(2, 1), replays=(1,))
    """
    sizes = {len(values) for values in (requests, starts, proposed, accepted)}
    if len(sizes) > 1:
        raise ValueError(f"records: found sequences of {sorted(sizes)} entries; allowed: one length")
    rounds: dict[Any, tuple[int, int]] = {}
    replays = []
    for i, key in enumerate(zip(requests, starts, strict=True)):
        record = (proposed[i], accepted[i])
        if not 0 <= record[1] <= record[0]:
            raise ValueError(
                f"record {i}: request {key[0]!r}, start {key[1]}: found {record[1]} of {record[0]} drafts accepted; "
                "allowed: 0 up to all of them"
            )
        if key not in rounds:
            rounds[key] = record
            continue
        first = rounds[key]
        replay = first[1] == 0 and record[0] == record[1] <= first[0]
        if not replay and record != first:
            raise ValueError(
                f"record {i}: request {key[0]!r}, start {key[1]}: found {record[1]} of {record[0]} drafts accepted "
                f"after {first[1]} of {first[0]}; allowed: the same again, or a replay of drafts first logged rejected"
            )
        rounds[key] = (first[0], record[1])
        replays.append(i)
    return MergedRounds(
        requests=tuple(request for request, _ in rounds),
        starts=tuple(start for _, start in rounds),
        proposed=tuple(drafts for drafts, _ in rounds.values()),
        accepted=tuple(taken for _, taken in rounds.values()),
        replays=tuple(replays),
    )
