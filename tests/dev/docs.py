"""`./dev docs`: the documentation as a site, in .build/site, or served on loopback.

MkDocs and its theme are in an environment of their own (the extra `docs` of pyproject.toml). The
build is strict: a link or an anchor that leads nowhere, or a page that the navigation lacks, fails
it. The site loads nothing from the network.
"""

import re

from tests.dev.extras import folder_of, requirements_of
from tests.dev.steps import BUILD, ROOT, StepError, console, open_step, quiet_step

SITE = BUILD / "site"
ADDRESS = "127.0.0.1:8000"
_QUIET = {"NO_MKDOCS_2_WARNING": "1"}  # the theme tells of its successor at each build
_CONFIG = str(ROOT / "mkdocs.yml")
_LOADED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?https?:[^>]*>")
_STYLE = re.compile(
    r"<link\b(?=[^>]*rel=\"?(?:stylesheet|preconnect|icon))[^>]*href=\"?https?:[^>]*>"
)


def build() -> None:
    words = [_mkdocs(), "build", "--strict", "--clean", "-f", _CONFIG]
    quiet_step("documentation", words, environment=_QUIET)
    if foreign := _loaded_from_elsewhere():
        raise StepError("\n".join(["the site loads from the network:", *foreign]))


def show() -> None:
    build()
    console.print(f"The site is in {SITE}: open {SITE / 'index.html'}", soft_wrap=True)


def serve() -> int:
    """Builds again what is changed meanwhile; returns after Ctrl-C."""
    return open_step([_mkdocs(), "serve", "-f", _CONFIG, "-a", ADDRESS], environment=_QUIET)


def _mkdocs() -> str:
    return str(folder_of("docs", requirements_of("docs")) / "bin" / "mkdocs")


def _loaded_from_elsewhere() -> list[str]:
    return [
        f"{path.relative_to(SITE)}: {found}"
        for path in sorted(SITE.rglob("*.html"))
        for pattern in (_LOADED, _STYLE)
        for found in pattern.findall(path.read_text())
    ]
