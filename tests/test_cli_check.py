"""What a check ends with, and what it gives to programs."""

import json

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.cli import main


@pytest.fixture
def doubtful(tmp_path):
    """A store that no reader refuses, with a drafter that was recorded for another target."""
    drafts = ms.Drafts("d", "autoregressive", "rejection", np.log([0.5, 0.8]), metadata={"target_fingerprint": "b"})
    return ms.write_store(
        tmp_path / "run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.array([5, 6]), indptr=[0, 2],
        log_p=np.log([0.5, 0.9]), drafters={"d": drafts}, metadata={"target_fingerprint": "a"},
    )  # fmt: skip


def test_warnings_end_with_one_if_strict_invariant(doubtful, capsys):
    found = ms.store.check_integrity(doubtful.path)
    counts = {kind: sum(f.severity == kind for f in found) for kind in ("error", "warning", "note")}
    assert (counts["error"], counts["warning"]) == (0, 1)
    assert main(["check", str(doubtful.path)]) == 0
    assert main(["check", str(doubtful.path), "--strict"]) == 1
    capsys.readouterr()
    assert main(["check", str(doubtful.path), "--strict", "--format", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["counts"] == counts and len(told["findings"]) == len(found)
    assert main(["check", "data/demo", "--strict"]) == 0
