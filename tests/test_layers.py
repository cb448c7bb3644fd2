"""Who may import whom."""

import ast
import subprocess
import sys
from pathlib import Path

import markov_spec

PACKAGE = Path(markov_spec.__file__).parent
LEVELS = {
    "arrays": 0, "metrics": 0, "latency": 0, "comparison": 0, "_jit": 0,
    "store": 1, "acceptance": 1, "chain": 1,
    "drafting": 2, "sources": 2, "certificates": 2, "simulation": 2, "objectives": 2,
    "evaluation": 3, "report": 4, "cli": 5, "__init__": 6, "__main__": 6,
}  # fmt: skip
FORBIDDEN = {("simulation", "chain")}
TORCH_IN = ("objectives", "sources", "chain/_torch", "chain/_triton")


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "markov_spec")


def test_imports_go_down_invariant():
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        inside = path.relative_to(PACKAGE).with_suffix("")
        module = inside.parts[0]
        for name in _imports(path):
            root, *rest = name.split(".")
            if root == "torch" and not str(inside).startswith(TORCH_IN):
                wrong.append(f"{inside}: torch")
            if root != "markov_spec" or not rest or rest[0] == module:
                continue
            if LEVELS[rest[0]] >= LEVELS[module] or (module, rest[0]) in FORBIDDEN:
                wrong.append(f"{inside}: {name}")
    assert not wrong


def test_import_is_light_invariant():
    heavy = "{'torch', 'transformers', 'altair', 'scipy.stats'}"
    code = f"import sys, markov_spec; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
