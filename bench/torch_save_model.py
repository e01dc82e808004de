"""Saves a model by torch.save, safetensors, DeepSpeed's FastPersist where it is installed, and penstock.

    python torch_save_model.py --folder /mnt/nvme0 --model phi3 --half --zipfile

The models have random weights in the shapes of the known ones; nothing is downloaded.
"""

from __future__ import annotations

import argparse

import save_driver
from checkpoint_models import MODELS, nbytes_of
from save_rows import SAVE_ROWS


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=list(MODELS), default="tiny-t5", help="(default: %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the model's parameters (default: all)")
    parser.add_argument("--half", action="store_true", help="16-bit tensors")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    parser.add_argument("--optimizer", action="store_true", help="save the state of Adam too")
    save_driver.add_arguments(parser)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    nbytes = nbytes_of(arguments.model, arguments.scale, arguments.half, arguments.optimizer)
    save_driver.check_arguments(arguments, nbytes)
    print(f"Model name = {arguments.model}")
    rows = save_driver.runnable(SAVE_ROWS, arguments)
    for zipped in save_driver.formats(arguments):
        save_driver.run(rows, arguments, zipped)


if __name__ == "__main__":
    main()
