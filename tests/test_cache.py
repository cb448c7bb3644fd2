"""What is kept of compiled kernels, where, and when it is compiled anew."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numba
import numpy as np
import pytest

import markov_spec
import markov_spec as ms
from markov_spec._jit import SHARED

PACKAGE = Path(markov_spec.__file__).parent

# Runs with a copy of the package; prints what was found, compiled, read from the cache and warned of.
SOLVE = """
import json, sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import numba, numpy as np
    import markov_spec as ms
    from numba.core.dispatcher import Dispatcher

    accept, indptr = np.linspace(0.1, 0.9, 60).reshape(20, 3), np.arange(0, 21, 5)
    found = {"solve": ms.solve(ms.RoundLaw(accept, indptr)).expected.tolist()}
"""
MORE = """
    log_p, log_q = (np.log(np.linspace(*ends, 20, dtype=np.float32)) for ends in ((0.5, 1), (0.2, 0.9)))
    drafts = ms.Drafts("auto", "autoregressive", "rejection", log_q)
    store = ms.write_store(
        sys.argv[1], rollout_ids=list("abcd"), prompt_ids=list("abcd"), tokens=np.arange(20), indptr=indptr,
        log_p=log_p, drafters={"auto": drafts},
    )
    evaluated = ms.evaluate(store, "auto")
    found |= {"K": evaluated.draft_length, "default": evaluated.to_frame()["expected_rounds"].to_list()}
    ragged = ms.RoundLaw(accept, indptr, np.arange(20) % 4)
    for law in (ragged, ms.round_law(log_p, log_q, indptr, rule="block", draft_length=2)):
        rounds = ms.solve(law, price=2.0, inverse=True)
        found |= {law.form: [rounds.price.tolist(), rounds.price_variance.tolist(), rounds.expected_inverse.tolist()]}
    found["mass"] = ms.round_distribution(ragged).mass.tolist()
    found["walk"] = ms.simulate(ragged, replicates=2, rng=np.random.default_rng(0)).tolist()
"""
TELL = """
modules = [module for name, module in sys.modules.items() if name.startswith("markov_spec")]
kernels = {k for module in modules for k in vars(module).values() if isinstance(k, Dispatcher)}
print(json.dumps({
    "found": found,
    "compiled": sorted(k.__name__ for k in kernels if k.stats.cache_misses),
    "read": sorted(k.__name__ for k in kernels if k.stats.cache_hits),
    "unknown": sorted(k.__name__ for k in kernels if k.signatures and not (k.stats.cache_misses or k.stats.cache_hits)),
    "warnings": [str(w.message) for w in caught if w.category is RuntimeWarning],
    "package": ms.__path__[0],
}))
"""


def _run(folder, code, **environment):
    kept = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "PYTHONPATH")}
    command = [sys.executable, "-c", code + TELL, str(folder / f"store-{len(list(folder.iterdir()))}")]
    done = subprocess.run(command, cwd=folder, env=kept | environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["package"] == str(folder / "markov_spec")
    return told


def _copy(folder):
    shutil.copytree(PACKAGE, folder / "markov_spec", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def _edit(file, old, new):
    text = file.read_text()
    assert text.count(old) == 1, f"{file}: {old!r} stands there {text.count(old)} times"
    file.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A copy of the package, its cache, and what a first process found that filled it."""
    folder = _copy(tmp_path_factory.mktemp("warm"))
    cache = {"NUMBA_CACHE_DIR": str(folder / "cache")}
    return folder, cache, _run(folder, SOLVE + MORE, **cache)


def test_second_process_compiles_nothing_invariant(warm):
    folder, cache, first = warm
    assert {"moments_of_eight", "backward", "priced", "ratio", "distribution", "rejection"} <= set(first["compiled"])
    assert not first["read"] and not first["unknown"] and not first["warnings"]
    second = _run(folder, SOLVE + MORE, **cache)
    assert second["compiled"] == second["unknown"] == second["warnings"] == []
    assert {"moments_of_eight", "backward", "priced", "ratio", "distribution", "rejection"} <= set(second["read"])
    assert second["found"] == first["found"]
    (kept,) = (folder / "cache").iterdir()
    assert re.fullmatch(re.escape(f"markov_spec-{version('markov-spec')}-") + "[0-9a-f]{8}", kept.name)


