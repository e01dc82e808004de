"""Who is not in the race, and why: said in the terminal, in the JSON and in docs/benchmarks.md."""

from __future__ import annotations

# name: reason
EVERYWHERE = {
    "InstantTensor": "loads into the memory of CUDA or ROCm devices only; this race is on the CPU",
    "fastsafetensors with GPUDirect Storage": "needs an NVIDIA GPU; its CPU path is raced",
    "FastPersist with GPUDirect Storage": "needs an NVIDIA GPU; its CPU path is raced",
    "runai-model-streamer, saving": "it only reads",
}


def all_reasons(left_out: dict[str, str]) -> dict[str, str]:
    """These, and the cases that could not run on this machine."""
    return {**EVERYWHERE, **left_out}
