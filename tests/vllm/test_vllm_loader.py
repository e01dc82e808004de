"""PenstockModelLoader by itself: what it reads, what it leaves out, which settings it takes."""

from __future__ import annotations

import inspect
import json
import mmap
import os
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import penstock
import pytest
import torch
from penstock.integrations import _serving
from penstock.integrations import vllm as integration
from penstock.integrations.vllm import PenstockModelLoader
from vllm.config.load import LoadConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import DefaultModelLoader, get_model_loader
from vllm.utils.argparse_utils import FlexibleArgumentParser

Source = DefaultModelLoader.Source


def make_loader(**config: Any) -> Any:
    integration.register()
    return get_model_loader(
        LoadConfig(load_format="penstock", model_loader_extra_config=config, use_tqdm_on_load=False)
    )


def weights_of(loader: Any, source: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in loader._get_weights_iterator(source)}


def damage(file: Path, name: str) -> None:
    """Changes one bit of a tensor."""
    tensor = next(tensor for tensor in penstock.inspect(file).tensors if tensor == name)
    with file.open("r+b") as opened:
        opened.seek(tensor.offset)
        byte = opened.read(1)[0]
        opened.seek(tensor.offset)
        opened.write(bytes([byte ^ 1]))


@pytest.fixture
def experts(tmp_path: Path) -> Path:
    """Weights of four experts, and one that all ranks have."""
    tensors = {f"layers.0.mlp.experts.{i}.up_proj.weight": torch.full((64, 64), float(i)) for i in range(4)}
    tensors |= {f"layers.0.mlp.experts.{i}.up_proj.input_scale": torch.tensor(float(i)) for i in range(4)}
    tensors["layers.0.norm.weight"] = torch.ones(64)
    penstock.save(tensors, tmp_path / "model.safetensors")
    penstock.seal(tmp_path / "model.safetensors")
    return tmp_path


def test_vllm_finds_the_plugin_and_its_loader() -> None:
    (plugin,) = [entry for entry in entry_points(group="vllm.general_plugins") if entry.name == "penstock"]
    assert plugin.value == "penstock.integrations.vllm:register"
    plugin.load()()
    loader = get_model_loader(LoadConfig(load_format="penstock"))
    assert type(loader) is PenstockModelLoader
    assert isinstance(loader, DefaultModelLoader)


def test_the_command_line_of_vllm_serve_takes_it(models: Path) -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    config = '{"max_buffer": "1GiB", "verify": true}'
    line = ["--model", str(models / "single"), "--load-format", "penstock", "--model-loader-extra-config", config]
    parsed = parser.parse_args(line)
    loader = get_model_loader(EngineArgs.from_cli_args(parsed).create_load_config())
    assert type(loader) is PenstockModelLoader
    assert loader._settings._arguments == {"max_buffer": "1GiB", "verify": True}


def test_what_is_overridden_is_there_and_takes_the_same() -> None:
    """A vLLM whose loader has changed would pass by what is ours."""
    for name in ("__init__", "_get_weights_iterator"):
        ours, theirs = (
            list(inspect.signature(getattr(c, name)).parameters) for c in (PenstockModelLoader, DefaultModelLoader)
        )
        assert ours == theirs
    assert list(inspect.signature(DefaultModelLoader._prepare_weights).parameters)[1:] == [
        "model_name_or_path",
        "subfolder",
        "revision",
        "fall_back_to_pt",
        "allow_patterns_overrides",
    ]


def test_weights_have_their_prefix_and_bits(models: Path) -> None:
    stock = get_model_loader(LoadConfig(load_format="auto", use_tqdm_on_load=False))
    source = Source(str(models / "shards"), None, prefix="draft.")
    found, expected = weights_of(make_loader(), source), weights_of(stock, source)
    assert found.keys() == expected.keys()
    assert all(name.startswith("draft.") for name in found)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_loading_is_timed_from_when_the_files_are_there(models: Path) -> None:
    loader = make_loader()
    assert loader.counter_before_loading_weights == 0.0
    loader._get_weights_iterator(Source(str(models / "single"), None))
    began = loader.counter_before_loading_weights
    assert began > 0.0
    loader._get_weights_iterator(Source(str(models / "single"), None))
    assert loader.counter_before_loading_weights == began  # of the first source


def test_experts_of_other_ranks_are_not_read(experts: Path) -> None:
    damage(experts / "model.safetensors", "layers.0.mlp.experts.3.up_proj.weight")
    loader = make_loader(verify="seal")
    with pytest.raises(penstock.FormatError, match=r"experts\.3\.up_proj\.weight"):
        weights_of(loader, Source(str(experts), None))
    loader.local_expert_ids = {0, 1}
    found = weights_of(loader, Source(str(experts), None))
    assert sorted(found) == sorted(
        [f"layers.0.mlp.experts.{i}.up_proj.weight" for i in (0, 1)]
        + [f"layers.0.mlp.experts.{i}.up_proj.input_scale" for i in range(4)]
        + ["layers.0.norm.weight"]
    )


