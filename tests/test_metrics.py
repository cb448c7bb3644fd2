import numpy as np
import pytest

import markov_spec as ms
from markov_spec import metrics
from markov_spec.metrics import RoundCounts


def test_pooled_length_against_closed_form():
    assert metrics.pooled_length([40, 200], [10, 100]) == pytest.approx(240 / 110)
    assert metrics.pooled_length([], []) is None


def test_rates_by_depth_against_closed_form():
    accepted = [3, 3, 0, 1, 2, 0, 3, 1]
    histogram = np.bincount(accepted, minlength=4).astype(float)
    tested = np.array([sum(n >= k for n in accepted) for k in range(3)], dtype=float)
    assert metrics.unconditional_rates(histogram) == pytest.approx([0.75, 0.5, 0.375])
    assert metrics.conditional_rates(histogram, tested) == pytest.approx([0.75, 2 / 3, 0.75])


def test_rates_of_nothing_are_none_invariant():
    assert metrics.unconditional_rates(np.zeros(3)) == [None, None]
    assert metrics.conditional_rates(np.array([2.0, 0.0, 0.0]), np.array([2.0, 0.0])) == [0.0, None]


def test_case_13_nodes_against_depth_against_closed_form():
    rounds, accepted, depth, nodes = 10, 20, 3, 15
    assert metrics.draft_acceptance(accepted, proposed=rounds * nodes) == pytest.approx(0.1333, abs=5e-5)
    assert metrics.draft_acceptance(accepted, proposed=rounds * depth) == pytest.approx(0.6667, abs=5e-5)
    assert metrics.pooled_length([accepted + rounds], [rounds]) == 3.0
    with pytest.raises(ValueError, match="found 40 of 30"):
        metrics.draft_acceptance(accepted + 2 * rounds, proposed=rounds * depth)
    assert metrics.draft_acceptance(0, proposed=0) is None


def test_surprise_z_against_simulation():
    rng = np.random.default_rng(4)
    p = rng.dirichlet(np.full(8, 0.5), size=4000)
    with np.errstate(divide="ignore"):
        log_p = np.where(p > 0, np.log(p), 0.0)
    entropy = -(p * log_p).sum(1)
    varentropy = (p * (log_p + entropy[:, None]) ** 2).sum(1)
    drawn = np.array([log_p[i, rng.choice(8, p=p[i])] for i in range(4000)])
    assert abs(metrics.surprise_z(drawn, entropy, varentropy)) < 3
    likeliest = log_p.max(1)
    assert metrics.surprise_z(likeliest, entropy, varentropy) < -10
    assert metrics.surprise_z(np.zeros(3), np.zeros(3), np.zeros(3)) is None


def test_case_30_three_lengths_of_a_finite_rollout_against_closed_form():
    law = ms.RoundLaw.from_acceptance(np.full((5, 2), 0.5), [0, 5])
    rounds = ms.solve(law)
    assert metrics.pooled_length(rounds.committed, rounds.expected) == pytest.approx(1.5686, abs=5e-5)
    assert metrics.request_mean(rounds.committed, ms.expected_inverse(law)) == pytest.approx(1.6771, abs=5e-5)
    assert metrics.infinite_horizon_length([0.5, 0.5], kind="conditional") == 1.75


def test_overshoot_is_an_accepted_end_token_against_closed_form():
    # K = 2, a = 1/2: the round from 0 accepts both of two tokens with 1/4; from 1 it accepts one with 1/2.
    law = ms.RoundLaw.from_acceptance(np.full((3, 2), 0.5), [0, 2, 2, 3])
    rounds = ms.solve(law)
    surplus = metrics.overshoot(rounds.accepted_histogram, rounds.committed)
    assert surplus == pytest.approx([0.25 + 0.5 * 0.5, 0, 0.5])
    accepted = rounds.accepted_histogram.sum(0) @ [0, 1, 2]
    untrimmed = metrics.untrimmed_length(rounds.committed, rounds.expected, surplus)
    assert untrimmed == pytest.approx(1 + accepted / rounds.expected.sum())
    assert metrics.drafts_only_length(rounds.committed, rounds.expected) == pytest.approx(3 / 2.5 - 1)
    with pytest.raises(ValueError, match="committed: rollout 1: found 4; allowed: no more than its rounds give"):
        metrics.overshoot([[0, 1], [1, 1]], [2, 4])
    with pytest.raises(ValueError, match="found shapes"):
        metrics.overshoot([1, 2], [5])


