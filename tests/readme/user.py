"""Somebody who follows a page word for word: the programs they have, the files they save, the commands they type."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import sys
import sysconfig
from pathlib import Path

from tests.support.processes import PATIENCE_S, Processes, Service, environment, free_port

PORTS = (
    "8470", "8471", "8472", "4222", "4223", "4224", "6222", "6223", "6224", "1883", "8000", "5432", "6379", "10001",
)  # fmt: skip

# What stands in for curl on a machine without it: the options of the README and no others.
CURL = """#!{python}
import ssl, sys, urllib.error, urllib.request
words, headers, body, method, url, fails, trusted = sys.argv[1:], {{}}, None, None, None, True, None
while words:
    word = words.pop(0)
    if word == "-H":
        name, _, value = words.pop(0).partition(":")
        headers[name] = value.strip()
    elif word == "-d":
        body = words.pop(0).encode()
    elif word == "-X":
        method = words.pop(0)
    elif word == "--cacert":
        trusted = ssl.create_default_context(cafile=words.pop(0))
    elif word in ("-fsS", "-sS"):
        fails = word == "-fsS"
    else:
        url = word
try:
    with urllib.request.urlopen(urllib.request.Request(url, body, headers, method=method), context=trusted) as answer:
        sys.stdout.buffer.write(answer.read())
except urllib.error.HTTPError as error:
    if fails:
        raise
    sys.stdout.buffer.write(error.read())
"""

# An environment is there already, and nothing is fetched: what a page installs must be among what is installed here.
PYTHON3 = """#!{python}
import os, sys
if sys.argv[1:] != ["-m", "venv", "venv"]:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
PIP = """#!{python}
import importlib.metadata, re, sys
assert sys.argv[1] == "install", sys.argv
for word in sys.argv[2:]:
    name = re.match("[A-Za-z-]+", "queuebell" if word[0] == "." else word)[0]
    if word != "-e":
        importlib.metadata.version(name)
"""


class User:
    """A user in a checkout of their own: an empty folder with the ``venv`` that the pages make."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self.processes = processes
        self.folder = folder
        self.ports = {port: str(free_port()) for port in PORTS}
        # Addresses of other hosts, and of clouds, in the words of a page, and what stands for each here.
        self.words: dict[str, str] = {}
        self.url = self.ported("http://127.0.0.1:8470")
        bin_ = folder / "venv" / "bin"
        bin_.mkdir(parents=True)
        (bin_ / "activate").write_text(f"PATH={shlex.quote(str(bin_))}:$PATH; export PATH\n")
        self._script(bin_ / "queuebell", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m queuebell "$@"\n')
        self._script(bin_ / "python", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        self._script(bin_ / "python3", PYTHON3.format(python=sys.executable))
        self._script(bin_ / "pip", PIP.format(python=sys.executable))
        self._script(bin_ / "uvicorn", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m uvicorn "$@"\n')
        # What the extra `broker` brings with it.
        nats = Path(sysconfig.get_path("scripts")) / "nats-server"
        if nats.exists():
            self._script(bin_ / "nats-server", f'#!/bin/sh\nexec {shlex.quote(str(nats))} "$@"\n')
        if shutil.which("curl") is None:
            self._script(bin_ / "curl", CURL.format(python=sys.executable))
        # The one change to the page's words are ports, which may be taken; the defaults of the command are the same.
        self.environment = environment(
            PATH=f"{bin_}{os.pathsep}{os.environ['PATH']}",
            QUEUEBELL_LISTEN=self.ported("127.0.0.1:8470"),
            QUEUEBELL_BRIDGE=self.url,
            QUEUEBELL_STORE=self.url,
        )

    def ported(self, text: str) -> str:
        """Return a page's words with addresses that are there, and ports that are free, here."""
        for word, here in self.words.items():
            text = text.replace(word, here)
        return re.sub(rf"\b({'|'.join(PORTS)})\b", lambda found: self.ports[found[1]], text)

    async def start(self, text: str, name: str, kind: type = Service):  # type: ignore[no-untyped-def]
        """Run a piece of shell in the folder, as a user with an activated environment."""
        script = text if "activate" in text else f". venv/bin/activate\n{text}"
        return await self.processes.start(
            "/bin/sh", "-ec", self.ported(script), name=name, kind=kind, cwd=self.folder, env=self.environment
        )

    async def run(self, text: str, within_s: float = PATIENCE_S) -> list[str]:
        """Run a piece of shell to its end, which must be a good one, and return its output."""
        program = await self.start(text, text.split()[0])
        assert await program.ended(within_s) == 0, (text, program.errors)
        return list(program.lines)

    def save(self, name: str, text: str) -> str:
        (self.folder / name).write_text(self.ported(text), encoding="utf-8")
        return name

    @staticmethod
    def _script(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
