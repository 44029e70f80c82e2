"""What every actuator of a scaler promises, asked of each kind; and what each kind promises beside.

No systemd and no Kubernetes runs here: `tests.support.systemctl` and `tests.support.kubernetes_api` stand in for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pathlib
import random
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from bridge.contract.errors import ConfigurationError
from listeners.scaling.actuators import program
from listeners.scaling.actuators.base import Actuator, NotSeen, StartFailed
from listeners.scaling.actuators.command import CommandActuator
from listeners.scaling.actuators.kubernetes import KubernetesActuator, _address, _pause
from listeners.scaling.actuators.output import OUTPUT
from listeners.scaling.actuators.process import ProcessActuator
from listeners.scaling.actuators.program import call
from listeners.scaling.actuators.systemd import PROPERTIES, SystemdActuator
from listeners.scaling.actuators.watch import Watch
from tests.support.actuators import (
    KINDS,
    OUTLIVE,
    SAYS_READY,
    Heard,
    OfCommands,
    OfPods,
    OfUnits,
    World,
    count,
    python,
    world_of,
)
from tests.support.certificates import Authority
from tests.support.kubernetes_api import GRANTED, cluster, said
from tests.support.processes import PATIENCE_S

HURRIED: dict[str, float] = {"within_s": 0.2}
HURRIED_UNITS: dict[str, float] = {"within_s": 2.0}
"""That it gives up is what is shown."""


@pytest.fixture(params=KINDS)
async def world(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    """The world of each kind."""
    async with world_of(request.param, tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
async def units(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OfUnits]:
    """That of systemd."""
    async with world_of("systemd", tmp_path, monkeypatch) as made:
        assert isinstance(made, OfUnits)
        yield made


@pytest.fixture
async def pods(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OfPods]:
    """That of Kubernetes."""
    async with world_of("kubernetes", tmp_path, monkeypatch) as made:
        assert isinstance(made, OfPods)
        yield made


@contextlib.asynccontextmanager
async def opened(actuator: Actuator) -> AsyncIterator[Heard]:
    """Open an actuator for somebody who notes what it tells, and close it."""
    heard = Heard()
    await actuator.open(heard)
    try:
        yield heard
    finally:
        await actuator.close()


async def test_what_is_started_runs_until_it_is_stopped(world: World) -> None:
    """Its ids are its own, it says ready, and each end is told of once; what outlives its scaler goes on after it."""
    actuator = world.make()
    async with opened(actuator) as heard:
        ids = await actuator.start(2)
        assert len(set(ids)) == 2
        assert sorted(actuator.running()) == sorted(ids)
        await heard.until(count("ready", 2))
        await actuator.look()
        await actuator.stop([ids[0], "nobody"])
        await heard.until(count("ended", 1))
        assert actuator.running() == [ids[1]]
        third = await actuator.start(1)
        assert third[0] not in ids
        await actuator.close()
        await actuator.close()
        ended = sorted(str(each[1]) for each in heard.news if each[0] == "ended")
        if actuator.outlives:
            assert (ended, world.outside()) == ([ids[0]], 2)
        else:
            assert (ended, actuator.running()) == (sorted([*ids, *third]), [])
    assert str(actuator)


async def test_a_start_that_cannot_be_leaves_nothing(world: World) -> None:
    """And says why."""
    actuator = world.hopeless()
    async with opened(actuator):
        with pytest.raises(StartFailed, match="no-such"):
            await actuator.start(2)
        assert actuator.running() == []


@pytest.mark.parametrize("kind", OUTLIVE)
async def test_what_runs_already_is_found(kind: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever opens after a scaler that was killed: its own ids for each, ready when they are, and ended as any."""
    async with world_of(kind, tmp_path, monkeypatch) as world:
        killed = world.make()
        async with opened(killed):
            await killed.start(3)
        actuator = world.make()
        async with opened(actuator) as heard:
            found = actuator.running()
            assert (len(set(found)), heard.news) == (3, [])
            await heard.until(count("ready", 3))
            (new,) = await actuator.start(1)
            assert new not in found
            await actuator.stop(found)
            await heard.until(count("ended", 3))
            assert (actuator.running(), world.outside()) == ([new], 1)


