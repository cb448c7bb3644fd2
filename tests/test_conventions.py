"""Conventions against engines that are played here literally, coin by coin, past the end of what is recorded."""

import itertools

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.metrics import CONVENTIONS, Interval, RolloutCounts, convention_length

STOP = -1
BOUNDED = ("deepspec", "vllm", "dflash", "ddtree")


class Story:
    """A rollout that goes on past its recorded end, with the chance of each draft at each start."""

    def __init__(self, chance, drafts, finish, *, then=0.0, stops=()):
        # chance (T, K) in the record; `then` past it, where `stops` are further stop tokens, counted from the end.
        self.chance, self.drafts, self.finish, self.then = np.asarray(chance), list(drafts), finish, then
        self.tokens = len(self.drafts)
        past = max(self.drafts, default=0) + 1
        self.text = list(range(self.tokens)) + [STOP if i in stops else self.tokens + i for i in range(past)]
        if finish == "stop" and self.tokens:
            self.text[self.tokens - 1] = STOP
        self.cap = self.tokens if finish == "length" else self.tokens + 100

    def accept(self, start, flip):
        """Play one verification from ``start``: the number of drafts accepted, whatever they are."""
        for k in range(self.drafts[start]):
            if not flip(self.chance[start][k] if start + k < self.tokens else self.then):
                return k
        return self.drafts[start]


def every_run(play):
    """List what ``play(flip)`` gives for every outcome of its coins, with its probability."""
    waiting = [()]
    while waiting:
        tape = waiting.pop()
        coins, weight = iter(tape), 1.0

        def flip(chance, coins=coins):
            nonlocal weight
            if chance in (0, 1):
                return bool(chance)
            coin = next(coins)
            weight *= chance if coin else 1 - chance
            return coin

        try:
            printed = play(flip)
        except StopIteration:  # out of coins
            waiting += [(*tape, True), (*tape, False)]
            continue
        yield weight, printed


def edr(story, flip):
    done = rounds = 0
    while done < story.tokens:  # the boundary is the last recorded token, whatever ended the rollout
        done += story.accept(done, flip) + 1
        rounds += 1
    return story.tokens, rounds


def deepspec(story, flip):
    out, lengths = story.text[: min(1, story.tokens)], []
    while out and STOP not in out and len(out) < story.cap:
        taken = story.accept(len(out), flip)
        drafts = story.text[len(out) : len(out) + taken]
        if STOP in drafts:
            lengths.append(drafts.index(STOP) + 1)
            break
        out = story.text[: len(out) + taken + 1]
        lengths.append(taken + 1)
    return sum(lengths), len(lengths)


def vllm(story, flip):
    out, draft_rounds, accepted = story.text[: min(1, story.tokens)], 0, 0
    while out and STOP not in out and len(out) < story.cap:
        proposed = story.drafts[len(out)]
        generated = story.text[len(out) : len(out) + story.accept(len(out), flip) + 1]
        if proposed:
            draft_rounds += 1
            accepted += len(generated) - 1
        for token in generated:
            out.append(token)
            if token == STOP or len(out) == story.cap:
                break
    return draft_rounds + accepted, draft_rounds


def delivered(story, flip):
    """Tokens that each round delivers, cut at the stop token or the cap; how SGLang counts completions."""
    out, rounds = story.text[: min(1, story.tokens)], []
    while out and STOP not in out and len(out) < story.cap:
        new = story.text[len(out) : len(out) + story.accept(len(out), flip) + 1][: story.cap - len(out)]
        new = new[: new.index(STOP) + 1] if STOP in new else new
        rounds.append(len(new))
        out += new
    return len(out), rounds


def sglang(story, flip):
    completion, rounds = delivered(story, flip)
    return completion, len(rounds)


def specforge(story, flip):
    completion, rounds = sglang(story, flip)
    return completion / rounds if rounds else None


def speculators(story, flip):
    _, rounds = delivered(story, flip)
    return sum(count - 1 for count in rounds), len(rounds)


def dflash(story, flip):
    out, lengths = story.text[: min(1, story.tokens)], []
    while out and STOP not in out and len(out) < story.cap:
        taken = story.accept(len(out), flip)
        out = story.text[: len(out) + taken + 1]
        lengths.append(taken + 1)
    return sum(lengths) / len(lengths) if lengths else None


ENGINES = {engine.__name__: engine for engine in (edr, deepspec, vllm, sglang, specforge, speculators, dflash)}
ENGINES["ddtree"] = dflash


