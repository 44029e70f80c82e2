"""``queuebell`` with few file descriptors, and no more to be had: ``few_files.py COUNT COMMAND ...``."""

from __future__ import annotations

import resource
import sys

from queuebell.command.main import main

if __name__ == "__main__":
    count = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
    sys.exit(main(sys.argv[2:]))
