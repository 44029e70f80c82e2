"""``queuebell key`` and ``queuebell serve --auth``: keys made, used, listed and revoked while the bridge runs."""

from __future__ import annotations

import datetime
import json
import pathlib
import stat
import urllib.error
import urllib.request

import pytest

from queuebell.bridge.access import access_file
from queuebell.bridge.access.grants import Principal, Verb
from tests.support.command import perform, serving


def key(data: pathlib.Path, *words: str, code: int | None = 0) -> str:
    """Run one `queuebell key` command and return what it wrote, or what it complained of."""
    done = perform("key", *words, "--data", str(data), code=code)
    return (done.stdout or done.stderr).decode()


def created(data: pathlib.Path, name: str, *grants: str) -> str:
    """Make a key and return its secret."""
    done = perform("key", "create", name, *(f"--allow={grant}" for grant in grants), "--data", str(data))
    assert f"{name} is in {data / 'access.json'}".encode() in done.stderr
    return done.stdout.decode().strip()


def may(data: pathlib.Path, name: str) -> list[str]:
    """Return what a principal is granted on any queue at all."""
    listed = access_file.read(data / "access.json")
    principal = Principal(name, listed.principals[name])
    return [verb.value for verb in Verb if principal.may(verb)]


def asked_once(asked: urllib.request.Request) -> int:
    """Ask, and return the status."""
    try:
        with urllib.request.urlopen(asked, timeout=100) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_from_the_first_key_to_its_end(tmp_path: pathlib.Path) -> None:
    """What is granted works for every client command by the environment; what is revoked ends within a second."""
    told = perform("serve", "--auth", "--data", str(tmp_path), "--listen", "127.0.0.1:0", code=78).stderr.decode()
    assert "queuebell key create NAME" in told
    worker = created(tmp_path, "worker", "take=billing/*", "look=billing/orders")
    producer = created(tmp_path, "producer", "put=billing/orders", "ring=*")
    person = created(tmp_path, "person", "look=*", "operate=*", "manage=billing/*")
    path = tmp_path / "access.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not any(secret in path.read_text() for secret in (worker, producer, person))
    with serving(tmp_path, "--auth") as bridge:

        def client(secret: str, *words: str, code: int | None = 0) -> str:
            env = {
                "QUEUEBELL_BRIDGE": bridge.url,
                "QUEUEBELL_STORE": bridge.url,
                "QUEUEBELL_API_KEY": secret,
                "QUEUEBELL_DATA": str(tmp_path),
            }
            done = perform(*words, env=env, code=code)
            return (done.stdout + done.stderr).decode()

        client(producer, "queue", "put", "billing/orders", "one", "two")
        created(tmp_path, "odd", "take=billling/*")
        told = client(person, "check", code=None)
        assert "warning: odd: take=billling/* matches no queue known here: did you mean billing/*?" in told
        assert "-> if it is a typo, set all its grants again" in told
        key(tmp_path, "revoke", "odd")
        client(producer, "publish", "elsewhere/q")
        assert "'put' is not granted on billing/other" in client(producer, "queue", "put", "billing/other", "x", code=1)
        assert client(worker, "queue", "get", "billing/orders") == "one\n"
        assert "two" in client(worker, "queue", "peek", "billing/orders")
        assert "'operate' is not granted" in client(worker, "status", code=1)
        assert "billing/orders" in client(person, "status")
        assert "no worker is connected" in client(person, "explain", "billing/orders")
        client(person, "queue", "pause", "billing/orders")
        assert "requires a key" in client("", "queue", "put", "billing/orders", "x", code=1)
        id_ = json.loads(key(tmp_path, "list", "--json"))["keys"][1]["id"]
        assert key(tmp_path, "revoke", id_) == f"revoked {id_} of producer\n"
        asked = urllib.request.Request(
            f"{bridge.url}/v1/triggers/a/b", method="POST", headers={"Authorization": f"Bearer {producer}"}
        )
        while (status := asked_once(asked)) == 202:
            pass
        assert status == 401
        code, log = bridge.stop()
    assert code == 0
    assert "administered principal=person verb=manage queue=billing/orders" in log
    assert (
        "access refused: unknown key, missing permission or exceeded limit reason=forbidden principal=producer verb=put"
        in log
    )
    assert not any(secret in log for secret in (worker, producer, person))


