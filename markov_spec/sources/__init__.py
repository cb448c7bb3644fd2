"""All that talks to models: load them, generate rollouts, score drafters, write the store. Needs the ``hf`` extra."""

from markov_spec.sources.drafters import BlockDrafter
from markov_spec.sources.recorder import record

__all__ = ["BlockDrafter", "record"]
