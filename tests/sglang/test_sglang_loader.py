"""``--load-format penstock`` in SGLang's own registry, command line and loader."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import penstock
import pytest
import torch
from sglang.srt.configs.load_config import LoadConfig, LoadFormat
from sglang.srt.model_loader import loader as loading
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.server_args import ServerArgs, prepare_server_args, set_global_server_args_for_scheduler

Source = loading.DefaultModelLoader.Source


@pytest.fixture(scope="module", autouse=True)
def plugins() -> None:
    """As SGLang does at the start of each of its processes."""
    load_plugins()


@pytest.fixture
def serve(models: Path) -> Iterator[Any]:
    """Gives SGLang's arguments for a model, as a command line has them, and makes them those of this process."""

    def make(model: str, *options: str) -> ServerArgs:
        line = ["--model-path", str(models / model), "--device", "cpu", *options]
        arguments = prepare_server_args(line)
        set_global_server_args_for_scheduler(arguments)
        return arguments

    return make


def loader_for(arguments: ServerArgs, model_config: Any = None, **more: Any) -> Any:
    config = LoadConfig(
        load_format=arguments.load_format,
        model_loader_extra_config=arguments.model_loader_extra_config,
        **more,
    )
    # By its module's name: hooks replace it there, and in modules that imported it before.
    return loading.get_model_loader(config, model_config)


def weights_of(loader: Any, folder: Path, prefix: str = "") -> dict[str, torch.Tensor]:
    source = Source(str(folder), None, prefix=prefix)
    return {name: tensor.clone() for name, tensor in loader._get_weights_iterator(source)}


def test_both_hooks_are_applied() -> None:
    assert {
        "sglang.srt.configs.load_config.LoadConfig._verify_load_format",
        "sglang.srt.model_loader.loader.get_model_loader",
    } <= HookRegistry._patched
    assert loading.get_model_loader.__wrapped__.__module__ == loading.__name__


def test_loading_the_plugin_again_changes_nothing() -> None:
    from penstock.integrations.sglang import register
    from sglang.srt.server_args import LOAD_FORMAT_CHOICES

    register()
    assert LOAD_FORMAT_CHOICES.count("penstock") == 1
    assert [len(hooks) for target, hooks in HookRegistry._hooks.items() if "sglang.srt" in target] == [1, 1]


@pytest.mark.parametrize("model", ["shards", "bin"])
def test_weights_are_those_of_auto(serve: Any, models: Path, model: str) -> None:
    ours = loader_for(serve(model, "--load-format", "penstock"))
    found = weights_of(ours, models / model, prefix="model.")
    stock = loader_for(serve(model))
    expected = weights_of(stock, models / model, prefix="model.")
    assert found.keys() == expected.keys()
    assert len(found) > 20
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert ours.counter_before_loading_weights > 0.0


def test_the_loader_is_the_one_that_sglang_would_choose(serve: Any) -> None:
    arguments = serve("shards", "--load-format", "penstock")
    loader = loader_for(arguments)
    assert type(loader).__name__ == "PenstockDefaultModelLoader"
    assert isinstance(loader, loading.DefaultModelLoader)
    quantised = SimpleNamespace(quantization="modelopt_fp8", _is_already_quantized=lambda: True)
    assert isinstance(loader_for(arguments, quantised), loading.ModelOptModelLoader)
    assert type(loader_for(serve("shards"))) is loading.DefaultModelLoader


def test_other_formats_are_checked_as_before() -> None:
    assert LoadConfig(load_format="pt").load_format is LoadFormat.PT
    with pytest.raises(ValueError, match="penstocks"):
        LoadConfig(load_format="penstocks")


def test_what_is_overridden_takes_the_same() -> None:
    """A SGLang whose loader has changed would pass by what is ours."""
    theirs = inspect.signature(loading.DefaultModelLoader._get_weights_iterator)
    assert list(theirs.parameters) == [
        "self",
        "source",
        "resolved_source",
        "startup_prefetch_started",
        "startup_prefetch_active",
    ]
    prepare = inspect.signature(loading.DefaultModelLoader._prepare_weights)
    assert list(prepare.parameters)[1:] == [
        "model_name_or_path",
        "revision",
        "fall_back_to_pt",
        "allow_patterns_overrides",
    ]


def test_files_that_sglang_resolved_before_are_taken(serve: Any, models: Path) -> None:
    loader = loader_for(serve("shards", "--load-format", "penstock"))
    file = sorted((models / "shards").glob("model-*.safetensors"))[0]
    source = Source(str(models / "shards"), None)
    resolved = loading.DefaultModelLoader.ResolvedSource(source, str(models / "shards"), (str(file),), True)
    found = dict(
        loader._get_weights_iterator(
            source, resolved_source=resolved, startup_prefetch_started=True, startup_prefetch_active=False
        )
    )
    assert found.keys() == penstock.load(file).keys()


def test_layers_of_other_drafts_are_not_read(serve: Any, tmp_path: Path) -> None:
    arguments = serve("shards", "--load-format", "penstock", "--model-loader-extra-config", '{"verify": "seal"}')
    file = tmp_path / "model.safetensors"
    names = ["model.mtp.layers.0.w", "model.mtp.layers.1.w", "model.embed.w"]
    penstock.save({name: torch.full((4,), float(i)) for i, name in enumerate(names)}, file)
    penstock.seal(file)
    damaged = next(tensor for tensor in penstock.inspect(file).tensors if tensor == names[0])
    with file.open("r+b") as opened:
        opened.seek(damaged.offset)
        opened.write(b"\x01")
    with pytest.raises(penstock.FormatError, match=r"model\.mtp\.layers\.0\.w"):
        weights_of(loader_for(arguments), tmp_path)
    found = weights_of(loader_for(arguments, draft_model_idx=1), tmp_path)
    assert found.keys() == {"model.mtp.layers.0.w", "model.embed.w"}
    assert found["model.mtp.layers.0.w"][0] == 1.0  # which was layer 1


def test_a_bad_file_is_one_line(serve: Any, tmp_path: Path) -> None:
    loader = loader_for(serve("shards", "--load-format", "penstock"))
    file = tmp_path / "model.safetensors"
    penstock.save({"w": torch.ones(1000)}, file)
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(penstock.FormatError) as caught:
        weights_of(loader, tmp_path)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"max_bufer": 1}', "there is no 'max_bufer'; the nearest is 'max_buffer'; there are backend"),
        ('{"enable_gds": true}', "there is no 'enable_gds'; there are backend, block_size, cache, device, gds"),
        ('{"cache": "sometimes"}', "cache must be"),
        ('["verify"]', "an object with names and values was expected"),
    ],
)
def test_a_wrong_setting_is_one_line(serve: Any, config: str, message: str) -> None:
    arguments = serve("shards", "--load-format", "penstock", "--model-loader-extra-config", config)
    with pytest.raises(penstock.ArgumentError) as caught:
        loader_for(arguments)
    assert str(caught.value).startswith(f"model_loader_extra_config: {message}")
    assert "\n" not in str(caught.value)


def test_without_mapping_nothing_is_mapped(serve: Any, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.integrations import _serving

    chosen: list[Any] = []
    monkeypatch.setattr(_serving, "stream", lambda *_, **named: chosen.append(named["cache"]) or iter(()))
    for options in ([], ["--weight-loader-disable-mmap"]):
        weights_of(loader_for(serve("shards", "--load-format", "penstock", *options)), models / "shards")
    assert chosen == ["auto", "copy"]