def test_weights_that_the_model_does_not_load_are_not_read(experts: Path) -> None:
    damage(experts / "model.safetensors", "layers.0.norm.weight")
    source = Source(str(experts), None, is_unused_weight=lambda name: "norm" in name)
    assert len(weights_of(make_loader(verify="seal"), source)) == 8


def test_of_an_encoder_alone_files_of_the_language_model_are_left_out(tmp_path: Path) -> None:
    penstock.save({"visual.weight": torch.ones(4)}, tmp_path / "model-00001-of-00002.safetensors")
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(b"no safetensors file")
    weights = {
        "visual.weight": "model-00001-of-00002.safetensors",
        "language_model.w": "model-00002-of-00002.safetensors",
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    loader = make_loader()
    loader._encoder_only_lm_prefixes = ("language_model.",)
    assert list(weights_of(loader, Source(str(tmp_path), None))) == ["visual.weight"]
    loader._encoder_only_lm_prefixes = ("language_model.", "visual.")
    with pytest.raises(penstock.ArgumentError, match="no file has weights of the encoder"):
        loader._get_weights_iterator(Source(str(tmp_path), None))


def test_checkpoints_of_torchao_are_left_to_vllm(models: Path) -> None:
    loader = make_loader()
    loader.load_config.safetensors_load_strategy = "torchao"
    weights = loader._get_weights_iterator(Source(str(models / "single"), None))
    with pytest.raises((ImportError, ValueError), match="torchao"):
        next(weights)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"max_bufer": 1},
            "there is no 'max_bufer'; the nearest is 'max_buffer'; there are backend, block_size, cache",
        ),
        ({"enable_multithread_load": True}, "there is no 'enable_multithread_load'; there are backend"),
        ({"num_threads": 8}, "there is no 'num_threads'; the nearest is 'threads'"),
        ({"pool": None}, "there is no 'pool'"),
        ({"cache": "sometimes"}, "cache must be"),
        ({"max_buffer": "many"}, "many"),
        ({"verify": "perhaps"}, "verify must be"),
        ({"threads": "four"}, "threads"),
        ({"gds": True}, "gds"),
        ({"device": 1}, "device must be a name, not 1"),
    ],
)
def test_a_wrong_setting_is_one_line_when_the_loader_is_made(config: dict[str, Any], message: str) -> None:
    with pytest.raises(penstock.ArgumentError) as caught:
        make_loader(**config)
    assert str(caught.value).startswith("model_loader_extra_config: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_vllms_own_setting_is_passed_on_and_checked_there() -> None:
    assert make_loader(enable_weights_track=False).enable_weights_track is False
    assert make_loader(verify=True).enable_weights_track is None


def test_the_callers_configuration_stays_as_it_is() -> None:
    config = LoadConfig(load_format="penstock", model_loader_extra_config={"max_buffer": "1GiB"})
    get_model_loader(config)
    assert (config.load_format, config.model_loader_extra_config) == ("penstock", {"max_buffer": "1GiB"})


def resident(file: Path) -> int:
    with penstock.open(file) as reader:
        return reader.resident_bytes


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """A model of 64 MiB of which nothing is in the page cache."""
    file = tmp_path / "model.safetensors"
    penstock.save({f"w{i}": torch.full((1 << 20,), float(i)) for i in range(16)}, file)
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    if resident(file) > 4 * mmap.PAGESIZE:
        pytest.skip("the filesystem of the temporary directory keeps files in the page cache")
    return file


def test_one_rank_leaves_the_page_cache_alone_and_several_share_it(cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(str(cold.parent), None)
    assert len(weights_of(make_loader(), source)) == 16
    assert resident(cold) < 1 << 20
    monkeypatch.setattr(_serving, "_rank", lambda: (1, 2))
    assert len(weights_of(make_loader(cache="direct"), source)) == 16
    assert resident(cold) < 1 << 20
    assert len(weights_of(make_loader(), source)) == 16
    assert resident(cold) == 64 << 20


def test_cuda_is_the_gpu_of_this_rank_and_the_host_is_the_default(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[str] = []
    monkeypatch.setattr(_serving, "stream", lambda files, device, **_: chosen.append(device) or iter(()))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    for config in ({}, {"device": "cuda"}, {"device": "cuda:1"}):
        weights_of(make_loader(**config), Source(str(models / "single"), None))
    assert chosen == ["cpu", "cuda:3", "cuda:1"]


def test_cached_files_are_mapped(cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cold.read_bytes()
    chosen: list[penstock.Stats] = []

    def stream(*arguments: Any, **named: Any) -> Any:
        chosen.append(penstock.Stats())
        return penstock.stream(*arguments, **named, stats=chosen[-1])

    monkeypatch.setattr(_serving, "stream", stream)
    for rank in ((0, 1), (1, 2)):
        monkeypatch.setattr(_serving, "_rank", lambda rank=rank: rank)
        weights_of(make_loader(), Source(str(cold.parent), None))
    assert [each["path"] for each in chosen] == ["mapped", "mapped"]
