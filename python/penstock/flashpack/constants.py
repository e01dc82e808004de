"""The constants of the format and the defaults of the calls."""

import struct

# A file ends with the length of its JSON and this.
MAGIC = b"FLASHPK\0"
U64LE = struct.Struct("<Q")

FILE_FORMAT_V3 = "flashpack_v3"  # one element type
FILE_FORMAT_V4 = "flashpack_v4"  # several: a macroblock each

DEFAULT_ALIGN_BYTES = 128

# The engine chooses how deep and in what pieces it reads and writes: these are accepted, and change nothing.
DEFAULT_NUM_WRITE_WORKERS = 32
DEFAULT_NUM_STREAMS = 4
DEFAULT_CHUNK_BYTES = 4 * 2**20

# When every rank reads its share, shares begin at multiples of the first and are at most the second.
SHARD_ALIGN_BYTES = 4096
DEFAULT_SHARD_BYTES = 256 * 2**20

# One range per rank, or many small ones that take turns.
SHARD_STRATEGY_CONTIGUOUS = "contiguous"
SHARD_STRATEGY_WINDOWS = "windows"
SHARD_STRATEGIES = (SHARD_STRATEGY_CONTIGUOUS, SHARD_STRATEGY_WINDOWS)
DEFAULT_SHARD_STRATEGY = SHARD_STRATEGY_CONTIGUOUS
