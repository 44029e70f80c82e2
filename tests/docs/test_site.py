"""The site of `make site`: what it would fetch is found, and pages made from the code are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

import queuebell
from tests.docs.reference import FOLDER, PAGES, of_package
from tests.docs.site import outside


def test_what_a_page_fetches_from_elsewhere_is_found(tmp_path: Path) -> None:
    """Scripts, styles, fonts and pictures; links that a reader may follow are none."""
    well = '<a href="https://example.com">out</a><script src="assets/a.js"></script><link rel="canonical" href="//x/">'
    (tmp_path / "well.html").write_text(well)
    assert outside(tmp_path) == {}
    (tmp_path / "a.html").write_text('<script src="https://cdn.example/a.js"></script><img src="//cdn.example/b.png">')
    (tmp_path / "b.html").write_text('<link rel="stylesheet" href="https://fonts.example/c.css">')
    (tmp_path / "c.css").write_text(
        "@font-face { src: url(https://fonts.example/d.woff2) } a { background: url(e.png) }"
    )
    assert outside(tmp_path) == {
        "a.html": ["https://cdn.example/a.js", "//cdn.example/b.png"],
        "b.html": ["https://fonts.example/c.css"],
        "c.css": ["https://fonts.example/d.woff2"],
    }


@pytest.mark.parametrize("page", PAGES)
def test_a_page_that_is_made_from_the_code_is_up_to_date(page: str) -> None:
    """`python -m tests.docs.reference` writes it anew."""
    assert (FOLDER / page).read_text(encoding="utf-8") == PAGES[page](), "python -m tests.docs.reference"


def test_the_reference_has_every_public_name_once() -> None:
    """Each from where its docstring is found."""
    page = (FOLDER / "python.md").read_text(encoding="utf-8").splitlines()
    for name in set(dir(queuebell)) - {"__version__", "Outcome", "PULL_ONLY"}:
        assert page.count(f"::: {of_package(name)}") == 1, name
