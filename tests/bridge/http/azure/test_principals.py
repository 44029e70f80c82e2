"""Who may do what at the Azure endpoint of a bridge that asks for keys: every operation with every verb.

The table is written by hand, and held against the operations that there are. A shared access signature is asked beside
the account's key: it narrows what the principal may, and never widens it.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import itertools
import pathlib
import xml.etree.ElementTree as ET
from typing import Any

import msgspec
import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.queue import (
    AccountSasPermissions,
    QueueSasPermissions,
    QueueServiceClient,
    ResourceTypes,
    generate_account_sas,
    generate_queue_sas,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.contract.errors import ConfigurationError
from bridge.core.grants import Verb
from bridge.core.keys import AccessList
from bridge.http.azure.accounts import EMULATOR_KEY, AccountSettings
from bridge.http.azure.operation import Operation
from bridge.observe.facts import AccessRefused, Administered, Fact
from bridge.service.access import access_file
from bridge.service.access.watch import AccessWatch
from bridge.service.bridge import Bridge
from queuebell.assembly import assemble
from queuebell.settings import Settings
from tests.support.access import written
from tests.support.azure import ACCOUNT, KEY, Front, connection_string, fault, message, serving_azure, signed_headers
from tests.support.certificates import write_self_signed
from tests.support.web import Client

GRANTED, OTHER = "granted", "other"
MATRIX: dict[Operation, tuple[Verb, str, str]] = {
    Operation.LIST_QUEUES: (Verb.LOOK, "GET", "?comp=list"),
    Operation.GET_SERVICE_PROPERTIES: (Verb.OPERATE, "GET", "?restype=service&comp=properties"),
    Operation.SET_SERVICE_PROPERTIES: (Verb.OPERATE, "PUT", "?restype=service&comp=properties"),
    Operation.GET_SERVICE_STATS: (Verb.OPERATE, "GET", "?restype=service&comp=stats"),
    Operation.CREATE_QUEUE: (Verb.MANAGE, "PUT", "/{queue}"),
    Operation.GET_QUEUE_METADATA: (Verb.LOOK, "GET", "/{queue}?comp=metadata"),
    Operation.SET_QUEUE_METADATA: (Verb.MANAGE, "PUT", "/{queue}?comp=metadata"),
    Operation.GET_QUEUE_ACL: (Verb.MANAGE, "GET", "/{queue}?comp=acl"),
    Operation.SET_QUEUE_ACL: (Verb.MANAGE, "PUT", "/{queue}?comp=acl"),
    Operation.PUT_MESSAGE: (Verb.PUT, "POST", "/{queue}/messages"),
    Operation.GET_MESSAGES: (Verb.TAKE, "GET", "/{queue}/messages"),
    Operation.PEEK_MESSAGES: (Verb.LOOK, "GET", "/{queue}/messages?peekonly=true"),
    Operation.UPDATE_MESSAGE: (Verb.TAKE, "PUT", "/{queue}/messages/1?popreceipt=x&visibilitytimeout=1"),
    Operation.DELETE_MESSAGE: (Verb.TAKE, "DELETE", "/{queue}/messages/1?popreceipt=x"),
    Operation.CLEAR_MESSAGES: (Verb.MANAGE, "DELETE", "/{queue}/messages"),
    Operation.DELETE_QUEUE: (Verb.MANAGE, "DELETE", "/{queue}"),
}
EVERYTHING = AccountSasPermissions(
    read=True, write=True, delete=True, list=True, add=True, create=True, update=True, process=True
)
LATER = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)


def body_of(operation: Operation) -> bytes:
    """What a request cannot be without."""
    return message("m") if operation is Operation.PUT_MESSAGE else b""


async def prepared(bridge: Bridge) -> None:
    """Both queues, each with a message."""
    for queue in (GRANTED, OTHER):
        await bridge.store.put(f"{ACCOUNT}/{queue}", [b"m"])


def test_every_operation_has_the_verb_of_the_table() -> None:
    """An operation that is added without one, or with another one, is found here."""
    assert {operation: row[0] for operation, row in MATRIX.items()} == {each: each.verb for each in Operation}


@pytest.mark.parametrize("way", ["key", "sas"])
@pytest.mark.parametrize("verb", list(Verb), ids=[verb.value for verb in Verb])
async def test_each_operation_with_each_verb(verb: Verb, way: str, tmp_path: pathlib.Path) -> None:
    """Over the wire: who has the verb on the queue is served, everybody else is refused before anything is done."""
    path = tmp_path / "access.json"
    written(path, {"p": {verb.value: ["*" if verb is Verb.OPERATE else f"{ACCOUNT}/{GRANTED}"]}})
    sas = generate_account_sas(ACCOUNT, KEY, ResourceTypes(True, True, True), EVERYTHING, LATER)
    by_key_alone = (Operation.GET_QUEUE_ACL, Operation.SET_QUEUE_ACL)
    for operation, queue in itertools.product(MATRIX, (GRANTED, OTHER)):
        wanted, method, target = MATRIX[operation]
        async with Bridge() as bridge, AccessWatch(path) as watch:
            async with serving_azure(bridge, access=watch, principal="p") as front:
                await prepared(bridge)
                asked = target.replace("{queue}", queue)
                if way == "sas":
                    asked += ("&" if "?" in asked else "?") + sas
                answer = await front.ask(method, asked, body_of(operation), sign=way == "key")
                of_account = "{queue}" not in target
                if way == "sas" and operation in by_key_alone:
                    assert fault(answer) == (403, "AuthorizationPermissionMismatch")
                elif verb is wanted and (queue == GRANTED or of_account):
                    assert answer.status not in (401, 403), (operation, queue, answer)
                else:
                    assert fault(answer) == (403, "AuthorizationFailure"), (operation, queue)
                    names = await bridge.store.queues("", "", 10)
                    assert names == [f"{ACCOUNT}/{GRANTED}", f"{ACCOUNT}/{OTHER}"]
                    for name in names:
                        depth = await bridge.store.depth(name)
                        assert depth is not None
                        assert (depth.visible, depth.invisible) == (1, 0)


async def test_a_list_names_only_what_may_be_seen(tmp_path: pathlib.Path) -> None:
    """The place where a page ends tells of no other queue either."""
    path = tmp_path / "access.json"
    written(path, {"p": {"look": [f"{ACCOUNT}/b-one", f"{ACCOUNT}/b-three", "elsewhere/*"]}})
    async with Bridge() as bridge, AccessWatch(path) as watch:
        async with serving_azure(bridge, access=watch, principal="p") as front:
            for name in ("a-one", "b-one", "b-three", "b-two", "c-one"):
                await bridge.store.put(f"{ACCOUNT}/{name}", [b"m"])
            first = ET.fromstring((await front.ask("GET", "?comp=list&maxresults=1")).body)
            marker = first.findtext("NextMarker")
            rest = ET.fromstring((await front.ask("GET", f"?comp=list&marker={marker}")).body)
            names = [[each.text for each in page.iter("Name")] for page in (first, rest)]
            assert (names, marker) == ([["b-one"], ["b-three"]], f"/{ACCOUNT}/b-one")


async def test_a_refusal_tells_nothing_of_what_is_there(tmp_path: pathlib.Path) -> None:
    """A queue that is not granted answers as one that is not there, and a principal of nobody may do nothing."""
    path = tmp_path / "access.json"
    written(path, {"p": {"take": [f"{ACCOUNT}/{GRANTED}"]}})

    def nobody(found: AccessList) -> AccessList:
        return AccessList()

    async with Bridge() as bridge, AccessWatch(path) as watch:
        async with serving_azure(bridge, access=watch, principal="p") as front:
            await prepared(bridge)
            there, absent = [
                (await front.ask("GET", f"/{name}/messages")).body.replace(name.encode(), b"NAME")
                for name in (OTHER, "absent")
            ]
            assert there == absent
            assert (await front.ask("GET", f"/{GRANTED}/messages")).status == 200
            access_file.change(path, nobody)
            async with asyncio.timeout(100):
                while (await front.ask("GET", f"/{GRANTED}/messages")).status != 403:
                    await asyncio.sleep(0.01)


async def test_a_body_that_is_on_its_way_when_its_grant_is_taken_away(tmp_path: pathlib.Path) -> None:
    """It is refused once it has come, however slowly that is: nothing was put."""
    path = tmp_path / "access.json"
    written(path, {"p": {"put": [f"{ACCOUNT}/{GRANTED}"], "take": [f"{ACCOUNT}/{GRANTED}"]}})

    def less(found: AccessList) -> AccessList:
        found.principals["p"] = {"take": [f"{ACCOUNT}/{GRANTED}"]}
        return found

    async with Bridge() as bridge, AccessWatch(path) as watch:
        async with serving_azure(bridge, access=watch, principal="p") as front:
            await prepared(bridge)
            target, body = f"/{ACCOUNT}/{GRANTED}/messages", message("late")
            headers = signed_headers("POST", target, body, {}, front.wall())
            lines = [f"POST {target} HTTP/1.1", f"Host: 127.0.0.1:{front.server.port}", f"Content-Length: {len(body)}"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            client = Client(*await asyncio.open_connection("127.0.0.1", front.server.port))
            await client.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body[:-9])
            # What was sent first is being read when this one is answered.
            assert (await front.ask("GET", f"/{GRANTED}/messages")).status == 200
            access_file.change(path, less)
            watch.look()
            await client.send(body[-9:])
            assert fault(await client.reply()) == (403, "AuthorizationFailure")
            await client.close()
            depth = await bridge.store.depth(f"{ACCOUNT}/{GRANTED}")
            assert depth is not None
            assert (depth.visible, depth.invisible) == (0, 1)
            assert bridge.gate.rule.bytes == 0


async def test_refusals_and_administration_are_told(tmp_path: pathlib.Path) -> None:
    """With the account's principal once its signature has proven it; an unproven one is nobody."""
    path = tmp_path / "access.json"
    written(path, {"p": {"manage": [f"{ACCOUNT}/{GRANTED}"]}})
    told: list[Fact] = []
    async with Bridge() as bridge, AccessWatch(path) as watch:
        bridge.observe(told.append)
        async with serving_azure(bridge, access=watch, principal="p") as front:
            await front.ask("PUT", f"/{GRANTED}")
            await front.ask("GET", f"/{GRANTED}/messages")
            await front.ask("GET", f"/{GRANTED}/messages", sign=False)
            sas = generate_queue_sas(ACCOUNT, GRANTED, KEY, QueueSasPermissions(read=True), LATER)
            await front.ask("DELETE", f"/{GRANTED}/messages?{sas}", sign=False)
    mine = f"{ACCOUNT}/{GRANTED}"
    assert [fact for fact in told if isinstance(fact, AccessRefused | Administered)] == [
        Administered("p", "manage", mine, "127.0.0.1", "CreateQueue"),
        AccessRefused("forbidden", "p", "take", mine, "127.0.0.1"),
        AccessRefused("unauthenticated", "", "", mine, "127.0.0.1"),
        AccessRefused("forbidden", "p", "manage", mine, "127.0.0.1"),
    ]


