"""The house rules for C++ that a reviewer would otherwise repeat.

They concern lengths of functions and lines, cycles of units, and the order of the folders of
native/src. The scan knows of C++ only braces, strings and comments: clang-format has brought the
rest into a fixed form.
"""

import re
from collections.abc import Iterator
from enum import Enum, auto
from pathlib import Path

import pytest

from tests.test_tidy import FUNCTION_LINES_MAX, ROOT, tracked

COLUMNS_MAX = 100
NATIVE = ROOT / "native"

# The folders with which each folder of native/src is linked, lowest folder first. A folder includes
# headers of its own, of these, of those with which these are linked in turn, and of native/include.
LINKS: dict[str, tuple[str, ...]] = {
    "core": (),
    "net": ("core",),
    "rdma": ("net",),
    "store": ("core",),
    "server": ("net", "rdma", "store"),
    "cache": ("core", "net"),
    "fuse": ("net",),
    "names": ("fuse",),
    "client": ("cache", "core", "net", "rdma", "names"),
}

# How many units of a folder may include each other in one cycle. One is no cycle, and the value for
# a new folder; a larger number is a debt, which only shrinks.
CIRCLE_UNITS_MAX = dict.fromkeys(LINKS, 1) | {"rdma": 2, "server": 3, "client": 2}

# Text in a source that is not code: comments, strings (raw ones too), characters, and preprocessor
# lines. A quote between two digits separates these.
NOT_CODE = re.compile(
    r"//[^\n]*"
    r"|/\*.*?\*/"
    r'|R"(?P<mark>[^()\s]*)\(.*?\)(?P=mark)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"
    r"|^[ \t]*#(?:\\\n|[^\n])*",
    re.S | re.M,
)
SCOPE = re.compile(r"\b(?:namespace|class|struct|union|enum)\b(?!.*\))|\bextern\b\s*$", re.S)
ALIGNMENT = re.compile(r"\balignas\([^)]*\)")
ACCESS = re.compile(r"\s*(?:public|private|protected):")


def _code(text: str) -> str:
    """The text with everything that is not code blanked, line breaks kept."""
    return NOT_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


class Scope(Enum):
    """What an open brace began."""

    DECLARATIONS = auto()  # it is of a namespace or a class
    BODY = auto()  # it is of a function
    VALUE = auto()  # for example `part_{0}` or `= {1, 2}`: the declaration goes on after it
    INNER = auto()  # it is anything inside a body or a value


def _functions(text: str) -> Iterator[tuple[str, int]]:
    """Head and length in lines of every function that is not inside another one."""
    code = _code(text)
    scopes: list[Scope] = []
    head_at = 0
    for found in re.finditer(r"[{};]", code):
        at = found.start()
        outside = all(scope is Scope.DECLARATIONS for scope in scopes)
        if found.group() == "{":
            scopes.append(_scope(code[head_at:at]) if outside else Scope.INNER)
        elif found.group() == "}":
            closed = scopes.pop()
            if closed is Scope.BODY:
                yield _head_and_length(code[head_at : at + 1])
            outside = closed in (Scope.BODY, Scope.DECLARATIONS)
        if outside and (found.group() != "{" or scopes[-1] is Scope.DECLARATIONS):
            head_at = at + 1
    assert scopes == [], "braces are not balanced"


def _scope(head: str) -> Scope:
    if SCOPE.search(ALIGNMENT.sub("", head)):
        return Scope.DECLARATIONS
    starts_value = not head[-1:].isspace() or head.rstrip().endswith("=")
    return Scope.VALUE if starts_value else Scope.BODY


def _head_and_length(function: str) -> tuple[str, int]:
    function = ACCESS.sub("", function, count=1).strip()
    head = re.split(r"\s\{|\n +:", function, maxsplit=1)[0]
    return " ".join(head.split()), function.count("\n") + 1


def _units(folder: str) -> dict[str, list[Path]]:
    """By their names, those of a folder in the folder as `prefetch/table`."""
    units: dict[str, list[Path]] = {}
    top = NATIVE / "src" / folder
    for path in tracked(f"native/src/{folder}/*.cpp", f"native/src/{folder}/*.h"):
        units.setdefault(str(path.relative_to(top).with_suffix("")), []).append(path)
    return units


def _includes(path: Path) -> list[tuple[str, str]]:
    """Folder and header of each quoted include. A folder in a folder is part of that one."""
    return re.findall(r'^#include "(?:([^/"]*)/)?([^"]+)"', path.read_text(), re.M)