def test_case_08_pooling_against_closed_form():
    tokens, first, second = [40, 200], np.array([10, 100]), np.array([16, 80])
    assert metrics.pooled_length(tokens, first) == pytest.approx(2.1818, abs=5e-5)
    assert metrics.plug_in_request_mean(tokens, first) == metrics.request_mean(tokens, 1 / first) == 3.0
    assert metrics.length_weighted_mean(tokens, 1 / first) == pytest.approx(2.3333, abs=5e-5)
    assert metrics.pooled_length(tokens, second) == 2.5
    assert metrics.plug_in_request_mean(tokens, second) == metrics.request_mean(tokens, 1 / second) == 2.5
    assert metrics.length_weighted_mean(tokens, 1 / second) == 2.5


def test_rollouts_without_rounds_are_left_out_and_counted_invariant():
    nan = float("nan")
    assert metrics.request_mean([4, 0, 8], [0.5, nan, 0.5]) == 3.0
    assert metrics.length_weighted_mean([4, 0, 8], [0.5, nan, 0.5]) == pytest.approx(40 / 12)
    assert metrics.plug_in_request_mean([4, 0, 8], [2, 0, 2]) == 3.0
    assert metrics.left_out([2, 0, 2, 3]) == 1
    assert metrics.macro_mean([3.0, None, 2.0]) == 2.5
    for mean in (metrics.request_mean, metrics.length_weighted_mean):
        assert mean([0], [nan]) is None
    assert metrics.plug_in_request_mean([], []) is metrics.macro_mean([None]) is None
    assert metrics.drafts_only_length([], []) is metrics.untrimmed_length([], [], []) is None


@pytest.mark.parametrize(
    ("mean", "tokens", "given", "message"),
    [
        (metrics.request_mean, [4, 4], [0.5, 2.0], "expected_inverse: rollout 1: found 2; allowed: above 0, at most 1"),
        (metrics.request_mean, [4, 4], [0.5, float("nan")], "tokens: rollout 1: found 4; allowed: 0, since it has no"),
        (metrics.length_weighted_mean, [4], [0.0], "expected_inverse: rollout 0: found 0"),
        (
            metrics.plug_in_request_mean,
            [4, 4],
            [2, 0],
            "tokens: rollout 1: found 4; allowed: 0, since it has no rounds",
        ),
        (metrics.plug_in_request_mean, [4], [-2], "rounds: rollout 0: found -2; allowed: finite numbers >= 0"),
        (metrics.plug_in_request_mean, [-4], [2], "tokens: rollout 0: found -4"),
        (metrics.plug_in_request_mean, [4], [2, 2], r"rounds: found shape \(2,\)"),
    ],
)
def test_means_refuse_impossible_vectors_invariant(mean, tokens, given, message):
    with pytest.raises(ValueError, match=message):
        mean(tokens, given)


def test_case_17_rates_of_either_kind_against_closed_form():
    counts = RoundCounts.from_accepted([3, 3, 0, 1, 2, 0, 3, 1], 3, bonus="excluded")
    assert counts.unconditional == [0.75, 0.5, 0.375]
    assert counts.length == 1 + 1.625
    assert counts.conditional == pytest.approx([0.75, 0.6667, 0.75], abs=5e-5)
    printed = [0.70112, 0.36951, 0.20591, 0.12546, 0.08118]  # EAGLE issue 191, which the case rounds
    length = metrics.infinite_horizon_length
    assert length(printed, kind="unconditional") == pytest.approx(2.4832, abs=5e-5)
    assert length(printed, kind="conditional") == pytest.approx(2.0208, abs=5e-5)
    with pytest.raises(ValueError, match="kind: found 'prefix'"):
        length(printed, kind="prefix")


