"""``python -m markov_spec``: the command line."""

import sys

from markov_spec.cli import main

sys.exit(main())
