"""The models of the wake protocol hold in small worlds, and every wrong turn is caught where it belongs."""

from __future__ import annotations

import pathlib

import pytest

from tests.model import search
from tests.model.configurations import LARGE, SMALL, Run

CAUGHT = [(run, mutant) for run in SMALL for mutant in run.mutants]


@pytest.mark.system
@pytest.mark.parametrize("run", SMALL, ids=lambda run: run.name)
def test_the_rules_hold(run: Run, tmp_path: pathlib.Path) -> None:
    """In every reachable state: nobody sleeps beside a visible message at rest, and I3, B6 and L11 hold."""
    verdict = search.search(run.model, run.flags(), tmp_path, optimise=0, within_s=500.0)
    assert verdict.holds, verdict.broke
    assert verdict.states >= search.STATES_LEAST


@pytest.mark.system
@pytest.mark.parametrize(("run", "mutant"), CAUGHT, ids=lambda value: getattr(value, "name", value))
def test_a_wrong_turn_is_caught(run: Run, mutant: str, tmp_path: pathlib.Path) -> None:
    """The same world with one wrong turn in it fails."""
    verdict = search.search(run.model, run.flags(mutant), tmp_path, optimise=0, within_s=500.0)
    assert not verdict.holds
    assert "assertion violated" in verdict.broke


CUT_OFF = {
    "at once": "{states} states, stored\nState-vector 4 byte, depth reached 0, errors: 0",
    "out of memory": "Warning: Search not completed\n     5000 states, stored\nerrors: 0",
    "too deep": "error: max search depth too small\n     5000 states, stored\nerrors: 0",
    "without a word": "",
}


@pytest.mark.parametrize("said", CUT_OFF.values(), ids=CUT_OFF.keys())
def test_a_search_that_was_cut_off_is_no_verdict(
    said: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verifier that saw hardly any state, or not all of them, has proved nothing, whatever it says of errors."""
    monkeypatch.setattr(search, "need_tools", lambda: None)
    monkeypatch.setattr(search, "_run", lambda *_: said.format(states=f"      {search.STATES_LEAST - 1}"))
    with pytest.raises(search.SearchBroken):
        search.search("wake.pml", ("NL=1",), tmp_path)


@pytest.mark.parametrize("model", ["wake.pml", "cluster.pml"])
def test_every_wrong_turn_of_the_model_is_planted(model: str) -> None:
    """No switch of the model stands unused, and no run names one that the model does not have."""
    text = (search.MODELS / model).read_text(encoding="utf-8")
    runs = [run for run in SMALL + LARGE if run.model == model]
    assert {mutant for run in runs for mutant in run.mutants} == search.wrong_turns(text)
    words = {word.partition("=")[0] for run in runs for word in run.switches.split()}
    assert {word for word in words if word not in text} == set()


def test_wrong_turns_are_found_by_their_switches() -> None:
    """In a condition, first or further, and nowhere else."""
    assert search.wrong_turns("#ifdef V99\n#elif defined(W98)\n#endif\n/* W97 */\n") == {"V99", "W98"}


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without spin or gcc the search says so and what to install, and never passes."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(search.ToolMissing, match="apt-get install spin gcc"):
        search.need_tools()
