"""Builds the site of docs/ in build/site, refuses warnings, and checks every link in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import links

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"


def main() -> int:
    # Not with --quiet: what is not shown is not counted as a warning either.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--site-dir", str(SITE)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout + done.stderr, file=sys.stderr)
        return 1
    broken = links.broken_links(SITE)
    for problem in broken:
        print(f"[docs] {problem}", file=sys.stderr)
    pages = len(list(SITE.rglob("*.html")))
    print(f"[docs] {pages} pages in build/site, {len(broken) or 'no'} broken links")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
