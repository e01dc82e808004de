"""penstock.flashpack in the place of the flashpack package."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import penstock.flashpack
import pytest
from helpers import run_python
from penstock import ArgumentError
from penstock.flashpack import install_as_flashpack
from penstock.flashpack.integrations import uninstall_as_flashpack

NATIVE = """
    import sys
    from penstock.flashpack import install_as_flashpack
    install_as_flashpack()
    import warnings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import diffusers
        from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
    import torch
    assert diffusers.utils.is_flashpack_available()
    torch.manual_seed(0)
    net = UNet2DModel(
        sample_size=8,
        block_out_channels=(8, 8),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )
    pipe = DDPMPipeline(net.eval(), DDPMScheduler(num_train_timesteps=10))
    pipe.save_pretrained(sys.argv[1], use_flashpack=True)
    loaded = DDPMPipeline.from_pretrained(sys.argv[1], use_flashpack=True)
    def images(pipe):
        pipe.set_progress_bar_config(disable=True)
        return pipe(generator=torch.Generator().manual_seed(1), num_inference_steps=2, output_type="np").images
    print("equal images:", (images(pipe) == images(loaded.to("cpu"))).all())
    state = loaded.unet.state_dict()
    print("equal weights:", all(torch.equal(state[name], tensor) for name, tensor in net.state_dict().items()))
    model = UNet2DModel.from_pretrained(sys.argv[1], subfolder="unet", use_flashpack=True)
    torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        model.conv_in.weight.add_(1)
    print("writable:", torch.equal(model.conv_in.weight, net.conv_in.weight + 1))
    import flashpack
    print("ours:", flashpack.__name__, flashpack.mixin.__name__)
"""


def aliases() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "flashpack"]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that has not imported diffusers yet."""
    assert aliases() == []  # only if asked
    monkeypatch.delitem(sys.modules, "diffusers", raising=False)
    before = list(sys.meta_path)
    install_as_flashpack()
    yield
    uninstall_as_flashpack()
    assert sys.meta_path == before
    assert aliases() == []


def test_diffusers_own_use_flashpack_works_with_penstock(tmp_path: Path) -> None:
    if importlib.util.find_spec("diffusers") is None:
        pytest.skip("diffusers is not installed")
    result = run_python(NATIVE, str(tmp_path / "pipe"))
    assert result.stdout.splitlines() == [
        "equal images: True",
        "equal weights: True",
        "writable: True",
        "ours: penstock.flashpack penstock.flashpack.mixin",
    ]
    assert penstock.flashpack.is_flashpack_file(tmp_path / "pipe" / "unet" / "model.flashpack")


def test_diffusers_that_was_imported_before_is_an_error_that_says_so() -> None:
    import tiny_models

    if tiny_models.diffusers.utils.is_flashpack_available():
        pytest.skip("flashpack is installed, and diffusers has found it")
    with pytest.raises(
        ArgumentError, match=r"diffusers is imported already and has found no flashpack; .* or use patch"
    ):
        install_as_flashpack()
    assert "flashpack" not in sys.modules


def test_modules_under_the_other_name_are_the_same_objects(installed: None) -> None:
    install_as_flashpack()  # again
    theirs = importlib.import_module("flashpack")
    assert theirs is penstock.flashpack
    assert importlib.import_module("flashpack.deserialization") is penstock.flashpack.deserialization
    patch = importlib.import_module("flashpack.integrations.patch")
    assert patch.patch_integrations is penstock.flashpack.patch_integrations
    assert importlib.import_module("flashpack.mixin").FlashPackMixin is penstock.flashpack.FlashPackMixin
    assert not hasattr(theirs.mixin, "__path__")
    for name in aliases():
        module = sys.modules[name]
        assert module is sys.modules[f"penstock.{name}"]
        assert module.__spec__ is not None
        assert module.__spec__.name == module.__name__ == f"penstock.{name}"
    with pytest.raises(ModuleNotFoundError, match=r"flashpack\.no_such_module"):
        importlib.import_module("flashpack.no_such_module")


def test_availability_checks_find_it(installed: None) -> None:
    assert importlib.util.find_spec("flashpack") is not None
    assert importlib.util.find_spec("flashpack.mixin") is not None
    assert importlib.util.find_spec("flashpack.nothing") is None
    assert importlib.metadata.version("flashpack") == "0.4.5"
    assert importlib.metadata.packages_distributions()["flashpack"][0] == "flashpack"
    assert importlib.metadata.version("pytest") == pytest.__version__


def test_it_can_be_taken_back_and_asked_for_again(installed: None) -> None:
    importlib.import_module("flashpack.mixin")
    before = list(sys.meta_path)
    uninstall_as_flashpack()
    uninstall_as_flashpack()
    assert aliases() == []
    assert sys.meta_path == before[1:]
    install_as_flashpack()
    assert importlib.import_module("flashpack") is penstock.flashpack


def test_the_real_package_is_never_replaced_once_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModuleType("flashpack")
    real.__file__ = "/some/where/flashpack/__init__.py"
    monkeypatch.setitem(sys.modules, "flashpack", real)
    before = list(sys.meta_path)
    with pytest.raises(ArgumentError, match=r"flashpack is imported already, from /some/where/flashpack/__init__\.py"):
        install_as_flashpack()
    assert sys.modules["flashpack"] is real
    assert sys.meta_path == before
