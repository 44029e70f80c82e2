"""A disk of a few MiB that only its own processes see: ``tmpfs.py hold BYTES FOLDER`` and ``tmpfs.py PID COMMAND ...``.

The one mounts it in a namespace of its own and holds that until its input ends, the other is ``queuebell`` in there.
Nobody needs to be root for it where the kernel gives namespaces to everybody.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import sys

from queuebell.command.main import main

_libc = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS, _NEW_USERS = 0x00020000, 0x10000000
_KINDS = ("user", "mnt")


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def hold(size: str, folder: str) -> None:
    """Mount it over the folder and wait."""
    user, group = os.getuid(), os.getgid()
    _checked(_libc.unshare(_NEW_USERS | _NEW_MOUNTS))
    own = pathlib.Path("/proc/self")
    (own / "setgroups").write_text("deny")
    (own / "uid_map").write_text(f"0 {user} 1")
    (own / "gid_map").write_text(f"0 {group} 1")
    _checked(_libc.mount(b"queuebell", folder.encode(), b"tmpfs", 0, f"size={size}".encode()))
    sys.stdout.write("mounted\n")
    sys.stdout.flush()
    sys.stdin.read()


def enter(holder: str) -> None:
    """Go where the holder is."""
    for kind in _KINDS:
        with pathlib.Path(f"/proc/{holder}/ns/{kind}").open("rb") as place:
            _checked(_libc.setns(place.fileno(), 0))


if __name__ == "__main__":
    if sys.argv[1] == "hold":
        hold(*sys.argv[2:])
    else:
        enter(sys.argv[1])
        sys.exit(main(sys.argv[2:]))
