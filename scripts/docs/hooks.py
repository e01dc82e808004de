"""What MkDocs is told beyond mkdocs.yml.

Pages of the repository that lie outside of docs/ become pages of the site: README.md is its first one. Links between
them are those that work in the repository, so they are turned into the site's here; a link to a source file becomes
the file's name. Places marked `<!-- generated: ... -->` are filled from the headers and from the command.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

import command
import headers
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(os.environ.get("PENSTOCK_COMMAND", ROOT / ".venv" / "bin" / "penstock"))

# Pages that lie elsewhere in the repository, and what they are called on the site.
ADOPTED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "bench/README.md": "measuring.md",
}
# What most readers look for comes first; the other headers follow by name.
FIRST = ("reader", "writer", "options", "tensor", "dtype", "memory", "convert", "seal", "torch")
FIRST_HEADERS = tuple(f"{name}.h" for name in FIRST)
FENCE = re.compile(r"^(```.*?^```\s*$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
PICTURE = re.compile(r'((?:src|srcset)=")([^"]+)(")')
GENERATED = re.compile(r"<!-- generated: (\w+) -->")


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    for source, name in ADOPTED.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    name = page.file.src_uri
    source = next((path for path, adopted in ADOPTED.items() if adopted == name), f"docs/{name}")
    markdown = GENERATED.sub(lambda found: generated(found[1]), markdown)
    parts = FENCE.split(markdown)
    parts[::2] = [with_links_of_the_site(part, source, name) for part in parts[::2]]
    return "".join(parts)


def generated(what: str) -> str:
    """The pages that are made from the sources."""
    if what == "headers":
        folder = ROOT / "include" / "penstock"
        others = sorted(path.name for path in folder.glob("*.h") if path.name not in FIRST_HEADERS)
        return headers.render([folder / name for name in (*FIRST_HEADERS, *others)])
    if what == "command":
        return command.render(COMMAND)
    raise ValueError(f"nothing is generated under the name {what}")


def with_links_of_the_site(text: str, source: str, name: str) -> str:
    """Markdown whose links start from `source` in the repository, for the page `name` of the site."""

    def link(found: re.Match[str]) -> str:
        target = site_target(found[3], source)
        return found[2] if target is None else f"{found[1]}[{found[2]}]({relative(target, name)})"

    def picture(found: re.Match[str]) -> str:
        return f"{found[1]}{relative(site_target(found[2], source) or found[2], name)}{found[3]}"

    return PICTURE.sub(picture, LINK.sub(link, text))


def site_target(link: str, source: str) -> str | None:
    """A link as the site's, from its root; nothing for a file that the site has not got."""
    path, _, anchor = link.partition("#")
    anchor = f"#{anchor}" if anchor else ""
    if "://" in link or link.startswith(("mailto:", "#")):
        return link
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if path in ADOPTED:
        return ADOPTED[path] + anchor
    if re.fullmatch(r"include/penstock/\w+\.h", path):
        return f"reference/cpp.md#{posixpath.basename(path).replace('.', '')}"
    return path.removeprefix("docs/") + anchor if path.startswith("docs/") else None


def relative(target: str, name: str) -> str:
    if "://" in target or target.startswith(("mailto:", "#")):
        return target
    path, mark, anchor = target.partition("#")
    return posixpath.relpath(path, posixpath.dirname(name) or ".") + mark + anchor