def test_case_19_mean_rate_falls_with_depth_against_closed_form():
    for depth, rate, length in ((3, 0.6507, 2.952), (5, 0.5379, 3.689)):
        assert metrics.mean_rate([0.8] * depth, kind="conditional") == pytest.approx(rate, abs=5e-5)
        found = metrics.infinite_horizon_length([0.8] * depth, kind="conditional")
        assert found == pytest.approx(length, abs=5e-4)
    assert metrics.mean_rate([], kind="conditional") is None
    assert metrics.least_variance_rates(2.75, 3) == [1, 0.75, 0]
    assert metrics.least_variance_rates(1, 2) == [0, 0] and metrics.least_variance_rates(3, 2) == [1, 1]
    for length in (0.9, 4.1, float("nan")):
        with pytest.raises(ValueError, match="allowed: 1 to 4"):
            metrics.least_variance_rates(length, 3)
    with pytest.raises(ValueError, match=r"depth 3: found 0.6; allowed: at most the 0.5"):
        metrics.prefix_rates([0.8, 0.5, 0.6], kind="unconditional")
    assert metrics.prefix_rates([0.5, 1.0], kind="conditional") == [0.5, 0.5]


def test_case_12_rate_above_one_is_an_error_against_closed_form():
    counts = RoundCounts.from_accepted([3, 3], 3, bonus="excluded")
    assert (counts.draft_acceptance, counts.length) == (1.0, 4.0)
    assert RoundCounts.from_accepted([4, 4], 3, bonus="included").draft_acceptance == 1.0
    with pytest.raises(ValueError, match="accepted: round 0: found 4; allowed: at most the drafts proposed, 3"):
        RoundCounts.from_accepted([4, 4], 3, bonus="excluded")
    with pytest.raises(ValueError, match="found 8 of 6"):
        metrics.draft_acceptance(8, proposed=6)
    for rate in (8 / 6, -0.1, float("nan")):
        with pytest.raises(ValueError, match=r"depth 1: found [^;]+; allowed: 0 to 1"):
            metrics.prefix_rates([rate], kind="conditional")


def test_case_04_draft_of_end_tokens_against_closed_form():
    cut = metrics.committed_lengths([49], 1024, stop=0)
    assert (cut.lengths, cut.finish) == ((1,), "stop")
    as_draft, as_target = (
        RoundCounts.from_accepted([48], 48, bonus="excluded", committed=cut.lengths, end_token=end)
        for end in ("accepted", "target")
    )
    assert [(c.rounds, c.committed, c.length) for c in (as_draft, as_target)] == [(1, 1, 1.0)] * 2
    assert (as_draft.accepted, as_draft.proposed, as_draft.tested.tolist()) == (1, 1, [1])
    assert (as_target.accepted, as_target.proposed, as_target.draft_acceptance) == (0, 0, None)


def test_case_05_stop_before_length_against_closed_form():
    found = metrics.committed_lengths([5], 4, stop=1)
    assert (found.finish, found.lengths) == ("stop", (2,))
    found = metrics.committed_lengths([5], 1, stop=1)
    assert (found.finish, found.lengths) == ("length", (1,))
    found = metrics.committed_lengths([5], 2, stop=1)
    assert (found.finish, found.lengths) == ("stop", (2,))
    tokens, findings = metrics.delivered_tokens(range(23870), completion=23870, reasoning=23871)
    assert tokens == 23870
    assert findings == ("reasoning: found 23871 for 23870 token ids; the ids are counted",)


def test_case_06_last_block_past_the_budget_against_closed_form():
    cut = metrics.committed_lengths([5, 5], 8, first_start=1)
    assert (cut.lengths, cut.finish, cut.cut) == ((5, 2), "length", 3)
    raw = RoundCounts.from_accepted([5, 5], 4, bonus="included")
    trimmed = RoundCounts.from_accepted([5, 5], 4, bonus="included", committed=cut.lengths)
    assert (raw.length, trimmed.length, trimmed.untrimmed_length) == (5.0, 3.5, 4.0)
    target = RoundCounts.from_accepted([5, 5], 4, bonus="included", committed=cut.lengths, end_token="target")
    assert (target.length, target.untrimmed_length, target.turns) == (3.5, 3.5, ((4, 1),))


