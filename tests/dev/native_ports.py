"""Files generated from the native module's stub: fscommon/native_ports.py and docs/NATIVE.md.

The stub is nanobind's description of the module. Each of its classes becomes a Protocol, so that
the product and the fakes of tests are checked against the real signatures, and a table of the
reference page, whose sentences are the docstrings of the bindings. `./dev build --stub` writes
both; `./dev check` compares them with what they should be.
"""

import ast
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tests.dev.steps import ROOT, tool

PORTS = ROOT / "fscommon" / "native_ports.py"
PAGE = ROOT / "docs" / "NATIVE.md"
# The names must differ from those of fscommon.net.tls.
_RENAMED = {"Tls": "NativeTls", "TlsContext": "NativeTlsContext"}
_DOCSTRING_MAX = 90
_MODULE_TEXT = '''
"""What Python may call of the native module, as Protocols. Generated: ./dev build --stub.

docs/NATIVE.md says what each method does. The door to the module is fscommon.native.
"""

from collections.abc import Sequence
from typing import Protocol
'''
_PAGE_TEXT = """# The native module, method by method

Generated from the bindings by `./dev build --stub`; `./dev check` compares.
What the calls have in common, the events, and who may call when is in
[INTERFACES.md](INTERFACES.md), section 3. A port is a part of `Datapath`, the native half of a
mounted client.
"""


def ports_text(stub: str) -> str:
    """The Protocols for that stub."""
    text = "\n\n".join([_MODULE_TEXT.lstrip(), *map(_protocol, _classes(stub))])
    words = [tool("ruff"), "format", "--stdin-filename", str(PORTS), "-"]
    return subprocess.run(words, input=text, check=True, capture_output=True, text=True).stdout


def page_text(stub: str) -> str:
    """The reference page for that stub."""
    return "\n".join([_PAGE_TEXT, *map(_table, _classes(stub))])


def generated(stub: str) -> dict[Path, str]:
    return {PORTS: ports_text(stub), PAGE: page_text(stub)}


def _classes(stub: str) -> list[ast.ClassDef]:
    return [node for node in ast.parse(stub).body if isinstance(node, ast.ClassDef)]


def _name(node: ast.ClassDef) -> str:
    return _RENAMED.get(node.name, node.name)


def _methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """The methods that a Protocol can have: neither constructors nor static methods."""
    for method in node.body:
        if not isinstance(method, ast.FunctionDef) or method.name.startswith("__"):
            continue
        if not any(_is(decorator, "staticmethod") for decorator in method.decorator_list):
            yield method


def _is(decorator: ast.expr, name: str) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id == name


def _is_property(method: ast.FunctionDef) -> bool:
    return any(_is(decorator, "property") for decorator in method.decorator_list)


def _typed(node: ast.expr | None) -> str:
    """A type as the stub has it, with the names of the Protocols."""
    text = ast.unparse(node) if node is not None else "None"
    for native, name in _RENAMED.items():
        text = " | ".join(name if part == native else part for part in text.split(" | "))
    return text


def _arguments(method: ast.FunctionDef) -> list[str]:
    spec = method.args
    plain = [*spec.posonlyargs, *spec.args]
    defaults = [None] * (len(plain) - len(spec.defaults)) + list(spec.defaults)
    words = [_argument(one, default) for one, default in zip(plain, defaults, strict=True)]
    if spec.kwonlyargs:
        words.append("*")
        pairs = zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
        words += [_argument(one, default) for one, default in pairs]
    return words


def _argument(one: ast.arg, default: ast.expr | None) -> str:
    if one.annotation is None:
        return one.arg
    typed = f"{one.arg}: {_typed(one.annotation)}"
    return typed if default is None else f"{typed} = {ast.unparse(default)}"


def _protocol(node: ast.ClassDef) -> str:
    text = textwrap.fill(f'"""{ast.get_docstring(node)}"""', _DOCSTRING_MAX)
    lines = [f"class {_name(node)}(Protocol):", textwrap.indent(text, "    "), ""]
    for method in _methods(node):
        lines += _signature(method)
    return "\n".join(lines)


def _signature(method: ast.FunctionDef) -> list[str]:
    head = ["    @property"] if _is_property(method) else []
    words = ", ".join(_arguments(method))
    return [*head, f"    def {method.name}({words}) -> {_typed(method.returns)}: ..."]


def _table(node: ast.ClassDef) -> str:
    methods = list(_methods(node))
    kind = "field" if methods and all(map(_is_property, methods)) else "method"
    rows = [f"| {kind} | |", "|---|---|", *map(_row, methods)]
    return "\n".join([f"## {_name(node)}", ast.get_docstring(node) or "", "", *rows, ""])


def _row(method: ast.FunctionDef) -> str:
    text = " ".join((ast.get_docstring(method) or "").split())
    returns = _typed(method.returns)
    if _is_property(method):
        call = f"{method.name}: {returns}"
    else:
        call = f"{method.name}({', '.join(_arguments(method)[1:])}) -> {returns}"
    return f"| `{call.replace('|', chr(92) + '|')}` | {text} |"
