"""Saves a model with its optimizer's state through checkpoint engines: DeepSpeed's where it is installed, and penstock's.

    python deepspeed_save_model.py --folder /mnt/nvme0 --model phi3 --half

Both are given the same settings. The decoupled engine's row ends when the file is on the drive; how little it blocks is what
the races `async` and `train` measure.
"""

from __future__ import annotations

import argparse

import save_driver
from checkpoint_models import nbytes_of
from engine_rows import ENGINE_ROWS
from save_rows import SAVE_ROWS
from torch_save_model import add_model_arguments


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    parser.add_argument("--zero_stage", type=int, choices=[0], default=0, help="0: one process has all of the state")
    parser.add_argument("--cpu_offload", action="store_true", help="changes nothing: the state is in host memory")
    parser.add_argument("--fused", action="store_true", help="changes nothing: the optimizer does not run")
    save_driver.add_arguments(parser)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    arguments.optimizer = True
    save_driver.check_arguments(arguments, nbytes_of(arguments.model, arguments.scale, arguments.half, optimizer=True))
    print(f"Model name = {arguments.model}")
    rows = save_driver.runnable({"test_save": SAVE_ROWS["test_save"], **ENGINE_ROWS}, arguments)
    for zipped in save_driver.formats(arguments, default_is_zip=True):
        save_driver.run(rows, arguments, zipped)


if __name__ == "__main__":
    main()
