"""Aggregates over rollouts and rounds: one name per number, for solved rounds and for measured ones.

::

    pooled length         sum_i tokens_i / sum_i E[R_i]                          the headline
    request mean          mean_i tokens_i E[1/R_i]                               rollouts without a round left out
    plug-in request mean  mean_i tokens_i / E[R_i]
    length-weighted mean  sum_i tokens_i (tokens_i E[1/R_i]) / sum_i tokens_i
    drafts-only length    pooled length - 1
    untrimmed length      (sum_i tokens_i + overshoot_i) / sum_i E[R_i] = 1 + accepted / rounds
    infinite-horizon length  1 + sum_k (unconditional rate k)                    no rollout ever ends
    macro mean            unweighted mean of the benchmarks' pooled lengths
    unconditional rate k  E[#rounds with N >= k] / E[#rounds]
    conditional rate k    E[#rounds with N >= k] / E[#rounds with N >= k-1 that proposed depth k]
    draft acceptance      accepted / proposed drafts

A ratio of nothing to nothing is None, never 0. Where rounds are measured, their number stands for ``E[R]`` and its
inverse for ``E[1/R]``. `RoundCounts` gives the figures of rounds that an engine logged, `convention_length` the figure
that an engine or a script would print of these rollouts.
"""

from markov_spec.metrics.aggregates import (
    drafts_only_length,
    largest_share,
    leave_one_out,
    left_out,
    length_weighted_mean,
    macro_mean,
    overshoot,
    plug_in_request_mean,
    pooled_length,
    request_mean,
    surprise_z,
    untrimmed_length,
)
from markov_spec.metrics.conventions import CONVENTIONS, Convention, Interval, RolloutCounts, convention_length
from markov_spec.metrics.counts import RoundCounts
from markov_spec.metrics.logs import (
    CommittedRounds,
    MergedRounds,
    committed_lengths,
    delivered_tokens,
    merge_replays,
    rounds_of,
)
from markov_spec.metrics.proxies import eal, iid_length, marginal_length, start_lengths, tau, uniform_start_length
from markov_spec.metrics.rates import (
    conditional_rates,
    draft_acceptance,
    infinite_horizon_length,
    least_variance_rates,
    mean_rate,
    prefix_rates,
    unconditional_rates,
)

__all__ = [
    "CONVENTIONS",
    "CommittedRounds",
    "Convention",
    "Interval",
    "MergedRounds",
    "RolloutCounts",
    "RoundCounts",
    "committed_lengths",
    "conditional_rates",
    "convention_length",
    "delivered_tokens",
    "draft_acceptance",
    "drafts_only_length",
    "eal",
    "iid_length",
    "infinite_horizon_length",
    "largest_share",
    "least_variance_rates",
    "leave_one_out",
    "left_out",
    "length_weighted_mean",
    "macro_mean",
    "marginal_length",
    "mean_rate",
    "merge_replays",
    "overshoot",
    "plug_in_request_mean",
    "pooled_length",
    "prefix_rates",
    "request_mean",
    "rounds_of",
    "start_lengths",
    "surprise_z",
    "tau",
    "unconditional_rates",
    "uniform_start_length",
    "untrimmed_length",
]
