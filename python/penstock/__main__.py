"""python -m penstock: the native command that is installed with the package, wherever its folder is."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import sysconfig
from pathlib import Path


def find_command() -> Path | None:
    """Beside the package, where wheels carry it; else where its record says, or where this interpreter's scripts are.

    What is on the PATH of a wheel is a script that starts the one beside the package, and `pip --target` loses it.
    """
    try:
        files = importlib.metadata.files("penstock") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    places = [Path(__file__).parents[1] / "penstock.scripts" / "penstock"]
    places += [
        Path(os.fspath(file.locate())) for file in files if file.name == "penstock" and file.parent.name == "bin"
    ]
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
