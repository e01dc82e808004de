"""Checks the links of a built site: every page, picture and anchor that a page of it names must be there.

What lies elsewhere (http, mailto) is not asked for: a test must not depend on other people's machines.
"""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What a page offers as anchors, and what it names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value)
            elif name in ("href", "src"):
                self.links.add(value)
            elif name == "srcset":
                self.links |= {part.split()[0] for part in value.split(",") if part.split()}


def broken_links(site: Path) -> list[str]:
    """One line for each link that leads nowhere, and for each page that no link of another page leads to."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    reached = {site / "index.html", site / "404.html"}
    for path, page in pages.items():
        for link in sorted(page.links):
            target = local_target(site, path, link)
            if target is None:
                continue
            problem = what_is_wrong(target, urlsplit(link).fragment, pages)
            if problem:
                found.append(f"{path.relative_to(site)}: {link}: {problem}")
            elif target != path:
                reached.add(target)
    found += [f"{path.relative_to(site)}: no page links to it" for path in sorted(set(pages) - reached)]
    return found


def local_target(site: Path, page: Path, link: str) -> Path | None:
    """The file that a link means; nothing for what lies elsewhere."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    if not parts.path:
        return page
    path = unquote(parts.path)
    target = site / path.lstrip("/") if path.startswith("/") else (page.parent / path).resolve()
    return target / "index.html" if target.is_dir() or path.endswith("/") else target


def what_is_wrong(target: Path, anchor: str, pages: dict[Path, Page]) -> str:
    if not target.exists():
        return "there is no such file"
    if anchor and target in pages and unquote(anchor) not in pages[target].anchors:
        return "there is no such anchor"
    return ""
