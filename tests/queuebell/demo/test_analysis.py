"""The analysis, asked about sources made by hand."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import pytest

from queuebell.demo.analysis import CANNOT_BE_READ, DOES_NOT_PARSE, FileFacts, LongestFunction, analyse, analyse_file

OWNERS = b'''"""Module,

two paragraphs."""

class C:
    """Class."""

    def m(self):
        """Method.

        # not a comment
        """
        return 1
'''

BLOCKS = b"""try:
    def a(): pass
except E:
    def b(): pass
else:
    def c(): pass
finally:
    def d(): pass
for i in j:
    class K: pass
else:
    class L: pass
while m:
    class M: pass
with n:
    import o
match p:
    case 1:
        import q
    case _:
        import r
"""

CASES: dict[str, tuple[bytes, FileFacts]] = {
    "an empty file": (b"", FileFacts(0, 0)),
    "blank lines only": (b"\n  \n\t\n", FileFacts(3, 0)),
    "a last line without a newline": (b"x = 1\ny = 2", FileFacts(2, 2)),
    "comments are no code": (b"# one\nx = 1  # two\n    # three\n", FileFacts(3, 1)),
    "all three line ends": (b"a = 1\r\nb = 2\rc = 3\n", FileFacts(3, 3)),
    "a byte order mark": (b"\xef\xbb\xbf# first\nimport os\n", FileFacts(2, 1, imports=1)),
    "a byte order mark before a docstring": (b'\xef\xbb\xbf"""Doc."""\n', FileFacts(1, 0)),
    "a form feed ends no line": (b"a = 1\n\x0c\nb = 'x\x0cy'\n", FileFacts(3, 2)),
    "a vertical tab is no white space to Python": (b"a = 1\n\x0b\n", FileFacts(2, 1, fault=DOES_NOT_PARSE)),
    "a form feed between functions": (
        b"def f():\n    pass\n\x0c\ndef g():\n    pass\n",
        FileFacts(5, 4, functions=2, longest=LongestFunction("f", 1, 2)),
    ),
    "separators of text that are not line ends": ("s = 'a\u2028b\x1cc'\nt = 1\n".encode(), FileFacts(2, 2)),
    "another encoding": (b"# -*- coding: latin-1 -*-\nname = '\xe9'\n", FileFacts(2, 1)),
    "an unknown encoding": (b"# -*- coding: klingon -*-\nx = 1\n", FileFacts(2, 1, fault=DOES_NOT_PARSE)),
    "bytes that are no UTF-8": (b"x = '\xff'\n", FileFacts(1, 1, fault=DOES_NOT_PARSE)),
    "a null byte": (b"x = 1\x00\n", FileFacts(1, 1, fault=DOES_NOT_PARSE)),
    "a syntax error": (
        b'"""Doc."""\n# no\ndef f(:\n\n    pass\n',
        FileFacts(5, 3, fault=DOES_NOT_PARSE),
    ),
    "parentheses too deep for the parser": (b"(" * 500 + b")" * 500 + b"\n", FileFacts(1, 1, fault=DOES_NOT_PARSE)),
    "docstrings of all owners": (
        OWNERS,
        FileFacts(13, 3, functions=1, classes=1, longest=LongestFunction("C.m", 8, 6)),
    ),
    "a docstring on its function's line": (
        b'def f(): "doc"\n',
        FileFacts(1, 1, functions=1, longest=LongestFunction("f", 1, 1)),
    ),
    "a docstring that shares its last line": (
        b'def f():\n    """Doc\n    more"""; return 1\n',
        FileFacts(3, 2, functions=1, longest=LongestFunction("f", 1, 3)),
    ),
    "a string that is no docstring": (b'x = """one\n\n# two\n"""\n', FileFacts(4, 2)),
    "bytes and formatted strings are no docstrings": (b'b"""x"""\nf"""y"""\n', FileFacts(2, 2)),
    "nested functions": (
        b"def outer():\n    def inner():\n        def innermost():\n            pass\n    return inner\n",
        FileFacts(5, 5, functions=3, longest=LongestFunction("outer", 1, 5)),
    ),
    "async functions": (
        b"async def a():\n    async with b: pass\n    async for c in d: pass\n",
        FileFacts(3, 3, functions=1, longest=LongestFunction("a", 1, 3)),
    ),
    "a lambda is no function": (b"f = lambda x: (\n    x\n)\n", FileFacts(3, 3)),
    "decorators stand above their function": (
        b"@first\n@second(\n    1,\n)\ndef f():\n    pass\n\n@third\nclass C: pass\n",
        FileFacts(9, 8, functions=1, classes=1, longest=LongestFunction("f", 5, 2)),
    ),
    "imports are statements, wherever": (
        b"import a, b\nfrom c import (\n    d,\n    e,\n)\nif x:\n    import f\nelse:\n    from . import g\n",
        FileFacts(9, 9, imports=4),
    ),
    "definitions in every kind of block": (
        BLOCKS,
        FileFacts(21, 21, functions=4, classes=3, imports=3, longest=LongestFunction("a", 2, 1)),
    ),
    "exception groups": (
        b"try:\n    pass\nexcept* E:\n    import a\n",
        FileFacts(4, 4, imports=1),
    ),
    "the first of equally long functions": (
        b"class A:\n    def late(self):\n        pass\n\ndef other():\n    pass\n",
        FileFacts(6, 5, functions=2, classes=1, longest=LongestFunction("A.late", 2, 2)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_counts(name: str) -> None:
    """Every count of a source made by hand is as counted by hand."""
    source, expected = CASES[name]
    assert analyse(source) == expected


def test_long_chain() -> None:
    """A chain of elif that nests deeper than Python may recurse is walked, or counted as one that does not parse."""
    source = b"if a: pass\n" + b"elif a: pass\n" * 900 + b"else:\n    import b\n"
    facts = analyse(source)
    assert facts.lines == 903
    assert (facts.fault, facts.imports) in {(None, 1), (DOES_NOT_PARSE, 0)}


def test_same_again() -> None:
    """The same bytes give the same facts, this module's own source for one."""
    source = Path(__file__).read_bytes()
    assert analyse(source) == analyse(source)
    assert analyse(source).fault is None


@pytest.mark.parametrize("action", ["error", "ignore", "default"])
def test_warning_filters_play_no_part(action: str) -> None:
    """A source that the compiler warns of gives the same facts, and no warning, under any filter."""
    source = b"def f():\n    return '\\d' is 1\n"
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter(action)  # type: ignore[arg-type]
        before = list(warnings.filters)
        facts = analyse(source)
        assert warnings.filters == before
    assert facts == FileFacts(2, 2, functions=1, longest=LongestFunction("f", 1, 2))
    assert heard == []


def test_threads_keep_the_filters() -> None:
    """Threads that analyse at the same time leave the warning filters as they found them."""
    before = list(warnings.filters)
    threads = [threading.Thread(target=lambda: [analyse(b"x = '\\d'\n") for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before


def test_file(tmp_path: Path) -> None:
    """A file is counted by its bytes; one that is not there, or is a folder, is a result too."""
    path = tmp_path / "a.py"
    path.write_bytes(b"import os\n")
    assert analyse_file(str(path)) == FileFacts(1, 1, imports=1)
    assert analyse_file(str(tmp_path / "b.py")).fault == CANNOT_BE_READ
    assert analyse_file(str(tmp_path)).fault == CANNOT_BE_READ
