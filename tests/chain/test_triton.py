"""The CUDA kernels without CUDA: by Triton's interpreter, and compiled for GPUs that are not there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import markov_spec

ROOT = Path(markov_spec.__file__).parents[1]

INTERPRETED = """
import pytest
import torch
import markov_spec as ms
from markov_spec.chain import _torch_solve, _triton
from tests.chain import padded
from tests.chain.test_torch_law import check_same, law_of

for dtype in (torch.float64, torch.float32):
    for shape in padded.SHAPES:
        padded.check_device_path(_triton, shape, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_torch_solve, "kernels", lambda device: _triton)
        for is_padded in (True, False):
            arrays, law = law_of(dtype, is_padded, True)
            for first_start in (0, 2):
                found = _torch_solve.moments(law, first_start, torch.tensor(1.5).double())
                wanted = ms.solve(arrays, first_start=first_start, price=1.5)
                check_same(found, wanted, is_padded, {"rtol": 1e-12, "atol": 1e-12})
print("equal")
"""

COMPILED = """
import inspect
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from markov_spec.chain import _triton

TYPES = {"begin": "*i64", "size": "*i64", "first_start": "i32", "gain": "*fp64", "out": "*fp64"}
for kernel in (_triton._occupancy, _triton._value):
    for cells, depth, width in (("*fp32", 16, 32), ("*fp64", 7, 8), ("*fp32", 0, 1), ("*fp32", 40, 64)):
        given = {"DEPTH": depth, "WIDTH": width}
        signature = {name: TYPES.get(name, cells) for name in kernel.arg_names}
        signature.update(dict.fromkeys(given, "constexpr"))
        source = ASTSource(fn=kernel, signature=signature, constexprs=given)
        built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=_triton.LAUNCH)
        assert built.asm["cubin"]
        assert "atom" not in built.asm["ptx"] and "fma.rn.f64" not in built.asm["ptx"]
        assert built.metadata.shared == 0, built.metadata.shared  # all on registers
print("compiled")
"""


@pytest.mark.parametrize(("code", "interpret", "said"), [(INTERPRETED, "1", "equal"), (COMPILED, "0", "compiled")])
def test_kernels_against_reference(code, interpret, said, tmp_path):
    setting = os.environ | {"TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(tmp_path)}
    run = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", code]
    done = subprocess.run(run, cwd=ROOT, env=setting, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == said


def test_gpu_check_runs_to_its_end_invariant(tmp_path):
    setting = os.environ | {"TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path)}
    run = [sys.executable, "-m", "tests.gpu.check_cuda"]
    done = subprocess.run(run, cwd=ROOT, env=setting, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout and "cost form / cross-entropy" in done.stdout
