"""The commands on a store as such, where something is wrong with it."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.cli import main


def written(path, rule="rejection"):
    return ms.write_store(
        path, rollout_ids=["a"], prompt_ids=["p"], tokens=np.array([5, 6]), indptr=[0, 2], log_p=np.log([0.5, 0.9]),
        drafters={"d": ms.Drafts("d", "autoregressive", rule, np.log([0.4, 0.8]))},
    )  # fmt: skip


@pytest.mark.parametrize("command", ["evaluate", "info", "proxies"])
def test_only_copy_of_a_store_is_named_invariant(tmp_path, capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "400")
    path = written(tmp_path / "run").path
    path.rename(tmp_path / ".run.old-5-deadbeef")
    assert main([command, str(path)]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert f"an interrupted replacement left the old one at {tmp_path}/.run.old-5-deadbeef" in told
    assert main([command, str(tmp_path / "other")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["check", str(path), "--clean"]) == 0
    assert main([command, str(path)]) == 0


def test_check_warns_of_a_rule_that_is_none_invariant(tmp_path, capsys):
    for rule, words in (("rejection", []), ("rejektion", ["warning"])):
        path = written(tmp_path / rule, rule).path
        assert main(["check", str(path), "--format", "json"]) == 0
        found = [f for f in json.loads(capsys.readouterr().out)["findings"] if f["severity"] != "note"]
        assert [f["severity"] for f in found] == words
    assert found[0]["where"] == "drafters/d/manifest.json"
    assert found[0]["message"].startswith("rule: found 'rejektion'; allowed: rejection, block, match, ")
    assert main(["evaluate", str(path)]) == 1
    assert main(["evaluate", str(path), "--rule", "block"]) == 0


def test_path_that_is_no_utf_8_is_printed_escaped_invariant(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff"
    written(os.fsdecode(path))
    commands = [("check", path, 0), ("info", path, 0), ("evaluate", path, 0), ("info", path + b"x", 2)]
    for command, place, code in commands:
        done = subprocess.run(
            [sys.executable, "-m", "markov_spec", command, place],
            capture_output=True, timeout=120, env={**os.environ, "PYTHONIOENCODING": "utf-8", "COLUMNS": "400"},
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert b"Traceback" not in done.stderr
        if command != "evaluate":
            assert b"\\udcff" in done.stdout + done.stderr