def _circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The sets of units of which each reaches every other one, the largest first."""
    reached = {unit: _reached(unit, edges) for unit in edges}
    circles = {
        tuple(sorted(other for other in edges if other in reached[unit] and unit in reached[other]))
        for unit in edges
    }
    return sorted((list(circle) for circle in circles if circle), key=len, reverse=True)


def _reached(start: str, edges: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for other in edges[waiting.pop()] - found:
            found.add(other)
            waiting.append(other)
    return found


def test_functions_are_short() -> None:
    long = {
        f"{path.relative_to(ROOT)}: {head}": lines
        for path in tracked("*.cpp", "*.h")
        for head, lines in _functions(path.read_text())
        if lines > FUNCTION_LINES_MAX
    }
    assert long == {}, f"over {FUNCTION_LINES_MAX} lines"


def test_lines_are_short() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked("*.cpp", "*.h")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if len(line) > COLUMNS_MAX
    ]
    assert long == [], f"over {COLUMNS_MAX} columns: clang-format does not break every comment"


def test_every_folder_is_in_the_table() -> None:
    sources = tracked("native/src/*.h", "native/src/*.cpp")
    folders = {path.relative_to(NATIVE / "src").parts[0] for path in sources}
    assert folders == set(LINKS)


@pytest.mark.parametrize("folder", LINKS)
def test_folders_are_linked_as_the_table_says(folder: str) -> None:
    text = (NATIVE / "src" / folder / "CMakeLists.txt").read_text()
    linked = re.findall(rf"target_link_libraries\(braid_{folder} ([^)]*)\)", text)
    found = set(re.findall(r"\bbraid_(\w+)", " ".join(linked))) - {"options"}
    assert found == set(LINKS[folder])
    assert all(list(LINKS).index(lower) < list(LINKS).index(folder) for lower in found)


@pytest.mark.parametrize("folder", LINKS)
def test_lower_folders_never_include_higher_ones(folder: str) -> None:
    allowed = _reached(folder, {name: set(links) for name, links in LINKS.items()})
    allowed |= {folder, "braidfs"}
    found = [
        f"{path.name} includes {other}/{header}"
        for paths in _units(folder).values()
        for path in paths
        for other, header in _includes(path)
        if other not in allowed
    ]
    assert found == [], f"{folder} may include {sorted(allowed)}"


def test_public_headers_include_no_source_folder() -> None:
    found = [
        f"{path.name} includes {other}/{header}"
        for path in tracked("native/include/*.h")
        for other, header in _includes(path)
        if other != "braidfs"
    ]
    assert found == []


@pytest.mark.parametrize("folder", LINKS)
def test_units_include_each_other_in_no_circle(folder: str) -> None:
    units = _units(folder)
    headers = {unit for unit, paths in units.items() if any(p.suffix == ".h" for p in paths)}
    edges = {
        unit: {
            header.removesuffix(".h")
            for path in paths
            for other, header in _includes(path)
            if other == folder
        }
        & headers - {unit}
        for unit, paths in units.items()
    }
    circles = [circle for circle in _circles(edges) if len(circle) > CIRCLE_UNITS_MAX[folder]]
    assert circles == [], "each of these units includes all the others, directly or not"


def test_a_long_function_is_found() -> None:
    """The scan finds functions in every form: in classes, after labels, with initializers."""
    body = "\n".join(["  call(1'000, '{', \"}\");  // {"] * 3)
    text = f"""
namespace a {{
enum class Kind {{ kOne, kTwo }};
constexpr int kTable[] = {{1, 2}};
struct Plain {{
  std::atomic<int> count{{0}};
}};
class Thing final : public Base {{
 public:
  Thing(int x)
      : x_{{x}}, y_(x) {{
{body}
  }}
  int get() const {{ return x_; }}
}};
#define OPEN {{
template <class T>
struct Plain free(const struct Plain& x,
           int y) {{
  if (x) {{
{body}
  }}
}}
const auto kCall = [](int x) {{
  return x;
}};
}}  // namespace a
TEST(Thing, GetsSomething) {{
  const auto inner = [] {{ return std::vector<int>{{1}}; }};
}}
"""
    found = {head.split("(")[0]: lines for head, lines in _functions(text)}
    assert found == {
        "Thing": 6,
        "int get": 1,
        "template <class T> struct Plain free": 9,
        "const auto kCall = []": 3,
        "TEST": 3,
    }


def test_a_circle_is_found() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}
    assert _circles(edges) == [["a", "b", "c"]]