def printed(name, stories):
    """What the engine prints of these rollouts, averaged over all its coins."""
    runs = [list(every_run(lambda flip, story=story: ENGINES[name](story, flip))) for story in stories]
    assert all(sum(weight for weight, _ in run) == pytest.approx(1, abs=1e-12) for run in runs)
    if CONVENTIONS[name].pooling == "rounds":
        top, bottom = sum(weight * np.array(terms, dtype=float) for run in runs for weight, terms in run)
        return top / bottom if bottom else None
    means = [sum(weight * mean for weight, mean in run) for run in runs if run[0][1] is not None]
    return np.mean(means) if means else None


def expectations(story, s0):
    """From the probability that the r-th round starts at s, what an evaluation reads off the record alone.

    E[R], E[rounds that draft], least and most surplus, E[1/R], and E[(T - s0 + surplus) / R] with either.
    """
    T, starts, found = story.tokens, {s0: 1.0}, np.zeros(7)
    for r in range(1, T - s0 + 1):
        following = dict.fromkeys(range(T), 0.0)
        for s, mass in starts.items():
            found[:2] += mass, mass * (story.drafts[s] > 0)
            reach = [1.0, *np.cumprod(story.chance[s][: min(story.drafts[s], T - s)]), 0.0]
            for k, (at_least, more) in enumerate(itertools.pairwise(reach)):
                weight = mass * (at_least - more)
                if s + k + 1 < T:
                    following[s + k + 1] += weight
                    continue
                least, most = (1, story.drafts[s] + 1 - k) if s + k == T else (0, 0)
                found[2:] += weight * np.array([least, most, 1 / r, (T - s0 + least) / r, (T - s0 + most) / r])
        starts = following
    if T <= s0:
        found[4:] = np.nan
    return found


def counts_of(stories, s0):
    columns = np.array([expectations(story, s0) for story in stories]).reshape(-1, 7).T
    names = ("drafted_rounds", "surplus_least", "surplus_most", "inverse", "ratio_low", "ratio_high")
    return RolloutCounts(
        [story.tokens for story in stories],
        columns[0],
        first_start=s0,
        finish=[story.finish for story in stories],
        **dict(zip(names, columns[1:], strict=True)),
    )


def random_stories(seed, then=0.0, stops=()):
    """Up to four rollouts of 0 to 9 tokens with up to four drafts, with an odd seed some starts without."""
    rng = np.random.default_rng(seed)
    depth, stories = int(rng.choice([0, 1, 2, 3, 4])), []
    for tokens in rng.permutation(10)[: rng.integers(1, 5)]:
        chance = rng.choice([0.0, 0.2, 0.5, 0.6, 0.8, 0.9, 1.0], (tokens, depth))
        drafts = rng.choice([0, depth, depth], tokens) if seed % 2 else np.full(tokens, depth)
        finish = str(rng.choice(["stop", "length"]))
        stories.append(Story(chance, drafts.tolist(), finish, then=then, stops=stops))
    return stories


@pytest.mark.parametrize("name", CONVENTIONS)
def test_every_convention_is_what_its_engine_prints_against_enumeration(name):
    defined = bounds = 0
    for seed in range(60):
        counts = counts_of(random_stories(seed), CONVENTIONS[name].first_start)
        found = convention_length(name, counts)
        figures = [printed(name, random_stories(seed, then=then)) for then in (0.0, 1.0)]
        if found.low is None:
            assert figures == [None, None]
            continue
        assert [found.low, found.high] == pytest.approx(figures, abs=1e-12)
        assert found.exactness == ("exact" if found.low == found.high else "bound")
        defined, bounds = defined + 1, bounds + (found.exactness == "bound")
    assert defined > 40
    assert bounds > 10 if name in BOUNDED else bounds == 0


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("stops", [(), (0,), (1,)])
def test_whatever_follows_the_end_lies_within_against_enumeration(name, stops):
    strict = 0
    for seed in range(30):
        found = convention_length(name, counts_of(random_stories(seed), 1))
        figure = printed(name, random_stories(seed, then=0.5, stops=stops))
        if found.low is not None:
            assert found.low - 1e-12 <= figure <= found.high + 1e-12
            strict += found.low + 1e-9 < figure < found.high - 1e-9
    # DeepSpec cuts at a stop token past the cap as well: one that follows straight on is all that is added.
    assert (strict > 0) == ((name, stops) != ("deepspec", (0,)))


def test_a_chosen_part_is_that_part_alone_against_enumeration():
    stories = [story for seed in (3, 5, 8) for story in random_stories(seed)]
    chosen = np.arange(len(stories)) % 2 == 0
    part = [story for story, kept in zip(stories, chosen, strict=True) if kept]
    for name, convention in CONVENTIONS.items():
        found = convention_length(name, counts_of(stories, convention.first_start), chosen)
        assert found.low == pytest.approx(printed(name, part), abs=1e-12)


