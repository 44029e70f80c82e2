"""``python -m tests.simulation``."""

import sys

from tests.simulation.command import main

if __name__ == "__main__":
    sys.exit(main())
