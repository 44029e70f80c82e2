"""Ends what a scaler has started when the scaler is gone: ``guard.py GRACE``.

A program on its own, without any import of Queuebell: the scaler starts one. It reads ``+PID`` for each process group
that the scaler starts and ``-PID`` for each that has ended. The end of its standard input is the end of the scaler,
whatever killed it. A worker whose listener runs stops by itself then; GRACE seconds later the groups that are left are
killed.
"""

import os
import signal
import sys
import time

_LOOK_S = 0.2


def main() -> None:
    """Read until the scaler ends, then wait for its groups and kill the rest."""
    grace = float(sys.argv[1])
    groups: set[int] = set()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    end = time.monotonic() + grace
    while groups and time.monotonic() < end:
        time.sleep(_LOOK_S)
        groups = {group for group in groups if _signal(group, 0)}
    for group in groups:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    """Send a signal to a group; return whether any process is left in it."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # a process is left that became another user
    return True


if __name__ == "__main__":
    main()