# Two rollouts, K = 4, every acceptance certain: the tests of the README's example, all by hand.
# accepted[s] from each start; a start marked None drafts nothing.
WORKED = (
    # 10 tokens, a stop token last. From 0: starts 0, 3, 8. From 1: starts 1, 5, 6, 8.
    ("stop", [2, 3, 1, 4, 0, None, 1, 0, 2, 1]),
    # 4 tokens, cut by the cap. From 0: starts 0, 2. From 1: starts 1, 2.
    ("length", [1, 0, 2, 1]),
)


def worked_stories(then=0.0, finish=None):
    stories = []
    for own_finish, accepted in WORKED:
        chance = np.array([[float(k < (n or 0)) for k in range(4)] for n in accepted])
        stories.append(Story(chance, [0 if n is None else 4 for n in accepted], finish or own_finish, then=then))
    return stories


def test_worked_rollouts_under_every_name_against_closed_form():
    by_hand = {
        # from 0: 14 tokens in 3 + 2 rounds
        "edr": (14 / 5, 14 / 5),
        # from 1: 9 + 3 tokens in 4 + 2 rounds; the cap leaves 1 to 3 tokens past the end of the second rollout
        "deepspec": (13 / 6, 15 / 6),
        # accepted 3 + 1 + 2 in 3 drafted rounds, 0 + 2 in 2; each last round accepts up to two more
        "vllm": (1 + 8 / 5, 1 + 12 / 5),
        # all 10 + 4 tokens in 4 + 2 rounds
        "sglang": (14 / 6, 14 / 6),
        "specforge": ((10 / 4 + 4 / 2) / 2, (10 / 4 + 4 / 2) / 2),
        # 9 and 3 tokens, and 1 to 3 past the end of either
        "dflash": ((10 / 4 + 4 / 2) / 2, (12 / 4 + 6 / 2) / 2),
        "ddtree": ((10 / 4 + 4 / 2) / 2, (12 / 4 + 6 / 2) / 2),
        "speculators": (12 / 6 - 1, 12 / 6 - 1),
    }
    assert list(by_hand) == list(CONVENTIONS)
    for name, (low, high) in by_hand.items():
        found = convention_length(name, counts_of(worked_stories(), CONVENTIONS[name].first_start))
        assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)
        assert found.exactness == ("exact" if low == high else "bound")
        assert found.left_out == 0
        assert [printed(name, worked_stories(then)) for then in (0.0, 1.0)] == pytest.approx([low, high], abs=1e-12)


def length_of(name, stories):
    found = convention_length(name, counts_of(stories, CONVENTIONS[name].first_start))
    return found.low, found.high


def certain(tokens, drafts, finish):
    return Story(np.ones((tokens, drafts)), [drafts] * tokens, finish)


@pytest.mark.parametrize("end", range(5))
def test_case_03_end_token_in_any_slot_against_closed_form(end):
    assert length_of("edr", [certain(end + 1, 4, "stop")]) == (end + 1, end + 1)
    # with the prefill's token before them, the same round whether the end token is a draft (end <= 3) or the target's
    story = certain(end + 2, 4, "stop")
    assert length_of("deepspec", [story]) == (end + 1, end + 1)
    assert length_of("speculators", [story]) == (end, end)
    assert length_of("sglang", [story]) == (end + 2, end + 2)
    assert length_of("vllm", [story]) == ((end + 2, 5) if end < 4 else (5, 5))


def test_case_04_a_draft_of_end_tokens_alone_against_closed_form():
    assert length_of("edr", [certain(1, 48, "stop")]) == (1, 1)
    assert length_of("deepspec", [certain(2, 48, "stop")]) == (1, 1)
    assert length_of("speculators", [certain(2, 48, "stop")]) == (0, 0)
    assert length_of("vllm", [certain(2, 48, "stop")]) == (2, 49)  # the 47 after the first are in no record


def test_case_06_last_block_past_the_cap_against_closed_form():
    story = certain(8, 4, "length")
    assert length_of("deepspec", [story]) == (4.0, 5.0)  # raw lengths [5, 5]; the record ends two into the last
    assert printed("deepspec", [Story(story.chance, story.drafts, "length", then=1.0)]) == 5.0
    assert length_of("speculators", [story]) == (2.5, 2.5)  # committed [5, 2]


