"""penstock.flashpack with models and pipelines of diffusers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import tiny_models
import torch
from helpers import run_python
from penstock import ArgumentError, NotFoundError
from penstock.flashpack import get_flashpack_file_metadata, is_flashpack_file
from penstock.flashpack.integrations import diffusers as integration
from penstock.flashpack.integrations import patch_integrations, unpatch_integrations
from penstock.flashpack.integrations.diffusers import (
    AutoFlashPackModel,
    FlashPackDiffusersModelMixin,
    FlashPackDiffusionPipeline,
)
from tiny_models import assert_same_state, diffusers, images, transformers


class FlashPackUNet(diffusers.UNet2DModel, FlashPackDiffusersModelMixin):
    pass


class FlashPackDDPM(diffusers.DDPMPipeline, FlashPackDiffusionPipeline):
    pass


class AnnotatedDDPM(diffusers.DDPMPipeline, FlashPackDiffusionPipeline):
    """As flashpack's README has it: the annotation asks for the class."""

    def __init__(self, unet: FlashPackUNet, scheduler: diffusers.DDPMScheduler) -> None:
        super().__init__(unet, scheduler)


class TextPipeline(FlashPackDiffusionPipeline):
    """A model of each library, and one that need not be there."""

    _optional_components: ClassVar[list[str]] = ["extra"]

    def __init__(self, unet: Any, text_encoder: Any, scheduler: Any, extra: Any = None, steps: int = 3) -> None:
        super().__init__()
        self.register_modules(unet=unet, text_encoder=text_encoder, scheduler=scheduler, extra=extra)
        self.register_to_config(steps=steps)


