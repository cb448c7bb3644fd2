"""Statistics of named vectors, one value for each rollout: recorded or measured, of markov_spec or of another tool.

Rollouts of one prompt are alike, so the unit that varies is the prompt: intervals and tests rest on sums over prompts.
"""

from markov_spec.comparison.compare import compare_vectors
from markov_spec.comparison.power import required_prompts
from markov_spec.comparison.ratio import RatioInterval, ratio_interval
from markov_spec.comparison.result import Comparison

__all__ = ["Comparison", "RatioInterval", "compare_vectors", "ratio_interval", "required_prompts"]