async def test_the_sdk_as_a_producer_and_nothing_else(tmp_path: pathlib.Path) -> None:
    """Puts go through; whatever else it tries is told in the words of the service."""
    path = tmp_path / "access.json"
    written(path, {"producer": {"put": [f"{ACCOUNT}/{GRANTED}"]}})

    def work(front: Front) -> list[tuple[int | None, Any]]:
        with QueueServiceClient.from_connection_string(connection_string(front.server.port), retry_total=0) as sdk:
            queue = sdk.get_queue_client(GRANTED)
            queue.send_message("one")
            refused: list[tuple[int | None, Any]] = []
            tries: list[Any] = [
                queue.receive_message,
                queue.peek_messages,
                queue.clear_messages,
                queue.get_queue_properties,
                queue.delete_queue,
                lambda: sdk.create_queue("another"),
                lambda: sdk.get_queue_client(OTHER).send_message("two"),
                lambda: list(sdk.list_queues()),
                sdk.get_service_properties,
            ]
            for each in tries:
                with pytest.raises(HttpResponseError) as told:
                    each()
                refused.append((told.value.status_code, told.value.error_code))
            return refused

    async with Bridge() as bridge, AccessWatch(path) as watch:
        async with serving_azure(bridge, access=watch, principal="producer") as front:
            await prepared(bridge)
            assert set(await asyncio.to_thread(work, front)) == {(403, "AuthorizationFailure")}
            depth = await bridge.store.depth(f"{ACCOUNT}/{GRANTED}")
            assert depth is not None
            assert depth.visible == 2


