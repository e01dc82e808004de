"""For code that is written for DeepSpeed's FastPersist: change the import, keep the rest.

    from penstock.fastpersist import CheckpointEngine, fastpersist_save, serialization
    from penstock.fastpersist import FastFileWriter, FastFileWriterConfig, get_aio_handle, get_pinned_buffer

    writer = FastFileWriter("model.pt", FastFileWriterConfig(get_aio_handle(), get_pinned_buffer()))
    torch.save(model.state_dict(), writer)
    writer.close()

    stats = fastpersist_save(model.state_dict(), "model.pt")
    serialization.save(model.state_dict(), "model.pt")  # torch.save, and serialization.load for torch.load
    engine = CheckpointEngine({"checkpoint": {"writer": {"decoupled": True}}})

DeepSpeed itself saves and loads by these engines after `install_into_deepspeed()`.

What differs, on purpose:

- A file appears under its name when all of it is there, synced; an older, longer one leaves nothing behind, and after
  an error it is still there. Permissions follow the umask.
- Every completion is checked: a full disk is an error, of the next call and of `close` or `wait`.
- A writer that is never closed saves nothing, and warns.
- Buffers and sizes need no alignment.
"""

from . import serialization
from ._deepspeed import DeepSpeedInstallation, install_into_deepspeed
from .aio import aio_handle, get_aio_handle, get_gds_handle
from .engine import CheckpointEngine
from .pinned import get_pinned_buffer
from .save import fastpersist_save, fastpersist_save_legacy
from .writers import FastFileWriter, FastFileWriterConfig, MockFileWriter, PyFileWriter

__all__ = [
    "CheckpointEngine",
    "DeepSpeedInstallation",
    "FastFileWriter",
    "FastFileWriterConfig",
    "MockFileWriter",
    "PyFileWriter",
    "aio_handle",
    "fastpersist_save",
    "fastpersist_save_legacy",
    "get_aio_handle",
    "get_gds_handle",
    "get_pinned_buffer",
    "install_into_deepspeed",
    "serialization",
]