def test_case_100_changed_default_against_closed_form(warm):
    """Nothing is compiled for another default, since no kernel holds it."""
    folder, cache, first = warm
    (holder,) = (f for f in (folder / "markov_spec").rglob("*.py") if "DEFAULT_DRAFT_LENGTH = 5\n" in f.read_text())
    _edit(holder, "DEFAULT_DRAFT_LENGTH = 5\n", "DEFAULT_DRAFT_LENGTH = 3\n")
    changed = _run(folder, SOLVE + MORE, **cache)
    _edit(holder, "DEFAULT_DRAFT_LENGTH = 3\n", "DEFAULT_DRAFT_LENGTH = 5\n")
    assert changed["compiled"] == []
    log_p, log_q = (np.log(np.linspace(*ends, 20, dtype=np.float32)) for ends in ((0.5, 1), (0.2, 0.9)))
    for told, depth in ((first, 5), (changed, 3)):
        law = ms.round_law(log_p, log_q, np.arange(0, 21, 5), rule="rejection", draft_length=depth)
        assert told["found"]["K"] == depth
        np.testing.assert_allclose(told["found"]["default"], ms.solve(law).expected, rtol=1e-12)
    assert changed["found"]["default"] != first["found"]["default"]


def test_case_100_edited_helpers_against_closed_form(warm):
    """A helper in the kernel's own file, and an operation of another file that goes into it."""
    folder, cache, first = warm
    helper, shared = folder / "markov_spec/chain/_eight.py", folder / "markov_spec/chain/_lanes.py"
    _edit(helper, "same(1.0) + mean", "same(3.0) + mean")  # every round counts three times
    changed = _run(folder, SOLVE, **cache)
    assert "moments_of_eight" in changed["compiled"]
    np.testing.assert_allclose(changed["found"]["solve"], 3 * np.array(first["found"]["solve"]), rtol=1e-12)
    _edit(shared, '_lane_by_lane(operator.add, "fadd")', '_lane_by_lane(operator.add, "fsub")')
    assert _run(folder, SOLVE, **cache)["found"]["solve"] != changed["found"]["solve"]


def test_nowhere_to_cache_against_reference(warm, tmp_path):
    """Files stand where folders would be, so that nobody may write there, not even root."""
    folder = _copy(tmp_path)
    (folder / "markov_spec/__pycache__").write_text("")
    (folder / "home").write_text("")
    told = _run(folder, SOLVE, HOME=str(folder / "home"))
    (warning,) = told["warnings"]
    assert warning.startswith("markov_spec: no cache directory is writable, so kernels are compiled in every process")
    assert told["found"]["solve"] == warm[2]["found"]["solve"]


def _assigned(tree):
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (t.id for target in targets for t in ast.walk(target) if isinstance(t, ast.Name))


def test_kernels_use_nothing_of_other_files_invariant():
    """What a kernel takes from another file of the package is in a file that the path of the cache tells."""
    known = {name for file in SHARED for name in _assigned(ast.parse((PACKAGE / file).read_text()))}
    modules = [module for name, module in sys.modules.items() if name.startswith("markov_spec.")]
    kernels = {k for m in modules for k in vars(m).values() if isinstance(k, numba.core.dispatcher.Dispatcher)}
    assert len(kernels) >= 10
    for kernel in kernels:
        tree = ast.parse(Path(kernel.py_func.__code__.co_filename).read_text())
        imports = (
            node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module.startswith("markov_spec")
        )
        foreign = {alias.asname or alias.name for node in imports for alias in node.names}
        assert foreign & set(kernel.py_func.__code__.co_names) <= known, kernel
