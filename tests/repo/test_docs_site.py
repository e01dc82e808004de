"""What turns the repository into a site: headers, docstrings and links."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "docs"))

import arguments  # noqa: E402
import command  # noqa: E402
import headers  # noqa: E402
import links  # noqa: E402

HEADER = """// Pipe: carries water.
//
// Its kinds are
//   kWide    wide
#pragma once

namespace penstock {

// Opens or closes. A `Pipe` is <not> copied.
class Pipe {
 public:
  struct State;  // the library's own

  explicit Pipe(int width);

  // Litres.
  int flow() const;

 private:
  int width_;
};

int count(const Pipe& pipe);

template <typename T>
void internal(T value);

}  // namespace penstock
"""


def test_a_header_becomes_prose_and_declarations() -> None:
    assert headers.render_header("pipe.h", HEADER) == (
        "## pipe.h\n\nPipe: carries water.\n\nIts kinds are\n\n```text\n  kWide    wide\n```\n\n"
        "### `Pipe`\n\nOpens or closes. A `Pipe` is \\<not> copied.\n\n"
        "```cpp\nclass Pipe {\n public:\n  explicit Pipe(int width);\n\n  // Litres.\n  int flow() const;\n};\n```\n\n"
        "### `count()`\n\n```cpp\nint count(const Pipe& pipe);\n```\n"
    )


def test_every_public_header_is_on_the_page() -> None:
    paths = sorted((ROOT / "include" / "penstock").glob("*.h"))
    page = headers.render(paths)
    assert [line for line in page.splitlines() if line.startswith("## ")] == [f"## {path.name}" for path in paths]
    assert {"### `Reader`", "### `Writer`", "### `CachePolicy`", "### `diagnose()`"} <= set(page.splitlines())


def test_arguments_of_a_docstring_become_a_section() -> None:
    text = "Does it.\n\nNote: this stays.\n\npath: where\n    it is.\nfirst, second: both.\nThe others are plain."
    assert arguments.with_sections(text, {"path", "first", "second"}) == (
        "Does it.\n\nNote: this stays.\n\n"
        "Args:\n    path: where\n        it is.\n    first: see `second`.\n    second: both.\n\nThe others are plain."
    )


def test_headings_of_the_command_lie_below_the_pages_own() -> None:
    text = "# penstock\n\n```sh\n# a comment\n```\n\n## penstock ls\n"
    lower = "## penstock\n\n```sh\n# a comment\n```\n\n### penstock ls\n"
    assert command.with_lower_headings(text) == lower


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<h1 id="top"></h1><a href="a.html#there">1</a><a href="a.html#gone">2</a><a href="b.html">3</a>'
        '<img src="no.svg" srcset="no2.svg 2x"><a href="#top">4</a><a href="https://example.com/x">5</a>'
    )
    (tmp_path / "a.html").write_text('<p id="there"></p><a href="index.html">back</a>')
    (tmp_path / "alone.html").write_text("")
    assert links.broken_links(tmp_path) == [
        "index.html: a.html#gone: there is no such anchor",
        "index.html: b.html: there is no such file",
        "index.html: no.svg: there is no such file",
        "index.html: no2.svg: there is no such file",
        "alone.html: no page links to it",
    ]


def test_the_reference_of_python_has_every_public_name() -> None:
    module = ast.parse((ROOT / "python" / "penstock" / "__init__.py").read_text(encoding="utf-8"))
    lists = [node.value for node in module.body if isinstance(node, ast.Assign) and names_all(node)]
    public = set(ast.literal_eval(lists[0]))
    errors = ast.parse((ROOT / "python" / "penstock" / "errors.py").read_text(encoding="utf-8"))
    on_a_page_of_their_own = {"__version__", "dcp", "fastpersist", "flashpack", "safetensors"}
    of_errors = {node.name for node in errors.body if isinstance(node, ast.ClassDef)}
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^::: penstock\.([\w.]+)$", page, re.MULTILINE))
    assert public - shown - of_errors - on_a_page_of_their_own == set()


def names_all(node: ast.Assign) -> bool:
    return [getattr(target, "id", None) for target in node.targets] == ["__all__"]