@pytest.mark.parametrize("kind", OUTLIVE)
async def test_what_cannot_be_seen_at_first_is_found_later(
    kind: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is started beside it: who asks hears that it is to be counted anew."""
    async with world_of(kind, tmp_path, monkeypatch) as world:
        world.look_s = 3600.0
        first = world.make()
        async with opened(first):
            await first.start(2)
        _away(world, True)
        actuator = world.make()
        async with opened(actuator) as heard:
            assert actuator.running() == []
            with pytest.raises(NotSeen) as unseen:
                await actuator.look()
            assert actuator.unseen == str(unseen.value)
            with pytest.raises(StartFailed):
                await actuator.start(1)
            _away(world, False)
            with pytest.raises(StartFailed, match="counted anew"):
                await actuator.start(1)
            assert [each[0] for each in heard.news] == ["found"]
            assert (len(actuator.running()), world.outside()) == (2, 2)
            assert len(await actuator.start(1)) == 1
            assert world.outside() == 3
            await actuator.look()
            assert actuator.unseen is None


def _away(world: World, away: bool) -> None:
    if isinstance(world, OfUnits):
        world.systemctl.be(away=away)
    elif isinstance(world, OfPods):
        world.api.granted = set() if away else set(GRANTED)


@pytest.mark.parametrize("kind", [ProcessActuator, CommandActuator])
def test_nothing_to_start_is_refused(kind: Callable[[list[str]], Actuator]) -> None:
    """Before anything runs."""
    with pytest.raises(ConfigurationError, match="command"):
        kind([])


async def test_a_command_is_told_how_many_there_should_be(tmp_path: pathlib.Path) -> None:
    """In its words and in its environment; at last 0."""
    world = OfCommands(tmp_path)
    actuator = world.make()
    async with opened(actuator):
        ids = await actuator.start(2)
        await actuator.start(3)
        await actuator.stop(ids[:1])
    assert world.told.read_text().split("\n") == ["2 2", "5 5", "4 4", "0 0", ""]


async def test_a_command_that_fails_or_hangs_is_a_failed_start() -> None:
    """With its exit code and what it said, or how long it took."""
    failing = CommandActuator(["/bin/sh", "-c", "echo no quota >&2; exit 3", "{}"])
    with pytest.raises(StartFailed, match="exit code 3 for 1 workers: no quota"):
        await failing.start(1)
    await failing.close()
    hanging = CommandActuator(["/bin/sh", "-c", "sleep 60", "{}"], **HURRIED)
    with pytest.raises(StartFailed, match=r"more than 0\.2 s"):
        await hanging.start(1)
    await hanging.close()


def test_a_command_without_a_place_for_the_number_is_refused() -> None:
    """It would be called with the same words for ever."""
    with pytest.raises(ConfigurationError, match=r"has no \{\}"):
        CommandActuator(["docker", "service", "scale", "orders=3"])


async def test_a_command_hears_of_no_worker_from_a_scaler_that_starts_none(tmp_path: pathlib.Path) -> None:
    """What one that was killed has left is nobody's otherwise."""
    told = tmp_path / "told"
    actuator = CommandActuator(["/bin/sh", "-c", f"echo {{}} >> {told}"], again_s=0.0)
    async with opened(actuator):
        async with asyncio.timeout(PATIENCE_S):
            while actuator._mending is not None:
                await asyncio.sleep(0.01)
        assert told.read_text() == "0\n"
    assert told.read_text() == "0\n"


async def test_a_command_that_did_a_part_is_told_again_what_is_meant(tmp_path: pathlib.Path) -> None:
    """After each failure, of a start or of an end, and not in a storm: one call a pause, further apart each time."""
    told, broken = tmp_path / "told", tmp_path / "broken"
    script = f"echo {{}} >> {told}; test ! -e {broken}"
    actuator = CommandActuator(["/bin/sh", "-c", script], again_s=0.05)

    async def until_mended() -> None:
        async with asyncio.timeout(PATIENCE_S):
            while actuator._mending is not None:
                await asyncio.sleep(0.01)

    async with opened(actuator) as heard:
        ids = await actuator.start(2)
        await until_mended()
        broken.touch()
        with pytest.raises(StartFailed):
            await actuator.start(1)
        broken.unlink()
        await until_mended()
        assert told.read_text().split()[-2:] == ["3", "2"]
        broken.touch()
        await actuator.stop(ids[:1])
        await heard.until(count("ended", 1))
        async with asyncio.timeout(PATIENCE_S):
            while told.read_text().split().count("1") < 3:
                await asyncio.sleep(0.01)
        broken.unlink()
        await until_mended()
        assert set(told.read_text().split()[-3:]) == {"1"}
    assert told.read_text().split()[-1] == "0"


@pytest.mark.parametrize("name", ["queuebell-worker", "worker@1.service", "@", "a b@", "../x@", "--user@ x", ""])
def test_a_unit_that_is_no_template_is_refused(name: str) -> None:
    """Its name ends with the @."""
    with pytest.raises(ConfigurationError, match="template"):
        SystemdActuator(name)


async def test_units_take_the_lowest_numbers_that_are_free(units: OfUnits) -> None:
    """What others have started by hand stays theirs, and names that are no number are nobody's."""
    units.systemctl.put(2)
    actuator = SystemdActuator("queuebell-worker@.service", user=True, every_s=3600.0)
    async with opened(actuator) as heard:
        assert len(actuator.running()) == 1
        units.systemctl.put(4)
        await actuator.start(3)
        assert units.systemctl.live == [1, 2, 3, 4, 5]
        assert all(words[0] == "--user" for words in units.systemctl.calls("start"))
        await actuator.stop(actuator.running())
        for _ in range(3):
            await actuator.look()
        assert [each[2:] for each in heard.news if each[0] == "ended"] == [(0, "ended in order")] * 4
        assert units.systemctl.live == [4]
        again = await actuator.start(1)
        assert (units.systemctl.live, len(again)) == ([1, 4], 1)


async def test_a_unit_says_what_it_is_by_its_state_and_its_text(units: OfUnits) -> None:
    """Ready as it is active, busy as it says so; each change is told of once, a spell between two looks among them."""
    actuator = SystemdActuator("queuebell-worker@", every_s=3600.0)
    async with opened(actuator) as heard:
        (name,) = await actuator.start(1)
        await actuator.look()
        assert heard.news == [], "systemd has not begun with it"
        for text in ("", "idle 0", "idle 0", "busy 1", "idle 1", "idle 2"):
            units.systemctl.put(1, text=text)
            await actuator.look()
        told = [("ready", name), ("idle", name), ("busy", name), ("idle", name), ("idle", name)]
        assert heard.news == told


async def test_a_unit_that_fails_is_told_with_where_to_read_on(units: OfUnits) -> None:
    """Its result, its exit code, and the command that shows its journal."""
    units.systemctl.be(fails=7)
    actuator = units.make()
    async with opened(actuator) as heard:
        (name,) = await actuator.start(1)
        await heard.until(count("ended", 1))
        why = "exit-code, exit code 7; journalctl -u queuebell-worker@1.service"
        assert heard.news == [("ended", name, 7, why)]
        units.systemctl.be(fails=0)
        await actuator.start(1)
        assert units.systemctl.live == [1], "its number is free again"


async def test_systemctl_that_may_not_or_hangs_is_a_failed_start(
    units: OfUnits, caplog: pytest.LogCaptureFixture
) -> None:
    """With what to do about it; nothing is taken to run, and an end is asked for again."""
    actuator = SystemdActuator("queuebell-worker@", every_s=3600.0, **HURRIED_UNITS)
    async with opened(actuator):
        units.systemctl.be(denied=True)
        with pytest.raises(StartFailed, match=r"Interactive authentication required.*rule of polkit"):
            await actuator.start(1)
        units.systemctl.be(denied=False, hangs=True)
        with pytest.raises(StartFailed, match="took more than"):
            await actuator.start(1)
        assert actuator.running() == []
        units.systemctl.be(hangs=False)
        ids = await actuator.start(1)
        units.systemctl.be(denied=True)
        stopping = asyncio.create_task(actuator.stop(ids), name="stop")
        async with asyncio.timeout(PATIENCE_S):
            while "workers are not ended" not in caplog.text:
                await asyncio.sleep(0.01)
        assert actuator.running() == ids
        stopping.cancel()
        await asyncio.wait([stopping])


@pytest.mark.system
@pytest.mark.parametrize("verb", ["show", "start", "stop"])
async def test_the_real_systemctl_takes_our_words(verb: str) -> None:
    """Without a systemd behind it: it says that, and of no option that it does not know it."""
    actuator = SystemdActuator("queuebell-no-such@")
    words = ["--no-block", "--no-ask-password", "--", "queuebell-no-such@1.service"]
    if verb == "show":
        words = ["--no-pager", f"--property={PROPERTIES}", "--", "queuebell-no-such@*.service"]
    try:
        said = await actuator._call(verb, *words)
    except StartFailed as failed:
        said = str(failed)
    assert "option" not in said, said
    assert verb == "show" or "exit code" in said
    with pytest.raises(StartFailed, match="option"):
        await actuator._call(verb, "--no-such-option")


async def test_a_change_of_replicas_names_the_version_that_it_was_made_from(pods: OfPods) -> None:
    """Somebody else's write in between is kept: it is looked anew, and added to."""
    actuator = pods.make(every_s=3600.0)
    async with opened(actuator) as heard:
        pods.api.before = [lambda request: None, lambda request: pods.api.set(5)]
        ids = await actuator.start(2)
        assert pods.api.writes == [7]
        await actuator.stop(ids)
        assert pods.api.writes == [7, 5], "what others have added stays"
        assert [each[0] for each in heard.news] == ["ended", "ended"]


async def test_what_others_take_off_has_ended_and_is_a_failure(pods: OfPods) -> None:
    """To the rules, which wait before they start anew; and nothing is written."""
    actuator = pods.make(every_s=3600.0)
    async with opened(actuator) as heard:
        await actuator.start(3)
        pods.api.set(1)
        await actuator.look()
        why = "somebody else has set the replicas of deployment work/orders to 1"
        assert [each for each in heard.news if each[0] == "ended"] == [("ended", "2", 1, why), ("ended", "3", 1, why)]
        assert (actuator.running(), pods.api.writes) == (["1"], [3])
        pods.api.set(4)
        await actuator.look()
        await actuator.stop(["1"])
        assert pods.api.replicas == 3


async def test_a_pod_is_ready_when_the_workload_says_so(pods: OfPods) -> None:
    """And once all are, only the number is asked for."""
    pods.api.ready = 1
    actuator = pods.make(every_s=3600.0)
    async with opened(actuator) as heard:
        await actuator.start(2)
        await actuator.look()
        assert heard.news == [("ready", "1")]
        pods.api.ready = None
        await actuator.look()
        assert heard.news == [("ready", "1"), ("ready", "2")]
        pods.api.calls.clear()
        await actuator.look()
        assert pods.api.calls == ["GET /apis/apps/v1/namespaces/work/deployments/orders/scale"]


async def test_a_statefulset_by_tls_of_the_clusters_own_authority(tmp_path: pathlib.Path) -> None:
    """The account's files say whom to trust and what to show; another authority is not trusted."""
    async with cluster(tmp_path, kind="statefulset", tls=True) as api:
        actuator = KubernetesActuator("orders", kind="statefulset", api=api.url, account=api.account, every_s=3600.0)
        async with opened(actuator):
            assert str(actuator) == "statefulset work/orders"
            await actuator.start(1)
            assert api.replicas == 1
            good = (api.account / "ca.crt").read_bytes()
            (tmp_path / "other").mkdir()
            (api.account / "ca.crt").write_bytes(Authority(tmp_path / "other").file.read_bytes())
            other = KubernetesActuator("orders", kind="statefulset", api=api.url, account=api.account)
            async with opened(other):
                with pytest.raises(StartFailed, match=r"no answer from the API server.*(?i:certificate)"):
                    await other.start(1)
            (api.account / "ca.crt").write_text("none")
            with pytest.raises(NotSeen, match="holds no certificate"):
                await actuator.look()
            (api.account / "ca.crt").write_bytes(good)
            await actuator.look()


async def test_a_token_that_was_replaced_is_read_anew(pods: OfPods) -> None:
    """Once for a call: one that stays wrong is said, and nothing is written."""
    actuator = pods.make(every_s=3600.0)
    async with opened(actuator):
        pods.api.rotate("second")
        await actuator.start(1)

        def rotates(request: web.Request) -> None:
            pods.api.rotate("third")

        pods.api.before = [rotates]
        await actuator.start(1)
        assert pods.api.writes == [1, 2]
        pods.api.rotate("fourth", told=False)
        pods.api.calls.clear()
        with pytest.raises(StartFailed, match="does not know the token"):
            await actuator.start(1)
        assert len(pods.api.calls) == 2
        (pods.api.account / "token").unlink()
        with pytest.raises(StartFailed, match="token cannot be read"):
            await actuator.start(1)


async def test_who_is_told_to_wait_waits(pods: OfPods, monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as Retry-After says, within limits; and then it is done."""
    pauses: list[float] = []
    monkeypatch.setattr("listeners.scaling.actuators.kubernetes.PAUSE_CAP_S", 0.0)

    def busy(request: web.Request) -> web.Response:
        pauses.append(_pause("7"))
        return said(429, "TooManyRequests", "too many requests, please try again later", Retry_After="7")

    actuator = pods.make(every_s=3600.0)
    async with opened(actuator):
        pods.api.before = [busy, busy]
        await actuator.start(1)
    assert (pods.api.writes, len(pauses)) == ([1], 2)
    monkeypatch.undo()
    assert [_pause(told) for told in ("0", "3", "4000", "soon", None)] == [0.1, 3.0, 10.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (("get", "scale"), r'resources \["deployments/scale"\] and verbs \["get"\]'),
        (("patch", "scale"), r'resources \["deployments/scale"\] and verbs \["patch"\]'),
    ],
)
async def test_a_missing_rule_is_named(pods: OfPods, missing: tuple[str, str], words: str) -> None:
    """With what the API server said."""
    actuator = pods.make(every_s=3600.0)
    async with opened(actuator):
        pods.api.granted.discard(missing)
        with pytest.raises(StartFailed, match=f"{words}.*is forbidden"):
            await actuator.start(1)
        pods.api.granted = {each for each in GRANTED if each[1]}
        await actuator.start(1)
        with pytest.raises(NotSeen, match=r'resources \["deployments"\] and verbs \["get"\]'):
            await actuator.look()


async def test_a_write_of_which_nobody_knows_is_found_to_be_done(pods: OfPods) -> None:
    """Its answer may be lost: who starts once more has those, who only looks finds them, and none is ended twice."""

    def lost(answer: web.StreamResponse) -> web.StreamResponse:
        return said(504, "Timeout", "request did not complete within the allotted timeout")

    actuator = pods.make(every_s=3600.0)
    async with opened(actuator) as heard:
        pods.api.after = [lost]
        with pytest.raises(StartFailed, match="504"):
            await actuator.start(2)
        assert len(await actuator.start(2)) == 2
        assert pods.api.writes == [2]
        pods.api.after = [lost]
        with pytest.raises(StartFailed):
            await actuator.start(1)
        await actuator.look()
        assert ("found", "3") in heard.news
        pods.api.after = [lost]
        stopping = asyncio.create_task(actuator.stop(["1"]), name="stop")
        async with asyncio.timeout(PATIENCE_S):
            while pods.api.writes != [2, 3, 2]:
                await asyncio.sleep(0.01)
        await actuator.look()
        assert ("ended", "1", None, "told to end") in heard.news
        assert (actuator.running(), pods.api.writes) == (["2", "3"], [2, 3, 2])
        stopping.cancel()
        await asyncio.wait([stopping])
        pods.api.set(6)
        await actuator.look()
        pods.api.after = [lost]
        with pytest.raises(StartFailed):
            await actuator.start(1)
        await actuator.look()
        assert (len(actuator.running()), pods.api.replicas) == (3, 7), "what others have added is not taken for ours"


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_goes_wrong_the_number_comes_out_right(pods: OfPods, seed: int) -> None:
    """Refusals, lost answers, crossing writes and other hands in any order: what we count and what others added is all.

    What is told of each worker is told in order: it begins once and ends once.
    """
    draw = random.Random(seed)
    actuator = pods.make(every_s=3600.0)
    api = pods.api

    def lost(answer: web.StreamResponse) -> web.StreamResponse:
        return said(500, "InternalError", "the connection was lost")

    def refused(request: web.Request) -> web.Response:
        return said(403, "Forbidden", "exceeded quota")

    def crossed(request: web.Request) -> None:
        if request.method == "PATCH":
            api.set(max(0, api.replicas + draw.choice((-1, 1))))

    begun: set[str] = set()
    async with opened(actuator) as heard:
        for _ in range(60):
            api.before = [draw.choice((refused, crossed))] if draw.random() < 0.3 else []
            api.after = [lost] if draw.random() < 0.3 else []
            with contextlib.suppress(StartFailed, NotSeen):
                match draw.randrange(4):
                    case 0:
                        begun |= set(await actuator.start(draw.randint(1, 3)))
                    case 1 if actuator.running():
                        ids = draw.sample(actuator.running(), draw.randint(1, len(actuator.running())))
                        stopping = asyncio.create_task(actuator.stop(ids), name="stop")
                        while not stopping.done() and not actuator._turn.locked():
                            await asyncio.sleep(0)
                        async with actuator._turn:  # one try, and not the next one
                            stopping.cancel()
                        await asyncio.wait([stopping])
                    case 2:
                        api.set(max(0, api.replicas + draw.randint(-2, 2)))
                    case _:
                        await actuator.look()
        api.before, api.after = [], []
        await actuator.look()
        await actuator.look()
        assert api.replicas == len(actuator.running()) + actuator._others
        begun |= {str(name) for each in heard.news if each[0] == "found" for name in each[1:]}
        ended = [str(each[1]) for each in heard.news if each[0] == "ended"]
        assert len(set(ended)) == len(ended)
        assert begun - set(ended) == set(actuator.running())


async def test_an_api_server_that_hangs_is_a_failed_start(pods: OfPods) -> None:
    """And neither ends anybody nor keeps the scaler from stopping."""
    actuator = pods.make(every_s=3600.0, **HURRIED)
    async with opened(actuator):
        pods.api.hangs = True
        with pytest.raises(StartFailed, match=r"not done within 0\.2 s"):
            await actuator.start(1)
        with pytest.raises(NotSeen, match=r"no answer within 0\.2 s"):
            await actuator.look()
        pods.api.hangs = False
        await actuator.start(1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "Orders"}, "deployment"),
        ({"name": "a/b"}, "deployment"),
        ({"namespace": "../kube-system"}, "namespace"),
        ({"account": pathlib.Path("/nowhere")}, "namespace: is not told"),
        ({"namespace": "work", "api": None}, "in a pod only"),
    ],
)
def test_what_can_never_be_scaled_is_refused(given: dict[str, Any], words: str) -> None:
    """By a line that names the option."""
    whole = {"name": "orders", "namespace": None, "api": "http://127.0.0.1:1", "environment": {}, **given}
    with pytest.raises(ConfigurationError, match=words):
        KubernetesActuator(**whole)


def test_the_api_server_is_where_pods_are_told_that_it_is() -> None:
    """An address of IPv6 in its brackets."""
    told = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    assert _address(told) == "https://[fd00::1]:443"
    assert _address({**told, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == "https://10.0.0.1:443"


@pytest.mark.parametrize(
    ("left", "within_s", "words"),
    [
        ("sleep 1000 & echo $! > pid", 300.0, None),
        ("setsid sleep 1000 & echo $! > pid; sleep 1000", 0.3, "took more than"),
    ],
    ids=["ends before it", "hangs"],
)
async def test_what_a_program_leaves_running_holds_nobody(
    tmp_path: pathlib.Path, left: str, within_s: float, words: str | None
) -> None:
    """A script that starts workers in the background leaves them its output; in a session of their own, for ever."""
    line = ["/bin/sh", "-c", f"cd {tmp_path}; echo started; {left}"]
    try:
        async with asyncio.timeout(PATIENCE_S):
            if words is None:
                assert await call(line, "for 1 worker", within_s=within_s, environment={}) == "started\n"
            else:
                with pytest.raises(StartFailed, match=words):
                    await call(line, "for 1 worker", within_s=within_s, environment={})
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("whole", [False, True])
async def test_a_program_that_writes_without_end_takes_no_memory(monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    """The end of it is kept; where all of it has to be read, as of units that run, a part is taken for no answer."""
    monkeypatch.setattr(program, "OUTPUT_BYTES", 1000)
    line = ["/bin/sh", "-c", "head -c 100000 /dev/zero; echo end"]
    if whole:
        with pytest.raises(StartFailed, match="more than 1000 bytes to show"):
            await call(line, "to show", within_s=PATIENCE_S, environment={}, whole=True)
    else:
        text = await call(line, "to show", within_s=PATIENCE_S, environment={})
        assert len(text) <= 1000
        assert text.endswith("end\n")


NO_ANSWERS = {
    "not UTF-8": b'{"metadata":{"resourceVersion":"\xff"}}',
    "deep": b'{"a":' + b"[" * 100_000,
    "fewer than none": b'{"metadata":{},"spec":{"replicas":-1}}',
    "too many": b'{"metadata":{},"spec":{"replicas":2000000000}}',
    "a page": b"<html>",
}


@pytest.mark.parametrize("code", [200, 500])
@pytest.mark.parametrize("body", list(NO_ANSWERS.values()), ids=list(NO_ANSWERS))
async def test_an_answer_that_is_none_is_said_and_ends_nothing(pods: OfPods, body: bytes, code: int) -> None:
    """It is asked again, and workers are ended then."""
    actuator = pods.make(every_s=3600.0)
    async with opened(actuator) as heard:
        await actuator.start(1)

        def strange(_: web.Request) -> web.Response:
            return web.Response(status=code, body=body)

        pods.api.before = [strange]
        with pytest.raises(NotSeen, match="none of Kubernetes" if code == 200 else "answered 500"):
            await actuator.look()
        pods.api.before = [strange]
        with pytest.raises(StartFailed):
            await actuator.start(1)
        await actuator.look()
        assert (actuator.running(), [each for each in heard.news if each[0] == "ended"]) == (["1"], [])


async def test_a_token_that_no_header_can_carry_is_said(pods: OfPods) -> None:
    """A file that was half written, say."""
    actuator = pods.make(every_s=3600.0)
    async with opened(actuator):
        pods.api.rotate("two\nlines")
        with pytest.raises(NotSeen, match="token holds no token"):
            await actuator.look()


async def test_looking_goes_on_whatever_breaks(caplog: pytest.LogCaptureFixture) -> None:
    """A defect is in the log once, and the next look comes."""
    seen = asyncio.Event()
    looks = iter([ValueError("broken"), None])

    async def look() -> None:
        if (error := next(looks, None)) is not None:
            raise error
        seen.set()

    watch = Watch("units", look, every_s=0.001, wanted=lambda: True)
    watch.begin()
    async with asyncio.timeout(PATIENCE_S):
        await seen.wait()
    await watch.close()
    assert [record.getMessage() for record in caplog.records if record.exc_info] == [
        "units: looking which workers run broke; it is repeated"
    ]


async def test_a_worker_says_what_it_is_and_its_output_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    """Words may come in pieces, and unknown ones are not minded."""
    actuator, heard = python(SAYS_READY), Heard()
    await actuator.open(heard)
    (number,) = await actuator.start(1)
    await heard.until(count("idle", 1))
    assert heard.news == [("ready", number), ("busy", number), ("idle", number)]
    await actuator.close()
    assert heard.news[-1] == ("ended", number, -signal.SIGTERM, "ended by SIGTERM: trouble")
    OUTPUT.drain()
    said = capfd.readouterr().err
    assert f"worker[{number}] out\n" in said
    assert f"worker[{number}] trouble\n" in said


async def test_one_that_ends_at_once_is_told_with_its_last_words() -> None:
    """Those on standard error, the last five lines."""
    actuator, heard = python("import sys; [print(n, file=sys.stderr) for n in range(9)]; sys.exit(7)"), Heard()
    await actuator.open(heard)
    (number,) = await actuator.start(1)
    await heard.until(count("ended", 1))
    assert heard.news == [("ended", number, 7, "exit code 7: 4 | 5 | 6 | 7 | 8")]
    assert actuator.running() == []


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
async def test_a_machine_that_is_full_keeps_those_that_it_had_room_for(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """S48: Else one with room for three of eight would never run any; no file is left open."""
    actuator, heard = python(SAYS_READY), Heard()
    await actuator.open(heard)
    fork, left = asyncio.create_subprocess_exec, [2, 0]

    async def full(*words: Any, **given: Any) -> asyncio.subprocess.Process:
        if not left[0]:
            raise OSError(number, os.strerror(number))
        left[0] -= 1
        return await fork(*words, **given)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", full)
    with pytest.raises(StartFailed, match=f"{os.strerror(number)}; this machine.*is out of processes") as failed:
        await actuator.start(5)
    assert failed.value.begun == actuator.running()
    assert len(actuator.running()) == 2
    await heard.until(count("idle", 2))
    files = _files()
    with pytest.raises(StartFailed) as failed:
        await actuator.start(1)
    assert failed.value.begun == []
    assert _files() == files
    await actuator.close()
    assert actuator.running() == []


async def test_without_files_for_its_pipes_nothing_is_started_nor_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """S48: The first pipe was to be had, the second was not."""
    actuator = python(SAYS_READY)
    pipe, made = os.pipe, [True]

    def spent() -> tuple[int, int]:
        if not made.pop():
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        made.append(False)
        return pipe()

    monkeypatch.setattr(os, "pipe", spent)
    files = _files()
    with pytest.raises(StartFailed, match="open files"):
        await actuator.start(1)
    assert _files() == files


def _files() -> int:
    return len(list(pathlib.Path("/dev/fd").iterdir()))


async def test_one_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    """S47: With its whole group."""
    actuator, heard = python("import signal; signal.signal(15, signal.SIG_IGN)\n" + SAYS_READY, grace=0.2), Heard()
    await actuator.open(heard)
    await actuator.start(1)
    await heard.until(count("ready", 1))
    await actuator.close()
    assert heard.news[-1][2] == -signal.SIGKILL


async def test_one_that_forks_away_is_an_end_and_what_stays_of_its_group_is_killed(tmp_path: pathlib.Path) -> None:
    """A worker stays in the foreground: what went to the background of its group does not outlive it."""
    actuator, heard = ProcessActuator(["/bin/sh", "-c", f"sleep 600 & echo $! > {tmp_path}/pid"]), Heard()
    await actuator.open(heard)
    (number,) = await actuator.start(1)
    await heard.until(count("ended", 1))
    assert heard.news == [("ended", number, 0, "exit code 0")]
    pid = int((tmp_path / "pid").read_text())
    async with asyncio.timeout(PATIENCE_S):
        while _lives(pid):
            await asyncio.sleep(0.01)


async def test_a_cancelled_close_kills() -> None:
    """Nothing is left, however long the grace."""
    actuator, heard = python("import signal; signal.signal(15, signal.SIG_IGN)\n" + SAYS_READY, grace=3600.0), Heard()
    await actuator.open(heard)
    await actuator.start(1)
    await heard.until(count("ready", 1))
    closing = asyncio.create_task(actuator.close(), name="close")
    await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert heard.news[-1][2] == -signal.SIGKILL
    assert actuator.running() == []


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = pathlib.Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
