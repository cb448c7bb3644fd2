"""The store: a folder of Parquet parts, the one record that every answer is computed from."""

from markov_spec.store.integrity import Finding, check_integrity
from markov_spec.store.reader import Store, open_store
from markov_spec.store.schema import check_name
from markov_spec.store.streaming import StoreWriter
from markov_spec.store.writer import add_drafter, write_store

__all__ = [
    "Finding",
    "Store",
    "StoreWriter",
    "add_drafter",
    "check_integrity",
    "check_name",
    "open_store",
    "write_store",
]
