"""install_as_fastsafetensors: this package under the name of the one that it stands in for."""

from __future__ import annotations

from .._stand_in import stand_aside, stand_in

_NAME = "fastsafetensors"
_OURS = "penstock.fastsafetensors"
_VERSION = "0.5.0"  # whose interface this is


def install_as_fastsafetensors() -> None:
    """From here on ``import fastsafetensors`` gives penstock.fastsafetensors, in this process.

    Servers that load with fastsafetensors where it is installed, as vLLM and SGLang do for
    ``--load-format fastsafetensors``, load with penstock then. It is to be called before they import it. Calling it
    again changes nothing; `uninstall_as_fastsafetensors` takes it back.
    """
    stand_in(_NAME, _OURS, _VERSION, "install_as_fastsafetensors()")


def uninstall_as_fastsafetensors() -> None:
    """Takes back what `install_as_fastsafetensors` did. Modules that have imported it keep what they have."""
    stand_aside(_NAME)
