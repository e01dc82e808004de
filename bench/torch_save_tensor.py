"""Saves one large tensor by torch.save, safetensors, DeepSpeed's FastPersist where it is installed, and penstock.

    python torch_save_tensor.py --folder /mnt/nvme0 --mb_size 2048 --zipfile

The tensor has random bytes.
"""

from __future__ import annotations

import argparse

import save_driver
from save_rows import MIB, SAVE_ROWS


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb_size", type=int, required=True, help="size of the tensor, MB")
    save_driver.add_arguments(parser)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    save_driver.check_arguments(arguments, arguments.mb_size * MIB)
    rows = save_driver.runnable(SAVE_ROWS, arguments)
    for zipped in save_driver.formats(arguments):
        save_driver.run(rows, arguments, zipped)


if __name__ == "__main__":
    main()