_odd = st.one_of(
    st.binary(max_size=12).map(lambda raw: raw.translate(None, b"\r\n ")),
    st.sampled_from([b"SharedKey devstoreaccount1:AA==", b"SharedKeyLite devstoreaccount1:\xff", b"Bearer " + b"x" * 40,
                     KEY.encode(), b"%ff", b"%00", b"%EF%BF%BE", b"..", b"x" * 9000]),
)  # fmt: skip
_names = st.sampled_from([b"sig", b"sv", b"se", b"st", b"sp", b"ss", b"srt", b"si", b"sip", b"spr", b"sr", b"skoid"])


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.lists(st.tuples(st.dictionaries(_names, _odd, max_size=8), st.lists(_odd, max_size=2)), min_size=4, max_size=8)
)
def test_whatever_is_shown_without_a_good_signature(
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
    requests: list[tuple[dict[bytes, bytes], list[bytes]]],
) -> None:
    """Over the wire, of an account whose principal may do everything: refused, nothing breaks, and no key is told."""
    path = tmp_path / "access.json"
    written(path, {"p": {verb.value: ["*"] for verb in Verb}})

    async def run() -> None:
        async with Bridge() as bridge, AccessWatch(path) as watch:
            async with serving_azure(bridge, access=watch, principal="p") as front:
                await prepared(bridge)
                for query, headers in requests:
                    asked = b"&".join(b"%b=%b" % pair for pair in query.items())
                    head = b"".join(b"Authorization: %b\r\n" % value for value in headers)
                    reply = await front.send(
                        b"DELETE /%b/granted/messages?%b HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n%b\r\n"
                        % (ACCOUNT.encode(), asked, head)
                    )
                    assert 400 <= reply.status < 500, (query, headers, reply)
                depth = await bridge.store.depth(f"{ACCOUNT}/{GRANTED}")
                assert depth is not None and depth.visible == 1

    asyncio.run(run())
    assert not [record for record in caplog.records if record.exc_info or record.levelname == "ERROR"]
    assert KEY not in caplog.text
    caplog.clear()


