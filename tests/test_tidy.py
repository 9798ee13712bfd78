"""The house rules that a reviewer would otherwise repeat.

They concern sizes, module docstrings, words without meaning, the modules that may import foreign
libraries, and the tests that docs/SEMANTICS.md names. import-linter checks layers (pyproject.toml),
ruff checks style.
"""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
PROGRAMS = ("fscommon", "fsclient", "metaserver", "storageserver")
PRODUCT = ("braidfs", *PROGRAMS)
# Programs that train have these or not: a module that imports one is named for it.
USERS_LIBRARIES = ("fsspec", "numpy", "torch")
EMPTY_WORDS = re.compile(r"(?:^|_)(utils?|helpers?|managers?|processors?|infos?|misc)(?:_|$)")
# mount(8) calls such a program "mount helper".
EMPTY_WORDS_ALLOWED = {"mount_helper"}
DOORS: dict[str, str | tuple[str, ...]] = {
    "pyfuse3": "fsclient/fuse/",
    "lmdb": "metaserver/store/lmdb.py",
    "msgpack": "fscommon/wire/codec.py",
    "psycopg": "metaserver/store/journals/postgresql_session.py",
    "urllib3": "metaserver/store/journals/etcd_gateway.py",
    "xxhash": ("fscommon/checksum.py", "braidfs/checkpoint/sums.py"),  # users may have it, or not
    "_braidfs_native": "fscommon/native.py",
    "prometheus_client": "fscommon/observe/metrics.py",
    "pyverbs": "fscommon/net/",
}

# The call to use instead, and where the banned call is allowed.
BANNED_CALLS = {
    r"time\.sleep\(": (
        "trio.sleep: it stops every task of the program",
        ("fsclient/validate/training/replay.py",),  # it has no trio, and its sleep is measured
    ),
    r"\bimport asyncio\b": ("trio", ()),
    r"\b(?:eval|exec)\(": ("plain code", ()),
    r"os\.system\(|shell=True": ("an argument list: a shell reads names of files as words", ()),
    r"\bpickle\b": ("fscommon.wire.codec: what came from outside must not run", ()),
    r"\bassert_never\b|except Exception:\s*pass": ("a handler that says what it expects", ()),
    r"\blogging\.getLogger\(": ("fscommon.observe.log.Log", ("fscommon/observe/log.py",)),
    r"start_http_server\(": ("fscommon.observe.metrics", ("fscommon/observe/metrics.py",)),
    r"hashlib\.(?:md5|sha1)\(": ("XXH3 for accidents, HMAC-SHA256 for attackers", ()),
    r"\bmac == |\bproof == ": ("hmac.compare_digest: == leaks by its time", ()),
}


def tracked(*patterns: str) -> list[Path]:
    words = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "ls-files", "-co"]
    words += ["--exclude-standard", "--", *patterns]
    listed = subprocess.run(words, check=False, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).exists()]


SOURCES = ("*.py", "*.cpp", "*.h")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _python() -> list[Path]:
    return [path for path in tracked("*.py") if path.read_text().strip()]


def test_files_are_short() -> None:
    long = {_name(p): n for p in tracked(*SOURCES) if (n := _lines(p)) > FILE_LINES_MAX}
    assert long == {}, f"over {FILE_LINES_MAX} lines: split them by what they are about"


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_functions_are_short() -> None:
    long = {}
    for path in _python():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    long[f"{_name(path)}::{node.name}"] = length
    assert long == {}, f"over {FUNCTION_LINES_MAX} lines"


def test_modules_say_what_they_are() -> None:
    silent = [_name(p) for p in _python() if ast.get_docstring(ast.parse(p.read_text())) is None]
    assert silent == [], "a module docstring is missing"


def test_names_of_files_mean_something() -> None:
    empty = [
        _name(path)
        for path in tracked(*SOURCES)
        if EMPTY_WORDS.search(path.stem) and path.stem not in EMPTY_WORDS_ALLOWED
    ]
    assert empty == [], "say what is in it instead"


@pytest.mark.parametrize("library", sorted(DOORS))
def test_one_door_for_each_foreign_library(library: str) -> None:
    imported = re.compile(rf"^\s*(?:import|from) {library}\b", re.M)
    guests = [
        _name(path)
        for folder in PRODUCT
        for path in tracked(f"{folder}/**/*.py", f"{folder}/*.py")
        if imported.search(path.read_text()) and not _name(path).startswith(DOORS[library])
    ]
    assert guests == [], f"{library} is imported in {DOORS[library]} alone"


@pytest.mark.parametrize("library", USERS_LIBRARIES)
def test_libraries_of_users_are_imported_in_modules_named_for_them(library: str) -> None:
    imported = re.compile(rf"^\s*(?:import|from) {library}\b", re.M)
    guests = [
        _name(path)
        for folder in PRODUCT
        for path in tracked(f"{folder}/**/*.py", f"{folder}/*.py")
        if imported.search(path.read_text()) and library not in path.stem
    ]
    assert guests == [], f"`import braidfs` must work without {library}"


@pytest.mark.parametrize("call", sorted(BANNED_CALLS))
def test_banned_calls(call: str) -> None:
    instead, allowed = BANNED_CALLS[call]
    found = [
        _name(path)
        for folder in PROGRAMS  # the users' package has no trio, and none of our own logs
        for path in tracked(f"{folder}/**/*.py", f"{folder}/*.py")
        if re.search(call, path.read_text()) and _name(path) not in allowed
    ]
    assert found == [], f"use {instead}"


def test_native_is_left_of_python() -> None:
    knowing = [
        _name(path)
        for path in tracked("native/src/**", "native/include/**")
        if path.suffix in (".cpp", ".h") and re.search(r"nanobind|Python\.h", path.read_text())
    ]
    assert knowing == [], "only native/bindings knows Python"


def test_no_work_is_left_in_comments() -> None:
    words = ("TO" + "DO", "FIX" + "ME", "XX" + "X:")
    found = [
        f"{_name(path)}: {word}"
        for path in tracked(*SOURCES)
        for word in words
        if word in path.read_text()
    ]
    assert found == [], "it needs an issue, or doing"


def test_promises_name_tests_that_exist() -> None:
    text = (ROOT / "docs" / "SEMANTICS.md").read_text()
    missing, module = [], ""
    for path, name in re.findall(r"`((?:[\w/]+\.py)?)(?:::(\w+))?`", text):
        if not (path or name):
            continue
        module = path or module
        file = ROOT / "tests" / module
        if not file.exists() or (name and f"def {name}(" not in file.read_text()):
            missing.append(f"{module}::{name}")
    assert missing == [], "docs/SEMANTICS.md names tests that are not there"