def test_limits_and_certificates(tmp_path: pathlib.Path) -> None:
    """Set without a new key, shown with the grants, and taken away again; a certificate prints no secret."""
    created(tmp_path, "worker", "take=billing/*")
    key(tmp_path, "create", "guest", "--days", "2", "--allow", "put=billing/*")
    (guest,) = [each for each in json.loads(key(tmp_path, "list", "--json"))["keys"] if each["principal"] == "guest"]
    ends, begins = (datetime.datetime.fromisoformat(guest[name]) for name in ("expires", "created"))
    assert ends - begins == datetime.timedelta(days=2)
    key(tmp_path, "revoke", "guest")
    key(tmp_path, "change", "worker", "--limit", "requests_per_second=100", "--limit", "queues=0")
    told = key(tmp_path, "create", "worker", "--certificate", "DNS:w.internal", "--limit", "queues=none")
    assert told == "a certificate with DNS:w.internal now means worker\n"
    kept, certificate = json.loads(key(tmp_path, "list", "--json"))["keys"]
    assert (kept["limits"], kept["may"]) == ({"requests_per_second": 100.0}, {"take": ["billing/*"]})
    assert (certificate["id"], certificate["created"], certificate["expires"]) == ("DNS:w.internal", None, None)
    assert "requests_per_second=100" in key(tmp_path, "list")
    assert key(tmp_path, "revoke", "DNS:w.internal") == "revoked DNS:w.internal of worker\n"
    before = (tmp_path / "access.json").read_bytes()
    for words, why in (
        (["change", "worker"], "--allow, --limit or --certificate"),
        (["change", "wroker", "--limit", "queues=1"], "there is no such principal"),
        (["change", "worker", "--limit", "queues"], "it is LIMIT=N"),
        (["change", "worker", "--limit", "queue=1"], "'queue' is unknown"),
        (["create", "worker", "--limit", "connections=0"], "connections: Expected 'int' >= 1"),
        (["create", "worker", "--certificate", "DNS:*"], "without wildcards"),
        (["create", "worker", "--certificate", "DNS:x", "--days", "3"], "has its own expiry"),
    ):
        assert why in key(tmp_path, *words, code=None)
    assert (tmp_path / "access.json").read_bytes() == before


def test_a_principal_without_keys_is_told_of_and_may_nothing_if_one_says_so(tmp_path: pathlib.Path) -> None:
    """Its tokens and its accounts at the Azure endpoint need no key of it: whoever ends its keys hears of that."""
    created(tmp_path, "worker", "take=billing/*")
    id_ = json.loads(key(tmp_path, "list", "--json"))["keys"][0]["id"]
    told = key(tmp_path, "revoke", "worker").splitlines()
    assert told[0] == f"revoked {id_} of worker"
    assert "worker keeps its grants" in told[1]
    assert "queuebell key change worker --allow none" in told[1]
    assert may(tmp_path, "worker") == ["take"]
    assert "or none and nothing beside it" in key(
        tmp_path, "change", "worker", "--allow", "none", "--allow", "take=*", code=None
    )
    key(tmp_path, "change", "worker", "--allow", "none")
    assert may(tmp_path, "worker") == []
    created(tmp_path, "worker", "take=billing/*")
    key(tmp_path, "change", "worker", "--allow", "none")
    assert len(key(tmp_path, "revoke", "worker").splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["create", "x"], "it has no grants yet"),
        (["create", "x", "--allow", "put"], "it is VERB=PATTERN"),
        (["create", "x", "--allow", "put="], "it is VERB=PATTERN"),
        (["create", "x", "--allow", "puts=*"], "unknown verb 'puts'"),
        (["create", "x", "--allow", "put=billing"], "a pattern is"),
        (["create", "x", "--allow", "operate=a/b"], "its pattern must be '*'"),
        (["create", "-x", "--allow", "put=*"], "usage"),
        (["create", "x y", "--allow", "put=*"], "a principal's name"),
        (["create", "x", "--allow", "put=*", "--days", "0"], "days: above 0"),
        (["create", "x", "--allow", "put=*", "--days", "nan"], "days: above 0"),
        (["revoke", "x"], "cannot read"),
        (["list"], "cannot read"),
    ],
)
def test_typos_change_nothing(tmp_path: pathlib.Path, words: list[str], why: str) -> None:
    assert why in key(tmp_path, *words, code=None)
    assert not (tmp_path / "access.json").exists()


