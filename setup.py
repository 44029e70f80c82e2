"""What pyproject.toml cannot say: a README for an index, clean builds, and editable installs that types can follow."""

import re
import shutil
import warnings
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
LINK = re.compile(r"!?\[([^\]]+)\]\((?!https?://)([^)\s#]*)[^)\s]*\)")


def for_an_index(readme: str) -> str:
    """Return it with the names of files instead of links to them: there is no file beside a page of an index."""
    return LINK.sub(lambda link: f"`{link[2]}`" if link[1] == link[2] else f"{link[1]}: `{link[2]}`", readme)


# bridge/ and listeners/ are packages of queuebell by links, which git writes as text where links are switched off.
if not all((HERE / "queuebell" / name / "__init__.py").is_file() for name in ("bridge", "listeners")):
    raise SystemExit(
        "queuebell/bridge and queuebell/listeners are no links: git config core.symlinks true, then git checkout ."
    )

# A wheel is packed from this folder, with modules in it that are gone since the last build.
shutil.rmtree(HERE / "build" / "lib", ignore_errors=True)

# Said to whoever installs it, who can do nothing about it.
warnings.filterwarnings("ignore", message="Compat editable installs")

setup(
    # An editable install puts this folder on the path. What it would install otherwise, a finder, is Python that runs
    # when Python starts: type checkers do not run it, and find none of our packages.
    options={"editable_wheel": {"mode": "compat"}},
    long_description=for_an_index((HERE / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
