"""All that talks to models or foreign files.

Recording (``record``: load models, generate rollouts, score drafters, write the store) needs the ``hf`` extra;
importing and exporting does not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from markov_spec.sources.exchange import (
    Divergence,
    Fault,
    ImportReport,
    LineError,
    ScoreComparison,
    compare_scores,
    export_jsonl,
    export_parquet,
    first_divergence,
    import_jsonl,
)

if TYPE_CHECKING:
    from markov_spec.sources.drafters import BlockDrafter
    from markov_spec.sources.recorder import record
    from markov_spec.sources.rescore import record_drafters
    from markov_spec.sources.vocabulary import DraftVocabulary

__all__ = [
    "BlockDrafter",
    "Divergence",
    "DraftVocabulary",
    "Fault",
    "ImportReport",
    "LineError",
    "ScoreComparison",
    "compare_scores",
    "export_jsonl",
    "export_parquet",
    "first_divergence",
    "import_jsonl",
    "record",
    "record_drafters",
]

_NEED_TORCH = {
    "BlockDrafter": "markov_spec.sources.drafters",
    "DraftVocabulary": "markov_spec.sources.vocabulary",
    "record": "markov_spec.sources.recorder",
    "record_drafters": "markov_spec.sources.rescore",
}


def __getattr__(name: str) -> Any:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_NEED_TORCH[name]), name)
