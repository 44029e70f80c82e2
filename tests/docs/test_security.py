"""docs/security.md as its reader follows it: two hosts with keys and TLS, the proxies' files, the unit of systemd."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.snippets import Snippet, snippets
from tests.readme.user import User
from tests.support.processes import READY, ROOT, Processes, Service

PAGE = ROOT / "docs" / "security.md"
UNITS = ROOT / "deploy" / "systemd"
UNIT = UNITS / "queuebell.service"
EXPOSURE_MOST = 15
"""Tenths of what `systemd-analyze security` says; below 20 is what it calls OK at most."""
WORKER = """
import asyncio
from queuebell import Listener

async def handle(message):
    print("handled", message.text(), flush=True)

asyncio.run(Listener("https://localhost:8470", "billing/orders", handle).run())
"""
# What stands in for curl: its options on that page and no others.
CURL = """#!{python}
import ssl, sys, urllib.request
words = sys.argv[1:]
assert words[0] == "--cacert" and words[2:8:2] == ["-H", "-H", "-d"], words
headers = dict(each.split(": ", 1) for each in words[3:7:2])
request = urllib.request.Request(words[8], words[7].encode(), headers)
with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=words[1])) as answer:
    print(answer.status, flush=True)
"""

BLOCKS = [block for block in snippets() if block.page == PAGE]


def block_with(word: str) -> Snippet:
    """Return the one block of shell that has a word."""
    (found,) = (each for each in BLOCKS if word in each.text and each.language == "sh")
    return found


@pytest.mark.system
async def test_two_hosts(processes: Processes, tmp_path: Path) -> None:
    """Keys, certificate, bridge, worker and curl, word for word; the name of the other host is that of this one."""
    user = User(processes, tmp_path)
    user.words["bridge.internal"] = "localhost"
    del user.environment["QUEUEBELL_LISTEN"]
    curl = tmp_path / ".venv" / "bin" / "curl"
    curl.write_text(CURL.format(python=sys.executable))
    curl.chmod(0o755)
    user.save("worker.py", WORKER)
    listed = await user.run(block_with("queuebell key list").text)
    assert len(listed) == 4
    for name in ("worker", "producer", "me"):
        assert (tmp_path / f"{name}.key").stat().st_mode & 0o077 == 0
    await user.run(block_with("openssl req").text)
    serve: Service = await user.start(f"exec {block_with('serve --listen').text}", "serve", Service)
    await serve.line(READY)
    assert "the files cannot be used" not in serve.errors and "expired" not in serve.errors
    lines = block_with("python worker.py").text.splitlines()
    worker: Service = await user.start("\n".join([*lines[:-1], f"exec {lines[-1]}"]), "worker", Service)
    assert await user.run(block_with("curl --cacert").text) == ["201"]
    await worker.line("handled order 17")


async def test_behind_a_proxy(processes: Processes, tmp_path: Path) -> None:
    """The command starts a bridge that asks for keys on loopback, under the proxy's name."""
    user = User(processes, tmp_path)
    await user.run("queuebell key create p --allow 'look=*'")
    serve: Service = await user.start(f"exec {block_with('serve --auth --allowed').text}", "serve", Service)
    await serve.line(READY)


def test_the_proxies_files() -> None:
    """Each block is closed, and says what a session, an event stream and a large body need."""
    (nginx,) = (each.text for each in BLOCKS if each.language == "nginx")
    (caddy,) = (each.text for each in BLOCKS if each.language == "caddy")
    for text in (nginx, caddy):
        assert text.count("{") == text.count("}") > 1
        assert "127.0.0.1:8470" in text and "bridge.internal" in text
    for line in filter(None, map(str.strip, nginx.splitlines())):
        assert re.fullmatch(r"[a-z_]+( [^;{}]+)?(;| \{)|\}", line), line
    for needed in (
        "proxy_http_version 1.1",
        "proxy_set_header Upgrade $http_upgrade",
        "proxy_set_header Connection $http_connection",
        "proxy_set_header Host $host",
        "proxy_buffering off",
    ):
        assert f"{needed};" in nginx
    assert "flush_interval -1" in caddy


def test_the_unit_is_what_the_page_installs() -> None:
    """Its files, its user and its directories are those of the commands, and no secret stands in it."""
    unit, install = UNIT.read_text("utf-8"), block_with("useradd").text
    assert str(UNIT.relative_to(ROOT)) in install
    for setting, word in (
        ("User=queuebell", "queuebell\n"),
        (
            "LoadCredential=queuebell.toml:/etc/queuebell/queuebell.toml",
            "install -m 0600 queuebell.toml /etc/queuebell/",
        ),
    ):
        assert f"{setting}\n" in unit
        assert word in install
    assert "--data /var/lib/queuebell" in block_with("key create me --data").text
    assert (
        "Environment=QUEUEBELL_DATA=/var/lib/queuebell\nExecStart=/opt/queuebell/bin/queuebell serve --config" in unit
    )


@pytest.mark.system
@pytest.mark.parametrize("name", ["queuebell.service", "queuebell-scaler.service", "queuebell-worker@.service"])
def test_the_unit_is_taken_by_systemd(name: str, tmp_path: Path) -> None:
    """By its own checks: the settings are known, and what is left open is little."""
    program = Path(sys.executable)
    here = tmp_path / name.replace("@.", "@1.")
    here.write_text((UNITS / name).read_text("utf-8").replace("/opt/queuebell/bin/queuebell", str(program)))
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(here)], capture_output=True, text=True, check=False, timeout=100
    )
    assert (verified.returncode, str(here) in verified.stderr) == (0, False), verified.stderr
    wrong = tmp_path / "wrong.service"
    wrong.write_text(here.read_text().replace("NoNewPrivileges=", "NoNewPriviliges="))
    found = subprocess.run(
        ["systemd-analyze", "verify", str(wrong)], capture_output=True, text=True, check=False, timeout=100
    )
    assert "NoNewPriviliges" in found.stderr

    def judged(unit: Path) -> int:
        return subprocess.run(
            ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MOST}", str(unit)],
            capture_output=True,
            check=False,
            timeout=100,
        ).returncode

    assert judged(here) == 0
    open_ = tmp_path / "open.service"
    open_.write_text(re.sub(r"^(Protect|CapabilityBounding).*\n", "", here.read_text(), flags=re.MULTILINE))
    assert judged(open_) != 0
