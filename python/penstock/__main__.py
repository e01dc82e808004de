"""python -m penstock: the native command that is installed with the package, wherever its folder is."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import sysconfig
from pathlib import Path


def find_command() -> Path | None:
    """Where the installer put it, which its record says; else where scripts of this interpreter are."""
    try:
        files = importlib.metadata.files("penstock") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    places = [Path(os.fspath(file.locate())) for file in files if file.name == "penstock" and file.parent.name == "bin"]
    places.append(Path(sysconfig.get_path("scripts")) / "penstock")
    return next((place.resolve() for place in places if os.access(place, os.X_OK) and place.is_file()), None)


def main() -> int:
    command = find_command()
    if command is not None:
        # In this process's place: exit codes and signals are the command's own.
        os.execv(command, [os.fspath(command), *sys.argv[1:]])
    print("penstock: the native command is not installed with this package; reinstall it", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
