"""How every kernel of the package is compiled, and how its rollouts are shared among threads."""

from __future__ import annotations

import functools
import itertools
import os
import tempfile
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

Function = TypeVar("Function", bound=Callable)
CONFIG: Any = numba.config
INLINE_BYTES = 1 << 20
SHARED = ("_jit.py", "arrays/checks.py", "chain/_lanes.py")  # what goes into the kernels of other files


def _cache_parents() -> list[Path]:
    parents = [Path(CONFIG.CACHE_DIR)] if CONFIG.CACHE_DIR else []
    parents.append(Path(__file__).parent / "__pycache__")
    try:
        parents.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"))
    except RuntimeError:  # no home directory can be determined
        pass
    return parents


@functools.cache
def _cache_folder() -> str | None:
    # numba keys its cache by the kernel's own file and its time stamp, which wheels may fix: hence the version and the
    # shared files in the path.
    package = Path(__file__).parent
    shared = zlib.crc32(b"".join((package / name).read_bytes() for name in SHARED))
    try:
        release = version("markov-spec")
    except PackageNotFoundError:
        release = "source"
    for parent in _cache_parents():
        folder = parent / f"markov_spec-{release}-{shared:08x}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            continue
        return str(folder)
    warnings.warn(
        "markov_spec: no cache directory is writable, so kernels are compiled in every process; "
        "set NUMBA_CACHE_DIR to a writable directory",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


def kernel(function: Function) -> Function:
    """Compile a serial kernel: nopython, nogil, IEEE division, cached on disk where a directory is writable."""
    folder = _cache_folder()
    before = CONFIG.CACHE_DIR
    CONFIG.CACHE_DIR = folder or before  # numba takes the place of its cache from here, at decoration
    try:
        compiled: Any = numba.njit(nogil=True, error_model="numpy", cache=folder is not None)(function)
    finally:
        CONFIG.CACHE_DIR = before
    return cast(Function, compiled)


def _available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def split_rollouts(
    run: Callable[[int, int], object], indptr: npt.NDArray[np.int64], *, threads: int | None, nbytes: int
) -> None:
    """Call ``run(first, last)`` over contiguous ranges of rollouts of about equal numbers of positions.

    The pool lives for this call only, so that nothing survives into a forked process. Each rollout is computed by one
    call and written to its own rows: results do not depend on the number of threads.

    Parameters
    ----------
    run : callable
        Releases the GIL; writes only what belongs to rollouts ``first <= i < last``.
    indptr : ndarray of int64, (R+1,)
    threads : int or None
        None means the cores that this process may use.
    nbytes : int
        Size of the data read; below 1 MB everything runs in the calling thread.

    Raises
    ------
    ValueError
        If ``threads`` is not a positive integer.
    """
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int | np.integer) or threads < 1):
        raise ValueError(f"threads: found {threads!r}; allowed: None or an integer >= 1")
    rollouts = indptr.size - 1
    count = int(threads or _available_cores())
    if nbytes < INLINE_BYTES or count == 1:
        run(0, rollouts)
        return
    cuts = np.searchsorted(indptr, np.linspace(0, indptr[-1], count + 1)[1:-1])
    bounds = np.unique(np.concatenate(([0], cuts, [rollouts]))).tolist()
    with ThreadPoolExecutor(count) as pool:
        others = [pool.submit(run, first, last) for first, last in itertools.pairwise(bounds[1:])]
        run(bounds[0], bounds[1])  # one range in this thread: a thread less to start
        for other in others:
            other.result()
