"""``python -m tests.simulation``: `tests.simulation.cli`."""

import sys

from tests.simulation.cli import main

if __name__ == "__main__":
    sys.exit(main())