OWN_KEY = base64.b64encode(b"k" * 64).decode()
TABLE = AccountSettings(name="billing", key=OWN_KEY)


def settings_of(tmp_path: pathlib.Path, *accounts: AccountSettings, **more: Any) -> Settings:
    """A bridge with keys and the Azure endpoint."""
    file = tmp_path / "access.json"
    written(file, {"billing": {"put": ["billing/*"]}, "other": {"put": ["billing/*"]}})
    return Settings(
        data=str(tmp_path), auth=True, azure_queue="127.0.0.1:0", azure_account=accounts, access=str(file), **more
    )


@pytest.mark.parametrize(
    ("accounts", "why"),
    [
        ((TABLE,), ""),
        ((AccountSettings(name="acme", key=OWN_KEY, principal="billing"),), ""),
        ((TABLE, AccountSettings(name="billing", key=OWN_KEY, principal="billing")), ""),
        ((AccountSettings(name="acme", key=OWN_KEY),), "has none called 'acme': .*queuebell key create acme"),
        ((AccountSettings(name="billing", key=OWN_KEY, principal="biling"),), "has none called 'biling'"),
        ((AccountSettings(name="billing", key=OWN_KEY, principal=""),), "has none called ''"),
        ((TABLE, AccountSettings(name="billing", key=OWN_KEY, principal="other")), "keys are for one principal"),
        ((AccountSettings(name="billing", key=EMULATOR_KEY),), "everybody knows it; make another: openssl rand"),
    ],
)
def test_the_principal_of_an_account(accounts: tuple[AccountSettings, ...], why: str, tmp_path: pathlib.Path) -> None:
    """It is one of the access file, by the account's name unless another is said; whatever else is refused at start."""
    settings = settings_of(tmp_path, *accounts)
    if not why:
        assemble(settings, in_memory=True)
        return
    with pytest.raises(ConfigurationError, match=why) as refused:
        assemble(settings, in_memory=True)
    assert OWN_KEY not in str(refused.value)


def test_tls_of_the_other_port_protects_nothing_here(tmp_path: pathlib.Path) -> None:
    """Keys and TLS at the bridge's own port do not let the Azure endpoint be reached by others in the clear."""
    cert, key = (str(each) for each in write_self_signed(tmp_path))
    settings = settings_of(tmp_path, TABLE, listen="0.0.0.0:0", tls_cert=cert, tls_key=key)
    assemble(settings, in_memory=True)
    public = {"azure_queue": "0.0.0.0:0", "listen": "0.0.0.0:0", "tls_cert": cert, "tls_key": key}
    with pytest.raises(ConfigurationError, match="an address that others can reach"):
        assemble(settings_with(settings, public), in_memory=True)
    assemble(settings_with(settings, {**public, "azure_cert": cert, "azure_key": key}), in_memory=True)


def settings_with(settings: Settings, changes: dict[str, str]) -> Settings:
    """The same with other values."""
    return msgspec.structs.replace(settings, **changes)