def test_what_does_not_go_together(tmp_path: pathlib.Path) -> None:
    """--access and --trust-brokers without --auth do nothing, and say so; brokers go together with it."""
    created(tmp_path, "worker", "take=*")
    nobody = {"QUEUEBELL_DATA": str(tmp_path), "QUEUEBELL_BRIDGE": "http://127.0.0.1:1"}
    for more, why in (
        ({"QUEUEBELL_TRUST_BROKERS": "true"}, "trust_brokers: has no effect without auth"),
        ({"QUEUEBELL_ACCESS": str(tmp_path / "access.json")}, "access: has no effect without auth"),
        ({"QUEUEBELL_AUTH": "true", "QUEUEBELL_LISTEN": "0.0.0.0:0"}, "--auth, --tls-cert, --tls-key"),
        ({"QUEUEBELL_TLS_CLIENT_CA": "ca.pem"}, "tls_client_ca: has no effect without auth"),
        ({"QUEUEBELL_AUTH": "true", "QUEUEBELL_TLS_CLIENT_CA": "ca.pem"}, "HTTPS needs both"),
        ({"QUEUEBELL_TLS_CLIENT": "required"}, "tls_client: needs tls_client_ca"),
    ):
        done = perform("check", env={**nobody, **more}, code=78)
        assert why in done.stderr.decode()
    for more in ({"QUEUEBELL_NATS": "nats://127.0.0.1:1"}, {"QUEUEBELL_MQTT": "mqtt://127.0.0.1:1"}):
        done = perform("check", env={**nobody, "QUEUEBELL_AUTH": "true", **more})
        assert b"configuration: ok" in done.stdout


def test_what_is_changed_is_what_a_broker_is_told(tmp_path: pathlib.Path) -> None:
    """`key change` changes it as `key create` does; limits and certificates are the bridge's own, and no broker's."""
    created(tmp_path, "worker", "take=a/x")
    before = {name: key(tmp_path, name) for name in ("nats", "mqtt")}
    key(tmp_path, "change", "worker", "--limit", "connections=1", "--certificate", "DNS:w.internal")
    assert {name: key(tmp_path, name) for name in ("nats", "mqtt")} == before
    key(tmp_path, "change", "worker", "--allow", "look=a/x")
    assert "topic read queuebell/wake/a/x" in key(tmp_path, "mqtt")
    assert "queuebell.hello" not in key(tmp_path, "nats").partition('"worker"')[2]


def test_nats_is_told_what_each_may(tmp_path: pathlib.Path) -> None:
    """Each with an inbox and a password variable of its own, below the prefix that the settings have."""
    for name in ("a-b", "a_b", "A-b"):
        created(tmp_path, name, "ring=x/y")
    told = key(tmp_path, "nats", "--prefix", "site7")
    users = [line.strip() for line in told.splitlines() if "user:" in line]
    assert users == [
        'user: "queuebell-bridge", password: $NATS_PASSWORD_QUEUEBELL_BRIDGE',
        'user: "A-b", password: $NATS_PASSWORD_A_B',
        'user: "a-b", password: $NATS_PASSWORD_A_B_2',
        'user: "a_b", password: $NATS_PASSWORD_A_B_3',
    ]
    assert 'publish: ["site7.trigger.x.y", "_INBOX.a-b.>"]' in told
    assert 'subscribe: ["_INBOX.a-b.>"]' in told
    assert told.count("allow_responses") == 1, "only the bridge answers others"
    by_setting = perform("key", "nats", "--data", str(tmp_path), env={"QUEUEBELL_PREFIX": "site7"})
    assert by_setting.stdout.decode() == told
