"""NVIDIA's (once Run:ai's) model streamer: the tensors of safetensors files as they arrive, all of them kept.

It only reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cases import COLD_LOAD, COLD_REUSED, HALF_LOAD, MOE_COLD, SHARDS_COLD, WARM_LOAD, Case, Task
from cases.again import again
from tensors import checkpoint_files


def load(task: Task) -> Callable[[], Any]:
    from runai_model_streamer import SafetensorsStreamer

    files = checkpoint_files(task.file)

    def stream() -> dict[str, Any]:
        with SafetensorsStreamer() as streamer:
            streamer.stream_files(files, device="cpu")
            return dict(streamer.get_tensors())

    return stream


CASES = [
    *(
        Case("runai-model-streamer", race, "peer", start=load)
        for race in (COLD_LOAD, WARM_LOAD, HALF_LOAD, SHARDS_COLD, MOE_COLD)
    ),
    Case("runai-model-streamer", COLD_REUSED, "peer", start=again(load)),
]
