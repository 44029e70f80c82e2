"""Start a command that ends when its starter does: ``die_with_parent.py PARENT SIGNAL [--guard] COMMAND ...``.

A program of its own that imports only the standard library, so that it costs a few milliseconds. On Linux the kernel
sends SIGNAL at the starter's end (PR_SET_PDEATHSIG, which survives exec), and this process becomes the command. It does
so on other systems too, without that signal. With ``--guard`` it stays as the command's parent there, and wherever
SIGNAL is 0: its standard input is a pipe that the starter holds and never writes to, so that the pipe's end is the
starter's end, whatever killed it.
"""

import contextlib
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie a command to ``PARENT``; exit at once if the parent is gone already."""
    parent, number, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    guard = command[0] == "--guard"
    tied = _tie(number)
    if os.getppid() != parent:
        sys.exit(1)
    if guard and not tied:
        sys.exit(_guard(command[1:]))
    command = command[guard:]
    os.execv(command[0], command)  # noqa: S606 - the command is the starter's own


def _tie(number: int) -> bool:
    """Have the kernel signal this process when the thread that forked it ends; return whether it can."""
    if sys.platform != "linux" or not number:
        return False
    # Some Pythons have no ctypes, some C libraries no prctl.
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) == 0)
    return False


def _guard(command: list[str]) -> int:
    """Run the command until it or standard input ends."""
    import subprocess
    import threading

    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - as above

    def watch() -> None:
        while os.read(0, 4096):
            pass
        child.kill()

    signal.signal(signal.SIGTERM, lambda number, frame: child.terminate())
    threading.Thread(target=watch, name="starter's end", daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    main()