@pytest.fixture
def patched() -> Iterator[None]:
    patch_integrations()
    yield
    unpatch_integrations()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a pipeline, which no test changes."""
    folder = tmp_path_factory.mktemp("pipeline")
    tiny_models.pipeline(FlashPackDDPM).save_pretrained_flashpack(folder)
    return folder


def text_pipeline() -> TextPipeline:
    return TextPipeline(
        tiny_models.unet(), tiny_models.bert(), diffusers.DDPMScheduler(num_train_timesteps=10), steps=7
    )


def sample(model: Any) -> torch.Tensor:
    noise = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        found = model(noise, 3).sample
    assert isinstance(found, torch.Tensor)
    return found


def test_a_unet_comes_back_with_an_equal_output(tmp_path: Path) -> None:
    model = tiny_models.unet(FlashPackUNet)
    model.save_pretrained_flashpack(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.flashpack"}
    loaded = FlashPackUNet.from_pretrained_flashpack(tmp_path)
    assert type(loaded) is FlashPackUNet
    assert not loaded.training
    assert_same_state(loaded, model)
    assert torch.equal(sample(loaded), sample(model))
    assert loaded.config.block_out_channels == [8, 16]


def test_the_configuration_names_the_class_of_diffusers(tmp_path: Path) -> None:
    tiny_models.unet(FlashPackUNet).save_pretrained_flashpack(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["_class_name"] == "UNet2DModel"
    assert type(diffusers.AutoModel.from_config(str(tmp_path))) is diffusers.UNet2DModel


def test_types_variants_and_subfolders_of_a_unet(tmp_path: Path) -> None:
    model = tiny_models.unet(FlashPackUNet)
    model.save_pretrained_flashpack(tmp_path / "unet", variant="fp16", target_dtype=torch.float16)
    path = tmp_path / "unet" / "model.fp16.flashpack"
    assert get_flashpack_file_metadata(path)["target_dtype"] == "float16"
    loaded = FlashPackUNet.from_pretrained_flashpack(tmp_path, subfolder="unet", variant="fp16")
    assert loaded.dtype == torch.float16
    assert torch.equal(loaded.conv_in.weight, model.conv_in.weight.half())
    wide = FlashPackUNet.from_pretrained_flashpack(tmp_path / "unet", variant="fp16", torch_dtype=torch.float32)
    assert wide.dtype == torch.float32
    assert torch.equal(wide.conv_in.weight, model.conv_in.weight.half().float())
    with pytest.raises(NotFoundError, match=r"unet/model\.flashpack: no such file"):
        FlashPackUNet.from_pretrained_flashpack(tmp_path, subfolder="unet")


def test_a_model_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    tiny_models.unet(FlashPackUNet).save_pretrained_flashpack(tmp_path)
    with pytest.raises(ArgumentError, match=r"conv_in\.weight has shape \[8, 3, 3, 3\] in the file and \[8, 4, 3, 3\]"):
        FlashPackUNet.from_pretrained_flashpack(tmp_path, in_channels=4)


@pytest.mark.parametrize("cls", [FlashPackDDPM, FlashPackDiffusionPipeline, AnnotatedDDPM])
def test_a_pipeline_comes_back_and_makes_equal_images(saved: Path, cls: Any) -> None:
    loaded = cls.from_pretrained_flashpack(saved)
    assert isinstance(loaded, diffusers.DDPMPipeline)
    assert isinstance(loaded, FlashPackDiffusionPipeline)
    assert not loaded.unet.training
    assert loaded.scheduler.config.num_train_timesteps == 10
    assert np.array_equal(images(loaded), images(tiny_models.pipeline()))


def test_the_index_names_classes_of_diffusers(saved: Path, tmp_path: Path) -> None:
    index = json.loads((saved / "model_index.json").read_text())
    assert index["_class_name"] == "DDPMPipeline"
    assert index["unet"] == ["diffusers", "UNet2DModel"]
    pipe = tiny_models.pipeline(FlashPackDDPM, tiny_models.unet(FlashPackUNet))
    pipe.save_pretrained_flashpack(tmp_path)
    assert json.loads((tmp_path / "model_index.json").read_text()) == index


def test_components_are_of_the_class_that_the_pipeline_asks_for(saved: Path) -> None:
    assert type(AnnotatedDDPM.from_pretrained_flashpack(saved).unet) is FlashPackUNet
    assert type(FlashPackDDPM.from_pretrained_flashpack(saved).unet) is diffusers.UNet2DModel


def test_a_pipeline_of_both_libraries_with_a_type_for_each(tmp_path: Path) -> None:
    pipe = text_pipeline()
    pipe.save_pretrained_flashpack(tmp_path, target_dtype={"unet": torch.bfloat16, "text_encoder": torch.float16})
    for name, dtype in (("unet", "bfloat16"), ("text_encoder", "float16")):
        assert get_flashpack_file_metadata(tmp_path / name / "model.flashpack")["target_dtype"] == dtype
    loaded = TextPipeline.from_pretrained_flashpack(tmp_path)
    assert (loaded.unet.dtype, loaded.text_encoder.dtype) == (torch.bfloat16, torch.float16)
    assert type(loaded.text_encoder) is transformers.BertModel
    assert loaded.extra is None
    assert loaded.config.steps == 7
    kept = pipe.text_encoder.pooler.dense.weight.half()
    assert torch.equal(loaded.text_encoder.pooler.dense.weight, kept)


def test_types_on_load_are_given_for_all_or_for_each(tmp_path: Path) -> None:
    text_pipeline().save_pretrained_flashpack(tmp_path, target_dtype={"default": torch.bfloat16})
    loaded = TextPipeline.from_pretrained_flashpack(tmp_path)
    assert (loaded.unet.dtype, loaded.text_encoder.dtype) == (torch.bfloat16, torch.bfloat16)
    loaded = TextPipeline.from_pretrained_flashpack(tmp_path, dtype=torch.float32)
    assert (loaded.unet.dtype, loaded.text_encoder.dtype) == (torch.float32, torch.float32)
    loaded = TextPipeline.from_pretrained_flashpack(tmp_path, dtype={"unet": torch.float16, "default": torch.float64})
    assert (loaded.unet.dtype, loaded.text_encoder.dtype) == (torch.float16, torch.float64)


def test_a_variant_of_a_pipeline(tmp_path: Path) -> None:
    pipe = tiny_models.pipeline(FlashPackDDPM)
    pipe.save_pretrained_flashpack(tmp_path, variant="fp16", target_dtype=torch.float16)
    loaded = FlashPackDDPM.from_pretrained_flashpack(tmp_path, variant="fp16")
    assert loaded.unet.dtype == torch.float16


def test_components_can_be_passed_in_place_of_the_stored_ones(saved: Path) -> None:
    scheduler = diffusers.DDIMScheduler()
    other = tiny_models.unet()
    loaded = FlashPackDDPM.from_pretrained_flashpack(saved, scheduler=scheduler, unet=other)
    assert loaded.scheduler is scheduler
    assert loaded.unet is other


def test_components_without_a_flashpack_file_are_loaded_as_usual(tmp_path: Path) -> None:
    pipe = tiny_models.pipeline(FlashPackDDPM)
    pipe.save_pretrained(tmp_path)
    assert not (tmp_path / "unet" / "model.flashpack").exists()
    loaded = FlashPackDDPM.from_pretrained_flashpack(tmp_path)
    assert_same_state(loaded.unet, pipe.unet)
    loaded = FlashPackDDPM.from_pretrained_flashpack(tmp_path, dtype=torch.float16)
    assert loaded.unet.dtype == torch.float16


def test_an_index_that_names_classes_with_the_methods_is_understood(saved: Path, tmp_path: Path) -> None:
    for child in saved.iterdir():
        if child.name != "model_index.json":
            (tmp_path / child.name).symlink_to(child)
    index = json.loads((saved / "model_index.json").read_text())
    index["unet"] = ["flashpack.integrations.diffusers.patch", "FlashPackUNet2DModel"]
    index["_class_name"] = "FlashPackDDPMPipeline"
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    loaded = FlashPackDiffusionPipeline.from_pretrained_flashpack(tmp_path)
    assert type(loaded.unet) is diffusers.UNet2DModel
    assert loaded.config["_name_or_path"] == str(tmp_path)
    assert np.array_equal(images(loaded), images(tiny_models.pipeline()))


def test_a_module_is_not_imported_because_an_index_names_it(saved: Path, tmp_path: Path) -> None:
    for child in saved.iterdir():
        if child.name != "model_index.json":
            (tmp_path / child.name).symlink_to(child)
    index = json.loads((saved / "model_index.json").read_text())
    index["unet"] = ["this", "Net"]
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(ArgumentError, match=r"Net of this is not known here"):
        FlashPackDDPM.from_pretrained_flashpack(tmp_path)


def test_what_can_not_be_saved_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    pipe = text_pipeline()
    with pytest.raises(ArgumentError, match=r"target_dtype names 'vae', but the components are"):
        pipe.save_pretrained_flashpack(tmp_path / "x", target_dtype={"vae": torch.float16})
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'dtypes'"):
        pipe.save_pretrained_flashpack(tmp_path / "x", dtypes=torch.float16)
    pipe.register_modules(extra=torch.nn.Linear(2, 2))
    with pytest.raises(ArgumentError, match=r"the component extra is a Linear, which can't be saved"):
        pipe.save_pretrained_flashpack(tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_directory_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"model_index\.json: no such file"):
        FlashPackDDPM.from_pretrained_flashpack(tmp_path)
    (tmp_path / "model_index.json").write_text("[")
    with pytest.raises(ValueError, match=r"model_index\.json: not JSON"):
        FlashPackDDPM.from_pretrained_flashpack(tmp_path)
    (tmp_path / "model_index.json").write_text('{"_class_name": "NoPipeline"}')
    with pytest.raises(ArgumentError, match=r"diffusers has no pipeline 'NoPipeline'"):
        FlashPackDiffusionPipeline.from_pretrained_flashpack(tmp_path)


def test_both_spellings_of_the_pipeline_are_one_class() -> None:
    assert integration.FlashPackDiffusionPipine is FlashPackDiffusionPipeline


def test_the_auto_model_loads_what_a_configuration_names(saved: Path, tmp_path: Path) -> None:
    model = AutoFlashPackModel.from_pretrained_flashpack(saved, subfolder="unet")
    assert isinstance(model, diffusers.UNet2DModel)
    assert type(model).__name__ == "FlashPackUNet2DModel"
    assert_same_state(model, tiny_models.unet())
    model.save_pretrained_flashpack(tmp_path / "again")
    again = AutoFlashPackModel.from_pretrained(tmp_path / "again", use_flashpack=True)
    assert type(again) is type(model)
    assert_same_state(again, model)
    text_pipeline().save_pretrained_flashpack(tmp_path / "pipe")
    bert = AutoFlashPackModel.from_pretrained_flashpack(
        tmp_path / "pipe", subfolder="text_encoder", dtype=torch.float16
    )
    assert isinstance(bert, transformers.BertModel)
    assert bert.dtype == torch.float16


def test_the_auto_model_gives_the_methods_to_models_from_usual_files(tmp_path: Path) -> None:
    tiny_models.unet().save_pretrained(tmp_path / "usual")
    model = AutoFlashPackModel.from_pretrained(str(tmp_path / "usual"))
    assert_same_state(model, tiny_models.unet())
    model.save_pretrained_flashpack(tmp_path / "packed")
    assert_same_state(AutoFlashPackModel.from_pretrained_flashpack(tmp_path / "packed"), model)


def test_the_auto_model_refuses_what_it_can_not_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"_class_name": "NoNet"}')
    with pytest.raises(ArgumentError, match=r"config\.json: names NoNet, which is no class of its library"):
        AutoFlashPackModel.from_pretrained_flashpack(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ArgumentError, match=r"names no class of diffusers and none of transformers"):
        AutoFlashPackModel.from_pretrained_flashpack(tmp_path)
    with pytest.raises(ArgumentError, match=r"is not instantiated"):
        AutoFlashPackModel()


def test_code_that_comes_with_a_model_runs_only_if_it_is_trusted(tmp_path: Path) -> None:
    code = """
        import json, pathlib, sys
        import torch
        sys.path.insert(0, sys.argv[1])
        from my_net import MyNet
        from penstock.flashpack.integrations.diffusers import AutoFlashPackModel, model
        folder = pathlib.Path(sys.argv[1])
        net = MyNet(width=5)
        model.save_model(net, folder)
        config = json.loads((folder / "config.json").read_text())
        config["auto_map"] = {"AutoModel": "my_net.MyNet", "AutoFlashPackModel": "my_net.MyNet"}
        (folder / "config.json").write_text(json.dumps(config))
        try:
            AutoFlashPackModel.from_pretrained_flashpack(folder)
        except ValueError as problem:
            print(problem)
        loaded = AutoFlashPackModel.from_pretrained_flashpack(folder, trust_remote_code=True)
        assert type(loaded).__module__.startswith("diffusers_modules"), type(loaded)
        print(torch.equal(loaded.line.weight, net.line.weight), hasattr(loaded, "save_pretrained_flashpack"))
    """
    (tmp_path / "my_net.py").write_text(
        "import torch\n"
        "from diffusers import ConfigMixin, ModelMixin\n"
        "from diffusers.configuration_utils import register_to_config\n"
        "class MyNet(ModelMixin, ConfigMixin):\n"
        "    @register_to_config\n"
        "    def __init__(self, width: int = 3):\n"
        "        super().__init__()\n"
        "        self.line = torch.nn.Linear(width, width)\n"
    )
    printed = run_python(code, str(tmp_path), HF_HOME=str(tmp_path / "cache")).stdout.splitlines()
    assert printed[0].endswith(
        "names MyNet, which is no class of its library; trust_remote_code=True runs the code that comes with it"
    )
    assert printed[1] == "True True"


@pytest.mark.usefixtures("patched")
def test_diffusers_own_classes_take_use_flashpack(saved: Path, tmp_path: Path) -> None:
    expected = images(tiny_models.pipeline())
    loaded = diffusers.DiffusionPipeline.from_pretrained(saved, use_flashpack=True)
    assert type(loaded) is diffusers.DDPMPipeline
    assert np.array_equal(images(loaded), expected)
    loaded.save_pretrained(tmp_path / "pipe", use_flashpack=True)
    assert is_flashpack_file(tmp_path / "pipe" / "unet" / "model.flashpack")
    again = diffusers.DDPMPipeline.from_pretrained_flashpack(tmp_path / "pipe")
    assert np.array_equal(images(again), expected)
    model = diffusers.AutoModel.from_pretrained(str(saved), subfolder="unet", use_flashpack=True)
    assert type(model) is diffusers.UNet2DModel
    model.save_pretrained(tmp_path / "unet", use_flashpack=True, target_dtype=torch.float16)
    half = diffusers.UNet2DModel.from_pretrained(
        tmp_path / "unet", use_flashpack=True, flashpack_kwargs={"silent": True}, low_cpu_mem_usage=True
    )
    assert half.dtype == torch.float16


@pytest.mark.usefixtures("patched")
def test_diffusers_own_classes_do_what_they_did_without_use_flashpack(tmp_path: Path) -> None:
    pipe = tiny_models.pipeline()
    pipe.save_pretrained(tmp_path)
    assert (tmp_path / "unet" / "diffusion_pytorch_model.safetensors").is_file()
    assert not (tmp_path / "unet" / "model.flashpack").exists()
    assert_same_state(diffusers.DDPMPipeline.from_pretrained(tmp_path).unet, pipe.unet)
    assert_same_state(diffusers.UNet2DModel.from_pretrained(tmp_path, subfolder="unet"), pipe.unet)


def test_unpatching_leaves_diffusers_as_it_was() -> None:
    owners = (diffusers.ModelMixin, diffusers.DiffusionPipeline)
    before = [dict(vars(owner)) for owner in owners]
    patch_integrations()
    assert all(hasattr(owner, "from_pretrained_flashpack") for owner in owners)
    unpatch_integrations()
    assert [dict(vars(owner)) for owner in owners] == before
