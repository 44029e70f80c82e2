"""A stand-in for ``systemctl`` and the systemd behind it: a program for PATH that takes the real one's words only.

No systemd runs here. What is held to is its form: the options in their place, names of units in full, properties
by name, its output (``Key=value``, one block a unit, only for units that are loaded, in an order of its own, no line
for a job that is not there) and its exit codes. A job that was taken on is done at the next ``show``, as systemd does
it some time after ``--no-block`` has returned.
"""

from __future__ import annotations

import contextlib
import fcntl
import marshal
import pathlib
import sys
from collections.abc import Iterator
from typing import Any, Final

TEMPLATE: Final = "queuebell-worker"
PROGRAM: Final = r"""#!{python} -IS
import fcntl, marshal, os, sys, time  # and no more: each call starts a Python
HOME = {home!r}

def read():
    with open(HOME + "/state", "rb") as file:
        return marshal.load(file)

if read()["hangs"]:
    time.sleep(600)
lock = open(HOME + "/lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
state = read()
words = sys.argv[1:]
with open(HOME + "/calls", "a") as calls:
    print("\0".join(words), file=calls)

def leave(code, text=""):
    with open(HOME + "/new", "wb") as file:
        marshal.dump(state, file)
    os.rename(HOME + "/new", HOME + "/state")
    if text:
        print(text, file=sys.stderr)
    sys.exit(code)

def misused(what):
    with open(HOME + "/misused", "w") as file:
        file.write(what + ": " + " ".join(words))
    leave(1, "misused: " + what)

user = words[:1] == ["--user"]
verb, rest = words[user], words[user + 1:]
if "--" not in rest:
    misused("no -- before the names")
options, names = rest[:rest.index("--")], rest[rest.index("--") + 1:]
if state["away"]:
    leave(1, "System has not been booted with systemd as init system (PID 1). Can't operate.\n"
             "Failed to connect to bus: Host is down")
units = state["units"]
if verb == "show":
    known = {{"Id", "ActiveState", "Job", "Result", "ExecMainStatus", "StatusText"}}
    asked = [option for option in options if option.startswith("--property=")]
    if len(asked) != 1 or set(options) - set(asked) != {{"--no-pager"}}:
        misused("options of show")
    wanted = set(asked[0].partition("=")[2].split(","))
    if not wanted <= known:
        misused("unknown property")
    blocks = []
    (pattern,) = names
    head, star, tail = pattern.partition("*")
    if not head.endswith("@") or tail != ".service":
        misused("pattern")
    for name in list(units):
        unit = units[name]
        if not (name.startswith(head) and name.endswith(tail)):
            continue
        job = unit.get("job")
        shown = {{"StatusText": unit["text"], "Result": unit["result"], "Id": name, "ActiveState": unit["state"],
                 "ExecMainStatus": str(unit["code"])}}
        if job:
            shown["Job"] = "4711"
        blocks.append("".join(f"{{key}}={{value}}\n" for key, value in shown.items() if key in wanted))
        if job == "start":
            fails = state["fails"]
            unit.update(job=None, state="failed" if fails else "active", code=fails,
                        result="exit-code" if fails else "success", text="" if fails else state["text"])
        elif job == "stop":
            unit.update(job=None, state="deactivating", text="")
        elif unit["state"] in ("deactivating", "inactive"):
            del units[name]
    sys.stdout.write("\n".join(blocks))
    leave(0)
if verb in ("start", "stop"):
    if sorted(options) != ["--no-ask-password", "--no-block"] or not names:
        misused("options of " + verb)
    if state["denied"]:
        leave(1, f"Failed to {{verb}} {{names[0]}}: Interactive authentication required.\n"
                 f"See system logs and 'systemctl status {{names[0]}}' for details.")
    for name in names:
        if not (name.endswith(".service") and name.count("@") == 1 and not set(name) & set("*? /")):
            misused("a unit's name")
        if name.partition("@")[0] != {template!r}:
            leave(5, f"Failed to {{verb}} {{name}}: Unit {{name}} not found.")
    for name in names:
        if verb == "start":
            fresh = {{"state": "inactive", "result": "success", "code": 0, "text": ""}}
            unit = units.setdefault(name, fresh)
            if unit["state"] in ("inactive", "failed"):
                unit.update(fresh, job="start")
        elif name in units and units[name]["state"] in ("active", "activating", "inactive"):
            units[name]["job"] = "stop"
    leave(0)
misused("verb")
"""


class Systemctl:
    """The program in ``folder``, and what it thinks that runs."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        folder.mkdir()
        program = folder / "systemctl"
        program.write_text(PROGRAM.format(python=sys.executable, home=str(folder), template=TEMPLATE))
        program.chmod(0o755)
        state = {"units": {}, "hangs": False, "away": False, "denied": False, "fails": 0, "text": ""}
        (folder / "state").write_bytes(marshal.dumps(state))

    def _read(self) -> dict[str, Any]:
        read: dict[str, Any] = marshal.loads((self.folder / "state").read_bytes())
        return read

    @contextlib.contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self._read()
            yield state
            (self.folder / "new").write_bytes(marshal.dumps(state))
            (self.folder / "new").rename(self.folder / "state")

    def be(self, **how: Any) -> None:
        """Have it be ``away``, ``denied`` or ``hangs``; starts ``fails`` with that exit code, or say ``text``."""
        with self._changed() as state:
            state.update(how)

    def put(self, number: int, state: str = "active", text: str = "", code: int = 0) -> None:
        """Have an instance be so, as if by somebody else's hand."""
        unit = {"state": state, "result": "exit-code" if code else "success", "code": code, "text": text}
        with self._changed() as whole:
            whole["units"][f"{TEMPLATE}@{number}.service"] = unit

    @property
    def live(self) -> list[int]:
        """The numbers of all that run or are to."""
        return sorted(
            int(name.partition("@")[2].partition(".")[0])
            for name, unit in self._read()["units"].items()
            if unit["state"] == "active" or unit.get("job") == "start"
        )

    def calls(self, verb: str) -> list[list[str]]:
        """Return the words of each call of this verb."""
        calls = [line.split("\0") for line in (self.folder / "calls").read_text().splitlines()]
        return [words for words in calls if verb in words[:2]]

    def check(self) -> None:
        """Raise where it was called in a way that the real one would not take."""
        misused = self.folder / "misused"
        assert not misused.exists(), misused.read_text()
