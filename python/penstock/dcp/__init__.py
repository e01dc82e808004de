"""torch.distributed.checkpoint on penstock: `StorageWriter` and `StorageReader` for dcp.save, dcp.async_save, dcp.load.

Checkpoints are directories of ordinary safetensors files with a description in JSON, committed by one rename. See
docs/dcp.md.
"""

from ._convert import Converted, convert, load
from ._reader import StorageReader
from ._staging import Stager
from ._writer import StorageWriter

__all__ = ["Converted", "Stager", "StorageReader", "StorageWriter", "convert", "load"]