def test_committed_lengths_end_where_the_rollout_does_invariant():
    assert metrics.committed_lengths([2, 3], 9) == metrics.CommittedRounds((2, 3), None, 0)
    assert metrics.committed_lengths([2, 3], 5) == metrics.CommittedRounds((2, 3), "length", 0)
    assert metrics.committed_lengths([], 9, stop=0, first_start=1) == metrics.CommittedRounds((), "stop", 0)
    with pytest.raises(ValueError, match="raw: round 1: found a start at 2; allowed: below the rollout's end 2"):
        metrics.committed_lengths([2, 3], 9, stop=1)
    with pytest.raises(ValueError, match="raw: round 1: found 0 tokens"):
        metrics.committed_lengths([2, 0], 9)
    with pytest.raises(ValueError, match="stop: found position 5; allowed: 0 to 4"):
        metrics.committed_lengths([2, 3], 9, stop=5)
    with pytest.raises(ValueError, match="budget: found 0"):
        metrics.committed_lengths([], 0, first_start=1)


def test_case_07_token_ids_win_over_usage_against_closed_form():
    tokens, findings = metrics.delivered_tokens([7, 7, 8, 9, 3, 2], completion=8, log_probs=6)
    assert tokens == 6
    assert findings == ("completion: found 8 for 6 token ids; the ids are counted",)
    assert metrics.delivered_tokens([7, 8], completion=2, reasoning=1) == (2, ())


HISTOGRAM = [11, 14, 11, 4, 0, 3]


def test_case_09_histogram_identities_against_closed_form():
    counts = RoundCounts.from_histogram(HISTOGRAM, draft_length=5, completion=106, accepted=63, proposed=215, rounds=43)
    assert (counts.rounds, counts.accepted, counts.proposed) == (43, 63, 215)
    assert counts.draft_acceptance == pytest.approx(0.293023, abs=5e-7)
    assert counts.length == counts.untrimmed_length == counts.drafted_length == pytest.approx(2.465116, abs=5e-7)
    assert counts.unconditional == pytest.approx([0.7442, 0.4186, 0.1628, 0.0698, 0.0698], abs=5e-5)
    assert counts.conditional == pytest.approx([0.7442, 0.5625, 0.3889, 0.4286, 1.0], abs=5e-5)
    assert counts.tested.tolist() == [43, 32, 18, 7, 3]


@pytest.mark.parametrize("cell", range(6))
def test_case_09_a_changed_cell_is_seen_invariant(cell):
    wrong = [count + (k == cell) for k, count in enumerate(HISTOGRAM)]
    with pytest.raises(ValueError, match="completion: found 106"):
        RoundCounts.from_histogram(wrong, draft_length=5, completion=106)
    with pytest.raises(ValueError, match="rounds: found 43; allowed: 44, the sum of the histogram"):
        RoundCounts.from_histogram(wrong, draft_length=5, rounds=43)


def test_case_09_the_failing_identity_is_named_invariant():
    right = {"completion": 106, "accepted": 63, "proposed": 215, "rounds": 43}
    for name, value in right.items():
        with pytest.raises(ValueError, match=f"^{name}: found {value + 1}; allowed: {value}, [^;]*$"):
            RoundCounts.from_histogram(HISTOGRAM, draft_length=5, **{**right, name: value + 1})
    for wrong in (HISTOGRAM[:-1], [*HISTOGRAM[:-1], -3], [*HISTOGRAM[:-1], 3.0]):
        with pytest.raises(ValueError, match="allowed: 6 integers >= 0"):
            RoundCounts.from_histogram(wrong, draft_length=5)


def test_case_11_bonus_must_be_declared_against_closed_form():
    assert RoundCounts.from_accepted([0, 2, 1], bonus="excluded").length == 2.0
    with pytest.raises(ValueError, match=r"accepted: round 0: found 0; allowed: integers >= 1 with the target's token"):
        RoundCounts.from_accepted([0, 2, 1], bonus="included")
    with pytest.raises(ValueError, match="bonus: found 'yes'"):
        RoundCounts.from_accepted([0, 2, 1], bonus="yes")


