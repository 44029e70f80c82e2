"""Start a command that ends when the process that started it does: ``leash.py PARENT SIGNAL COMMAND ...``.

A program on its own, without any import of ours, so that it costs a few milliseconds: it asks the kernel (Linux:
PR_SET_PDEATHSIG, which survives exec) and becomes the command. Elsewhere it only becomes the command.
"""

import contextlib
import os
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to ``PARENT`` and become ``COMMAND``; exit at once if the parent is gone already."""
    parent, signal_number, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if sys.platform == "linux":
        # Some Pythons come without ctypes; the demo then still ends its children, only not if it is killed itself.
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