def test_case_08_pooling_turns_the_comparison_against_closed_form():
    def measured(*rounds):
        return RolloutCounts([40, 200], rounds, first_start=1, inverse=1 / np.array(rounds))

    first, second = measured(10, 100), measured(16, 80)
    assert convention_length("sglang", first).low == pytest.approx(2.1818, abs=5e-5)
    assert convention_length("specforge", first) == Interval(3.0, 3.0, 0)
    assert convention_length("sglang", second) == convention_length("specforge", second) == Interval(2.5, 2.5, 0)


def test_case_30_a_finite_rollout_against_closed_form():
    law = ms.RoundLaw.from_acceptance(np.full((6, 2), 0.5), [0, 6])
    rounds = ms.solve(law, first_start=1)  # five tokens are left
    inverse = ms.expected_inverse(law, first_start=1)
    counts = RolloutCounts([6], rounds.expected, first_start=1, inverse=inverse)
    assert convention_length("speculators", counts).low == pytest.approx(5 / 3.1875 - 1)
    assert convention_length("sglang", counts).low == pytest.approx(6 / 3.1875)
    assert convention_length("specforge", counts).low == pytest.approx(
        6 * (0.1875 / 2 + 0.5 / 3 + 0.25 / 4 + 0.0625 / 5)
    )


def test_an_unknown_finish_may_be_either_invariant():
    stopped, capped, unknown = (length_of("deepspec", worked_stories(finish=f)) for f in ("stop", "length", "unknown"))
    assert stopped[0] == stopped[1] == unknown[0]
    assert unknown[1] == capped[1]


def test_what_adds_nothing_is_counted_invariant():
    nan = float("nan")
    counts = RolloutCounts(
        [1, 5, 4, 0],
        [0, 2, 3, 0],
        first_start=1,
        drafted_rounds=[0, 2, 0, 0],
        surplus_least=np.zeros(4),
        surplus_most=np.zeros(4),
        finish=["stop"] * 4,
        inverse=[nan, 1 / 2, 1 / 3, nan],
        ratio_low=[nan, 2.0, 1.0, nan],
        ratio_high=[nan, 2.0, 1.0, nan],
    )
    left_out = {"vllm": 3, "sglang": 1}  # SGLang's completion tokens hold the one of a rollout without a round
    for name in set(CONVENTIONS) - {"edr"}:
        found = convention_length(name, counts)
        assert found.left_out == left_out.get(name, 2)
        assert found.exactness == "exact"
    assert convention_length("vllm", counts, [True, False, True, True]) == Interval(None, None, 3)
    assert convention_length("specforge", counts, np.zeros(4, dtype=bool)) == Interval(None, None, 0)
    assert convention_length("edr", RolloutCounts([], [], first_start=0)) == Interval(None, None, 0)


def test_every_summary_says_how_it_counts_invariant():
    for name, convention in CONVENTIONS.items():
        assert convention.name == name
        assert len(convention.summary) <= 2 * 120
        for said in (convention.engine, convention.first_token, convention.last_round, convention.bonus):
            assert said in convention.summary
        assert ("unweighted" in convention.summary) == (convention.pooling == "requests")
    assert len({convention.summary for convention in CONVENTIONS.values()}) == len(CONVENTIONS) == 8


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokens": [[3.0]]}, r"tokens: found shape \(1, 1\); allowed: \(1,\)"),
        ({"rounds": [1, 2]}, r"rounds: found shape \(2,\); allowed: \(1,\), one entry for each rollout"),
        ({"rounds": [-1]}, "rounds: rollout 0: found -1; allowed: finite numbers >= 0"),
        ({"inverse": [float("nan")]}, "inverse: rollout 0: found nan"),
        (
            {"surplus_least": [2], "surplus_most": [1]},
            "surplus_least: rollout 0: found 2; allowed: at most surplus_most",
        ),
        ({"finish": ["stop", "stop"]}, r"finish: found shape \(2,\)"),
    ],
)
def test_impossible_counts_are_refused_invariant(given, message):
    with pytest.raises(ValueError, match=message):
        RolloutCounts(**{"tokens": [3], "rounds": [2], "first_start": 1, **given})


def test_requests_that_cannot_be_met_are_refused_invariant():
    counts = RolloutCounts([3], [2], first_start=1)
    with pytest.raises(ValueError, match="convention: found 'vlm'; allowed: edr, deepspec, vllm"):
        convention_length("vlm", counts)
    with pytest.raises(ValueError, match="convention 'edr': found counts from first start 1; allowed: 0"):
        convention_length("edr", counts)
    with pytest.raises(ValueError, match="convention 'dflash': found no ratio_low, ratio_high; allowed: counts with"):
        convention_length("dflash", counts)
    with pytest.raises(ValueError, match=r"chosen: found int64 \(1,\); allowed: bool \(1,\)"):
        convention_length("sglang", counts, [0])
