"""Start a command that ends when the process that started it does: ``leash.py PARENT COMMAND ...``.

A program on its own, without any import of ours, so that it costs a few milliseconds. On Linux it asks the kernel
(PR_SET_PDEATHSIG, which survives exec) and becomes the command. Elsewhere, or with ``--guard`` before PARENT, it stays
as the command's own parent: its standard input is a pipe whose other end the starter holds and never writes to, so that
its end is the starter's end, whatever killed it.
"""

import contextlib
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie a command to ``PARENT``; exit at once if the parent is gone already."""
    words = sys.argv[1:]
    guard = words[0] == "--guard"
    parent, command = int(words[guard]), words[guard + 1 :]
    tied = not guard and _tie()
    if os.getppid() != parent:
        sys.exit(1)
    if tied:
        os.execv(command[0], command)  # noqa: S606 - the command is the starter's own
    sys.exit(_guard(command))


def _tie() -> bool:
    """Have the kernel kill this process when the thread that forked it ends; say whether that can be had."""
    if sys.platform != "linux":
        return False
    # Some Pythons come without ctypes, some C libraries without prctl.
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) == 0)
    return False


def _guard(command: list[str]) -> int:
    """Run the command until it ends by itself, or standard input does."""
    import subprocess
    import threading

    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - likewise

    def watch() -> None:
        while os.read(0, 4096):
            pass
        child.kill()

    signal.signal(signal.SIGTERM, lambda number, frame: child.terminate())
    threading.Thread(target=watch, name="leash", daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    main()
