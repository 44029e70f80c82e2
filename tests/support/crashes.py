"""Every state in which a process that is killed can leave a folder: it is stopped at each of its system calls."""

from __future__ import annotations

import ctypes
import os
import pathlib
import shutil
import subprocess
import sys

from tests.support.command import ROOT, environment

_TRACE_ME, _SYSCALL = 0, 24

_LED = """
import ctypes, os, signal, sys
{before}
assert ctypes.CDLL(None).ptrace(0, 0, None, None) == 0
os.kill(os.getpid(), signal.SIGSTOP)
{steps}
os._exit(0)
"""


def states(folder: pathlib.Path, copies: pathlib.Path, before: str, steps: str) -> list[pathlib.Path]:
    """Run ``steps`` in a process of one thread and return a copy of ``folder`` for each state that it went through.

    ``before`` is run first and unwatched; the folder is ``sys.argv[1]`` to both. Between two system calls nothing of
    a folder changes: a kill -9 at any moment leaves one of these states.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    program = _LED.format(before=before, steps=steps)
    process = subprocess.Popen([sys.executable, "-c", program, str(folder)], env=environment(), cwd=ROOT)
    seen: list[object] = []
    made: list[pathlib.Path] = []
    _, status = os.waitpid(process.pid, 0)
    assert os.WIFSTOPPED(status), "it could not be traced"
    while os.WIFSTOPPED(status):
        look = _look(folder)
        if not seen or look != seen[-1]:
            seen.append(look)
            made.append(copies / f"{len(made):04}")
            shutil.copytree(folder, made[-1])
        assert libc.ptrace(_SYSCALL, process.pid, None, None) == 0, os.strerror(ctypes.get_errno())
        _, status = os.waitpid(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return made


def _look(folder: pathlib.Path) -> list[tuple[str, int, int, int]]:
    found = []
    for path in sorted(folder.rglob("*")):
        facts = path.lstat()
        found.append((str(path), facts.st_ino, facts.st_size, facts.st_mtime_ns))
    return found
