"""The machine that figures were measured on, and what a process on it uses."""

from __future__ import annotations

import datetime
import os
import platform
import sqlite3
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def describe(folder: Path) -> list[tuple[str, str]]:
    """Return what a reader needs to know; ``folder`` is where the databases stand."""
    return [
        ("date", datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")),
        ("cores", str(os.cpu_count())),
        ("load when it began (1 and 5 minutes)", "{:.2f}, {:.2f}".format(*os.getloadavg())),
        ("scheduling", _scheduling()),
        ("processor", _processor()),
        ("memory", _memory()),
        ("kernel", f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("file system of the databases", _file_system(folder)),
        ("Python", f"{platform.python_implementation()} {platform.python_version()}"),
        ("SQLite", sqlite3.sqlite_version),
        *((name, _version(name)) for name in ("aiohttp", "msgspec", "nats-py", "paho-mqtt")),
    ]


def cpu_seconds(pid: int) -> float | None:
    """Return the processor time that ``pid`` has used, or None where it cannot be known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def starved_seconds(pid: int) -> float | None:
    """Return how long the threads of a process were ready to run and had no core, all together; None if unknown."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return sum(int((task / "schedstat").read_text().split()[1]) for task in tasks) / 1e9
    except (OSError, IndexError, ValueError):
        return None


def resident_bytes(pid: int) -> int | None:
    """Return the resident memory of ``pid``, or None where it cannot be known."""
    try:
        text = Path(f"/proc/{pid}/status").read_text("ascii", "replace")
    except OSError:
        try:
            return (
                int(subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, check=True).stdout) << 10
            )
        except (OSError, ValueError, subprocess.CalledProcessError):
            return None
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("VmRSS"))


def raise_file_limit() -> int:
    """Take all file descriptors that the system allows, and return how many."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        return soft
    return 1 << 20 if hard == resource.RLIM_INFINITY else hard


def _scheduling() -> str:
    """Say whether the bench was given more than its share, as on a machine that is busy with other things."""
    if not hasattr(os, "sched_getscheduler") or os.sched_getscheduler(0) == os.SCHED_OTHER:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        return f"nice {nice}, for the machine was busy with other things" if nice < 0 else "normal"
    return "real-time priority, for the machine was busy with other things"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.1f} GiB"
    except (ValueError, OSError):
        return "unknown"


def _file_system(folder: Path) -> str:
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text("utf-8", "replace").splitlines()]
    except OSError:
        return "unknown"
    here = str(folder.resolve())
    found = [m for m in mounts if here == m[1] or here.startswith(m[1].rstrip("/") + "/")]
    return max(found, key=lambda m: len(m[1]))[2] if found else "unknown"
