"""How rollouts are shared among threads."""

import numpy as np
import pytest

from markov_spec._jit import split_rollouts

INDPTR = np.concatenate(([0], np.cumsum([5, 0, 900, 1, 30, 40, 0, 20])))


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 50])
@pytest.mark.parametrize("nbytes", [1, 1 << 30])
def test_every_rollout_is_run_once_invariant(threads, nbytes):
    seen = []
    split_rollouts(lambda first, last: seen.extend(range(first, last)), INDPTR, threads=threads, nbytes=nbytes)
    assert sorted(seen) == list(range(8))


@pytest.mark.parametrize("bad", range(8))
def test_an_error_of_any_range_is_raised_invariant(bad):
    def run(first, last):
        if first <= bad < last:
            raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        split_rollouts(run, INDPTR, threads=4, nbytes=1 << 30)