def test_case_16_turns_and_rounds_are_pooled_in_order_against_closed_form():
    counts = RoundCounts.from_accepted([[3, 1], [2, 5]], bonus="included")
    assert (counts.rounds, counts.committed, counts.length) == (4, 11, 2.75)
    assert counts.turns == ((2, 0), (1, 4))
    with pytest.raises(ValueError, match="accepted: turn 1, round 1: found -1"):
        RoundCounts.from_accepted([[], [2, -1]], bonus="excluded")
    with pytest.raises(ValueError, match=r"proposed: found \[1, 3\] rounds by turn; allowed: the \[2, 2\]"):
        RoundCounts.from_accepted([[3, 1], [2, 5]], [[4], [4, 4, 4]], bonus="included")


def test_case_20_outside_the_budget_is_unobserved_against_closed_form():
    counts = RoundCounts.from_accepted([3, 1, 1, 0], [3, 1, 3, 0], bonus="excluded")
    assert counts.conditional == [1.0, 0.5, 1.0]
    assert counts.tested.tolist() == [3, 2, 1]
    assert counts.unconditional == [0.75, 0.25, 0.25]
    assert counts.length == 2.25


def test_case_21_skipped_drafter_against_closed_form():
    accepted, skipped = [3, 2, 3, 2, 0, 0, 0, 0, 0, 0], [False] * 4 + [True] * 6
    ids = [[5, 0, 7]] * 4 + [[0, 0, 0]] * 6
    counts = RoundCounts.from_accepted(accepted, 3, bonus="excluded", skipped=skipped, draft_tokens=ids)
    assert counts.draft_acceptance == pytest.approx(0.8333, abs=5e-5)
    assert (counts.proposed, counts.drafted_length, counts.length, counts.findings) == (12, 3.5, 2.0, ())
    unflagged = RoundCounts.from_accepted(accepted, bonus="excluded", draft_tokens=ids)
    assert unflagged.draft_acceptance == pytest.approx(0.3333, abs=5e-5)
    assert unflagged.length == 2.0
    assert [finding[:44] for finding in unflagged.findings] == ["draft_tokens: 6 rounds of all-zero drafts, n"]
    assert RoundCounts.from_accepted([1], bonus="excluded", draft_tokens=[[0]]).findings == ()
    with pytest.raises(ValueError, match="accepted: round 1: found 2; allowed: 0 in a skipped or dropped round"):
        RoundCounts.from_accepted([3, 2], 3, bonus="excluded", skipped=[False, True])
    with pytest.raises(ValueError, match="proposed: round 0: found 4; allowed: as many as there are draft tokens, 3"):
        RoundCounts.from_accepted([3], 4, bonus="excluded", draft_tokens=[[5, 0, 7]])


def test_case_24_dropped_drafts_against_closed_form():
    counts = RoundCounts.from_accepted([6, 0], [8, 2], bonus="excluded", dropped=[False, True])
    assert (counts.draft_acceptance, counts.drafted_acceptance) == (0.75, 0.60)
    assert (counts.rounds, counts.committed, counts.drafted_length) == (2, 8, 7.0)


def test_case_25_a_replay_is_no_round_against_closed_form():
    merged = metrics.merge_replays(["a", "b", "a"], [7, 7, 7], [4, 4, 2], [0, 0, 2])
    assert (merged.requests, merged.starts, merged.replays) == (("a", "b"), (7, 7), (2,))
    counts = RoundCounts.from_accepted(merged.accepted[:1], merged.proposed[:1], bonus="excluded")
    assert (counts.rounds, counts.proposed, counts.accepted, counts.draft_acceptance) == (1, 4, 2, 0.5)
    read_as_two = RoundCounts.from_accepted([0, 2], [4, 2], bonus="excluded")
    assert read_as_two.draft_acceptance == pytest.approx(0.333, abs=5e-4)
    assert metrics.merge_replays(["a"] * 2, [0] * 2, [4] * 2, [3] * 2).replays == (1,)
    assert metrics.merge_replays([], [], [], []).requests == ()
    with pytest.raises(ValueError, match="record 1: request 'a', start 0: found 2 of 4 drafts accepted after 1 of 4"):
        metrics.merge_replays(["a"] * 2, [0] * 2, [4] * 2, [1, 2])
    with pytest.raises(ValueError, match="one length"):
        metrics.merge_replays(["a"], [0, 1], [4, 4], [1, 2])


