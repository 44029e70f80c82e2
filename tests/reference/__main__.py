"""Write the reference: `python -m tests.reference`, wherever a route, a struct, a limit or a code has changed."""

from __future__ import annotations

import sys

from tests.reference.written import FILES

if __name__ == "__main__":
    for file, text in FILES.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text(), encoding="utf-8")
        sys.stdout.write(f"{file}\n")
