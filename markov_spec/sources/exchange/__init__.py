"""Exchange with other tools: a store from JSON lines and back, and to flat Parquet. Needs no torch."""

from markov_spec.sources.exchange.exporter import export_jsonl
from markov_spec.sources.exchange.faults import Fault, LineError
from markov_spec.sources.exchange.flat import export_parquet
from markov_spec.sources.exchange.importer import ImportReport, import_jsonl
from markov_spec.sources.exchange.scores import Divergence, ScoreComparison, compare_scores, first_divergence

__all__ = [
    "Divergence",
    "Fault",
    "ImportReport",
    "LineError",
    "ScoreComparison",
    "compare_scores",
    "export_jsonl",
    "export_parquet",
    "first_divergence",
    "import_jsonl",
]