def test_case_28_a_higher_rate_of_more_rounds_against_closed_form():
    rate, rounds, length = [], [], []
    for proposed, accepted in ((139, 138), (153, 140)):
        rate.append(metrics.draft_acceptance(accepted, proposed=proposed))
        rounds.append(metrics.rounds_of(192, accepted))
        length.append(metrics.pooled_length([192], rounds[-1:]))
    assert rate == pytest.approx([0.993, 0.915], abs=5e-4)
    assert rounds == [54, 52]
    assert length == pytest.approx([3.556, 3.692], abs=5e-4)
    assert metrics.rounds_of(0, 0) == 0
    with pytest.raises(ValueError, match="found 192 drafts in 192 tokens; allowed: 0 to 191"):
        metrics.rounds_of(192, 192)


def test_figures_that_the_log_does_not_give_are_none_invariant():
    counts = RoundCounts.from_accepted([2, 0], bonus="excluded")
    assert counts.draft_acceptance is counts.drafted_acceptance is counts.drafted_length is counts.tested is None
    assert counts.conditional == [None, None]
    nothing = RoundCounts.from_accepted([], 3, bonus="excluded")
    assert (nothing.rounds, nothing.length, nothing.draft_acceptance, nothing.unconditional) == (0, None, None, [])
    assert repr(nothing) == "RoundCounts(0 rounds, 0 of 0 drafts accepted, no length)"
    plain = RoundCounts.from_histogram([4], draft_length=0)
    assert plain.draft_acceptance is plain.drafted_length is None
    assert plain.length == 1.0


@pytest.mark.parametrize("accepted", [[1.0], [True], [[1], 2], ["1"]])
def test_counts_must_be_integers_invariant(accepted):
    with pytest.raises(ValueError, match="allowed: integers >= 0"):
        RoundCounts.from_accepted(accepted, bonus="excluded")


def test_committed_beyond_the_round_is_refused_invariant():
    with pytest.raises(ValueError, match="committed: round 1: found 3; allowed: at most the accepted drafts and one"):
        RoundCounts.from_accepted([3, 1], bonus="excluded", committed=[4, 3])
    with pytest.raises(ValueError, match="end_token: found 'none'"):
        RoundCounts.from_accepted([3], bonus="excluded", end_token="none")


def test_counts_by_round_and_by_histogram_agree_invariant():
    accepted = np.random.default_rng(1).integers(0, 5, size=200)
    by_round = RoundCounts.from_accepted(accepted, 4, bonus="excluded")
    by_histogram = RoundCounts.from_histogram(np.bincount(accepted, minlength=5), draft_length=4)
    for name in ("rounds", "accepted", "proposed", "committed", "drafted", "drafted_rounds", "conditional"):
        assert getattr(by_round, name) == getattr(by_histogram, name)
    assert (by_round.tested == by_histogram.tested).all() and (by_round.histogram == by_histogram.histogram).all()


def test_impossible_vectors_are_refused_invariant():
    for call in (
        lambda: metrics.pooled_length([40, 200], [10]),
        lambda: metrics.pooled_length([40], [-10]),
        lambda: metrics.pooled_length([np.nan], [1]),
        lambda: metrics.untrimmed_length([5, 5], [2, 2], [1]),
        lambda: metrics.draft_acceptance(-1, proposed=6),
        lambda: metrics.largest_share([0, 0], ["a", "b"]),
        lambda: metrics.leave_one_out([1, 2], [1, 1], ["a"]),
        lambda: metrics.merge_replays(["a"], [0], [1], [5]),
        lambda: metrics.RoundCounts.from_accepted([3, 3], 3, bonus="excluded", committed=[1, 4]),
    ):
        with pytest.raises(ValueError, match="allowed: "):
            call()
    turns = metrics.RoundCounts.from_accepted([[3], [3, 3]], 3, bonus="excluded", committed=[[1], [4, 2]])
    assert turns.committed == 7
