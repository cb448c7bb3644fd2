"""Writing a store, and adding drafters to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from markov_spec.arrays import Array, Drafts
from markov_spec.store.encode import write_drafter
from markov_spec.store.install import whole_folder
from markov_spec.store.opening import drafters_home
from markov_spec.store.reader import Store, open_store, open_target
from markov_spec.store.schema import check_name
from markov_spec.store.streaming import StoreWriter
from markov_spec.store.values import Columns


def write_store(
    path: str | Path,
    *,
    rollout_ids: Sequence[str],
    prompt_ids: Sequence[str],
    tokens: Array,
    indptr: Array,
    log_p: Array,
    drafters: Mapping[str, Drafts] | None = None,
    metadata: Mapping[str, Any] | None = None,
    prompt_tokens: Sequence[Array] | None = None,
    benchmarks: Sequence[str] | None = None,
    finish_reasons: Sequence[str] | None = None,
    turns: Sequence[int] | None = None,
    parts: Mapping[str, Columns] | None = None,
    vocab: Mapping[int, str] | None = None,
    overwrite: bool = False,
) -> Store:
    """Write what the target said and what each drafter would have said to a new folder.

    The folder appears whole or not at all: a write that fails leaves nothing, or the store that stood there; one that
    is killed may leave a hidden folder beside it, too, which ``check_integrity`` notes. ``overwrite`` exchanges old
    and new in one step on Linux. Where the system or the file system cannot, a kill between its two renames leaves no
    store but the old one as ``.NAME.old-*``; opening says where.

    Parameters
    ----------
    path : path-like
        The store's folder.
    rollout_ids : sequence of str, (R,)
        Unique.
    prompt_ids : sequence of str, (R,)
    tokens : array of int, (N,)
        Generated token ids of all rollouts, one after the other.
    indptr : array of int64, (R+1,)
        Rollout ``i`` owns the positions ``indptr[i]:indptr[i+1]``.
    log_p : array of float, (N,)
        Log-probability (nats) of each generated token under the distribution the target decodes with. Floats are
        stored as float32; float64 is rounded; bfloat16 and float16 are noted as the metadata's ``dtype``, unless that
        is given.
    drafters : mapping of str to Drafts, optional
        By the name each of them carries; aligned by id as in ``add_drafter``.
    metadata : mapping, optional
        Known keys: ``target``, ``target_fingerprint``, ``tokenizer``, ``tokenizer_fingerprint`` (text), ``vocab_size``
        (above every token id), ``stop_ids`` (list of int), ``sampling`` (``temperature``, ``top_k``, ``top_p``,
        ``order``), ``logprob_space`` (``"raw"`` or ``"processed"``). Other keys are kept as they are.
    prompt_tokens : sequence of int arrays, (R,), optional
        What the target read before each rollout; empty by default.
    benchmarks : sequence of str, (R,), optional
        ``"all"`` by default.
    finish_reasons : sequence of str, (R,), optional
    turns : sequence of int, (R,), optional
    parts : mapping, optional
        The target's optional parts, a row per position: ``{"divergence": {"entropy": (N,), "varentropy": (N,)},
        "lists": {"ids": (N, M), "log_p": (N, M), "tail_mass": (N,)}}``. Lists are sorted by value, largest first; id
        -1 with ``-inf`` is no entry. They may cover some of the rollouts: see ``Store``.
    vocab : mapping of int to str, optional
        Text of tokens; the ids that occur in tokens, prompts or lists are kept.
    overwrite : bool
        Replace the store, with its drafters, that stands at ``path``.

    Returns
    -------
    Store

    Raises
    ------
    ValueError
        On values that are no log-probabilities, shapes that disagree, ids that differ, an existing ``path`` (if it
        appeared during the write, too), or a drafter of rule ``"match"`` without ``rank`` whose ``log_q`` is not 0 or
        ``-inf``.

    Examples
    --------
    >>> import tempfile, numpy as np, markov_spec as ms
    >>> drafts = ms.Drafts("quant5", "autoregressive", "rejection", np.log([.5, .8, .4]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ms.write_store(f"{folder}/run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.array([5, 6, 7]),
    ...         indptr=[0, 3], log_p=np.log([.5, .9, .4]), drafters={"quant5": drafts})
    ...     store.rollouts(), store.drafters
    (Rollouts(1 rollout, 3 tokens, 1 prompt, benchmarks: all), ('quant5',))
    """
    writer, drafters = StoreWriter(path, metadata=metadata, vocab=vocab, overwrite=overwrite), drafters or {}
    for name, drafts in drafters.items():
        if drafts.name != check_name(name):
            raise ValueError(f"drafters: {name!r} holds the drafts of {drafts.name!r}; allowed: one name for both")
    with writer:
        writer.add_rollouts(
            rollout_ids=rollout_ids,
            prompt_ids=prompt_ids,
            tokens=tokens,
            indptr=indptr,
            log_p=log_p,
            prompt_tokens=prompt_tokens,
            benchmarks=benchmarks,
            finish_reasons=finish_reasons,
            turns=turns,
            parts=parts,
        )
        for drafts in drafters.values():
            writer._add(drafts, whole=True)
    return open_store(writer.path)


def add_drafter(path: str | Path, drafts: Drafts | Iterable[Drafts], *, overwrite: bool = False) -> Store:
    """Add one drafter's drafts to a store, aligned by rollout id.

    The drafter appears whole or not at all, as a store does in ``write_store``.

    Parameters
    ----------
    path : path-like
        The store's folder; its own manifest is not rewritten.
    drafts : Drafts or iterable of Drafts
        With ``ids``, its rollouts may stand in any order; without, its rows stand in the store's order. Batches of one
        drafter, taken one at a time, each of the rollouts that come next, as in ``StoreWriter.add_drafts``.
    overwrite : bool
        Replace the drafter of that name, with its parts.

    Returns
    -------
    Store

    Raises
    ------
    ValueError
        If ids are missing, unknown or doubled, lengths differ, values are no log-probabilities, the drafter exists (if
        it appeared meanwhile, too), or its rule is ``"match"`` without ``rank`` and ``log_q`` is not 0 or ``-inf``.

    Examples
    --------
    >>> import tempfile, numpy as np, markov_spec as ms
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ms.write_store(f"{folder}/run", rollout_ids=["a", "b"], prompt_ids=["p", "p"],
    ...         tokens=np.array([5, 6, 7]), indptr=[0, 1, 3], log_p=np.log([.5, .9, .4]), drafters={})
    ...     swapped = ms.Drafts("ngram", "autoregressive", "rejection", np.array([-2., -3., -1.]), ids=["b", "a"])
    ...     ms.add_drafter(store.path, swapped).drafter("ngram").log_q
    array([-1., -2., -3.], dtype=float32)
    """
    store, whole = open_target(path), isinstance(drafts, Drafts)
    batches = iter((drafts,) if isinstance(drafts, Drafts) else drafts)
    first = next(batches, None)
    if first is None:
        raise ValueError("drafts: found no batch; allowed: one Drafts, or batches of them in the store's order")
    place = drafters_home(store.path) / check_name(first.name)
    taken = f"{store.path}: drafter {first.name!r} exists; pass overwrite=True to replace it"
    if place.is_file():
        raise ValueError(f"{place}: exists and is no folder, so it is not replaced")
    if place.exists() and not overwrite:
        raise ValueError(taken)
    ids, indptr = store.index
    place.parent.mkdir(exist_ok=True)
    with whole_folder(place, None if overwrite else taken) as folder:
        write_drafter(folder, first.name, chain([first], batches), whole, ids, np.diff(indptr), store.fingerprint)
        store._target.check_current()
    return open_store(store.path)
