"""penstock.accelerate: transformers, diffusers, accelerate and peft load and save what they do without it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import helpers
import penstock
import pytest
import tiny_models
import torch
from accelerate_helpers import Counts, decelerated
from tiny_models import TOKENS, assert_same_state

__all__ = ["decelerated"]

from diffusers import DDPMPipeline, UNet2DModel
from transformers import AutoModelForCausalLM, BertModel, LlamaForCausalLM

OPEN, LOAD, SAVE = "safetensors.safe_open", "safetensors.torch.load_file", "safetensors.torch.save_file"


@pytest.fixture(params=["one file", "shards"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A model that the library saved by itself."""
    size = "10KB" if request.param == "shards" else "50GB"
    tiny_models.llama().save_pretrained(tmp_path / "model", max_shard_size=size)
    return tmp_path / "model"


def load_both(cls: Any, path: Path, entry: str = OPEN, **arguments: Any) -> tuple[Any, Any]:
    """By penstock and without it; the first has to have been served."""
    counts = Counts()
    with penstock.accelerate():
        ours = cls.from_pretrained(path, **arguments)
    assert counts.served(entry) > 0
    assert counts.fell(entry) == {}
    return ours, cls.from_pretrained(path, **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"dtype": torch.bfloat16},
        {"dtype": "auto"},
        {"device_map": "cpu"},
        {"device_map": {"": "cpu"}},
        {"device_map": {"model": "cpu", "lm_head": "cpu"}, "dtype": torch.float16},
        {"low_cpu_mem_usage": True},
    ],
    ids=str,
)
def test_transformers_load_the_same_model(saved: Path, arguments: dict[str, Any]) -> None:
    ours, stock = load_both(LlamaForCausalLM, saved, **arguments)
    assert_same_state(ours, stock)
    assert torch.equal(ours(TOKENS).logits, stock(TOKENS).logits)


def test_automatic_classes_and_one_thread_load_the_same_model(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")
    assert_same_state(*load_both(AutoModelForCausalLM, saved))


def test_parameters_can_be_trained_and_do_not_change_each_other(saved: Path) -> None:
    ours, stock = load_both(LlamaForCausalLM, saved)
    first = next(iter(ours.parameters()))
    with torch.no_grad():
        first.add_(1)
        next(iter(stock.parameters())).add_(1)
    assert_same_state(ours, stock)
    assert not torch.equal(LlamaForCausalLM.from_pretrained(saved).state_dict()["model.embed_tokens.weight"], first)


def test_offloaded_models_load_and_answer_the_same(saved: Path, tmp_path: Path) -> None:
    device_map = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "cpu"}
    device_map |= {"model.rotary_emb": "cpu", "lm_head": "cpu"}
    arguments = {"device_map": device_map, "offload_folder": tmp_path / "offload"}
    with penstock.accelerate():
        ours = LlamaForCausalLM.from_pretrained(saved, **arguments)
        answer = ours(TOKENS).logits
    assert torch.equal(answer, LlamaForCausalLM.from_pretrained(saved)(TOKENS).logits)


def test_torch_checkpoints_load_the_same(tmp_path: Path) -> None:
    model = tiny_models.bert()
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    assert_same_state(*load_both(BertModel, tmp_path, "torch.load", use_safetensors=False))


def test_a_missing_and_an_unexpected_weight_are_reported_as_ever(tmp_path: Path) -> None:
    tiny_models.llama().save_pretrained(tmp_path)
    state = penstock.load(tmp_path / "model.safetensors")
    del state["lm_head.weight"]
    penstock.save(state | {"more": torch.ones(2)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with penstock.accelerate():
        _, ours = LlamaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    _, stock = LlamaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert ours == stock
    assert ours["missing_keys"] == {"lm_head.weight"}


def test_quantized_models_are_loaded_by_their_own_library_over_our_files(tmp_path: Path) -> None:
    """fp8 weights with scales, which transformers dequantizes as it loads."""
    tiny_models.llama().save_pretrained(tmp_path)
    state = penstock.load(tmp_path / "model.safetensors")
    for name in [name for name in state if "proj" in name]:
        state[name + "_scale_inv"] = torch.full((1, 1), 0.5)
        state[name] = state[name].to(torch.float8_e4m3fn)
    penstock.save(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128], "dequantize": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours, stock = load_both(LlamaForCausalLM, tmp_path)
    assert_same_state(ours, stock)
    assert torch.equal(
        ours.model.layers[0].mlp.up_proj.weight.float(),
        state["model.layers.0.mlp.up_proj.weight"].float() * 0.5,
    )


def test_quantized_models_are_saved_by_their_own_library(tmp_path: Path) -> None:
    model = tiny_models.llama()
    model.hf_quantizer = object()  # what a quantizer of transformers leaves there
    counts = Counts()
    with penstock.accelerate(), pytest.raises(AttributeError, match="is_serializable|quantization_config|object"):
        model.save_pretrained(tmp_path)  # of no known kind, says transformers
    assert counts.fell("transformers.save_pretrained") == {"the model is quantized": 1}


@pytest.mark.parametrize("size", ["50GB", "10KB"])
@pytest.mark.parametrize("tied", [False, True])
def test_transformers_save_the_same_files(size: str, tied: bool, tmp_path: Path) -> None:
    model = tiny_models.llama(tied=tied)
    model.save_pretrained(tmp_path / "stock", max_shard_size=size)
    counts = Counts()
    with penstock.accelerate():
        model.save_pretrained(tmp_path / "ours", max_shard_size=size)
    assert counts.served("transformers.save_pretrained") == 1
    names = sorted(path.name for path in (tmp_path / "stock").iterdir())
    assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == names
    assert ("model.safetensors.index.json" in names) == (size == "10KB")
    for name in names:
        ours, stock = (tmp_path / "ours" / name).read_bytes(), (tmp_path / "stock" / name).read_bytes()
        assert ours == stock, name
    assert_same_state(LlamaForCausalLM.from_pretrained(tmp_path / "ours"), model)


@pytest.mark.parametrize("before", ["one file", "shards", "fewer shards"])
@pytest.mark.parametrize("size", ["50GB", "10KB"])
def test_saves_over_an_older_model_leave_the_new_one_alone(before: str, size: str, tmp_path: Path) -> None:
    old, new = tiny_models.llama(words=60), tiny_models.llama()
    with torch.no_grad():
        old.lm_head.weight.zero_()
    old.save_pretrained(tmp_path, max_shard_size={"one file": "50GB", "shards": "10KB", "fewer shards": "30KB"}[before])
    (tmp_path / "notes.txt").write_text("mine")
    with penstock.accelerate():
        new.save_pretrained(tmp_path, max_shard_size=size)
    assert_same_state(LlamaForCausalLM.from_pretrained(tmp_path), new)
    weights = {path.name for path in tmp_path.glob("*.safetensors")}
    index = tmp_path / "model.safetensors.index.json"
    assert index.exists() == (size == "10KB")
    listed = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {"model.safetensors"}
    assert weights == listed
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".penstock")] == []
    new.save_pretrained(tmp_path, max_shard_size="20KB")  # the library removes what it knows as its own
    assert_same_state(LlamaForCausalLM.from_pretrained(tmp_path), new)
    assert len(list(tmp_path.glob("*-of-*.safetensors"))) == len(
        set(json.loads(index.read_text())["weight_map"].values())
    )


def test_a_state_dict_of_the_callers_is_saved_and_stays_his(tmp_path: Path) -> None:
    model = tiny_models.llama()
    state = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    with penstock.accelerate():
        model.save_pretrained(tmp_path, state_dict=state)
    assert len(state) == len(model.state_dict())
    helpers.assert_same_tensors(penstock.load(tmp_path / "model.safetensors"), state)


def test_saves_that_are_no_set_are_the_librarys_own(tmp_path: Path) -> None:
    model = tiny_models.llama()
    counts = Counts()
    with penstock.accelerate():
        model.save_pretrained(tmp_path / "variant", variant="fp16", max_shard_size="10KB")
        (tmp_path / "file").write_text("")
        model.save_pretrained(tmp_path / "file")  # logged as an error, and nothing else
    assert counts.fell("transformers.save_pretrained") == {"variant=": 1, "save_directory is not a directory": 1}
    assert_same_state(LlamaForCausalLM.from_pretrained(tmp_path / "variant", variant="fp16"), model)


def test_a_set_with_a_file_behind_a_link_is_the_librarys_own(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.safetensors").write_bytes(b"")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    model = tiny_models.llama()
    counts = Counts()
    with penstock.accelerate():
        model.save_pretrained(tmp_path / "model")
    assert counts.fell("transformers.save_pretrained") == {"the target is a symbolic link": 1}
    assert_same_state(LlamaForCausalLM.from_pretrained(tmp_path / "model"), model)


def test_a_save_that_fails_leaves_the_old_model(saved: Path) -> None:
    old = LlamaForCausalLM.from_pretrained(saved)
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    model = tiny_models.llama(words=50)
    model.lm_head.weight = torch.nn.Parameter(torch.empty(50, 32, device="meta"))
    with penstock.accelerate(), pytest.raises(Exception, match="meta"):
        model.save_pretrained(saved, max_shard_size="10KB")
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert_same_state(LlamaForCausalLM.from_pretrained(saved), old)


def test_diffusion_pipelines_load_save_and_draw_the_same(tmp_path: Path) -> None:
    pipe = tiny_models.pipeline()
    counts = Counts()
    with penstock.accelerate():
        pipe.save_pretrained(tmp_path / "ours")
        ours = DDPMPipeline.from_pretrained(tmp_path / "ours")
        assert counts.served("diffusers.save_pretrained") == 1
        assert counts.served(LOAD) >= 1
        drawn = tiny_models.images(ours)
    pipe.save_pretrained(tmp_path / "stock")
    names = sorted(str(path.relative_to(tmp_path / "stock")) for path in (tmp_path / "stock").rglob("*"))
    assert names == sorted(str(path.relative_to(tmp_path / "ours")) for path in (tmp_path / "ours").rglob("*"))
    assert (drawn == tiny_models.images(DDPMPipeline.from_pretrained(tmp_path / "stock"))).all()


def test_sharded_diffusers_models_come_back(tmp_path: Path) -> None:
    model = tiny_models.unet()
    with penstock.accelerate():
        model.save_pretrained(tmp_path, max_shard_size="20KB")
        assert_same_state(UNet2DModel.from_pretrained(tmp_path), model)
    assert (tmp_path / "diffusion_pytorch_model.safetensors.index.json").exists()
    assert_same_state(UNet2DModel.from_pretrained(tmp_path), model)


def test_accelerate_saves_and_loads_checkpoints(tmp_path: Path) -> None:
    import accelerate

    model, again = tiny_models.bert(), tiny_models.bert()
    counts = Counts()
    with penstock.accelerate():
        accelerate.Accelerator(cpu=True).save_model(model, tmp_path, max_shard_size="10KB")
        with torch.no_grad():
            for parameter in again.parameters():
                parameter.zero_()
        accelerate.load_checkpoint_in_model(again, tmp_path)
    assert counts.served("accelerate.save_model") == 1
    assert counts.served(OPEN) + counts.served(LOAD) > 1
    assert_same_state(again, model)


def test_lora_adapters_of_peft_come_back(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    base = tiny_models.llama()
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora" in name:
                parameter.normal_()
    counts = Counts()
    with penstock.accelerate():
        model.save_pretrained(tmp_path)
        assert counts.served(SAVE) == 1
        ours = peft.PeftModel.from_pretrained(tiny_models.llama(), tmp_path)
        assert counts.served(LOAD) == 1
    stock = peft.PeftModel.from_pretrained(tiny_models.llama(), tmp_path)
    assert_same_state(ours, stock)
    assert torch.equal(ours(TOKENS).logits, model.eval()(TOKENS).logits)


def test_adapters_of_transformers_come_back(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model = tiny_models.llama()
    model.add_adapter(peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False))
    with penstock.accelerate():
        model.save_pretrained(tmp_path)
        again = tiny_models.llama()
        again.load_adapter(str(tmp_path))
    assert (tmp_path / "adapter_model.safetensors").exists()
    assert torch.equal(again(TOKENS).logits, model.eval()(TOKENS).logits)


def test_a_program_that_is_told_by_the_environment_is_accelerated(saved: Path) -> None:
    script = """
    import sys, penstock.auto
    from transformers import LlamaForCausalLM
    model = LlamaForCausalLM.from_pretrained(sys.argv[1])
    print(penstock.accelerated().served["safetensors.safe_open"], LlamaForCausalLM.save_pretrained.__module__)
    """
    files = len(list(saved.glob("*.safetensors")))
    assert helpers.run_python(script, str(saved), PENSTOCK_ACCELERATE="1").stdout.startswith(f"{files} ")
    failed = helpers.run_python(script, str(saved), check=False)
    assert "KeyError: 'safetensors.safe_open'" in failed.stderr


def test_one_library_alone_is_accelerated_wherever_it_is_imported(saved: Path) -> None:
    script = """
    import sys, penstock
    with penstock.accelerate("transformers"):
        from transformers import LlamaForCausalLM
        import safetensors, transformers.modeling_utils as utils
        assert utils.safe_open is not safetensors.safe_open
        LlamaForCausalLM.from_pretrained(sys.argv[1])
        served = penstock.accelerated().served["safetensors.safe_open"]
    print(served, utils.safe_open is safetensors.safe_open)
    """
    files = len(list(saved.glob("*.safetensors")))
    assert helpers.run_python(script, str(saved)).stdout == f"{files} True\n"


RANK = Path(__file__).with_name("accelerate_rank.py")


def test_ranks_load_their_parts_and_save_as_one(tmp_path: Path) -> None:
    """Two gloo ranks under torchrun, with transformers' own tensor-parallel plan."""
    tiny_models.llama().save_pretrained(tmp_path / "model", max_shard_size="10KB")
    launched = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d",
         "--rdzv-endpoint=localhost:0", str(RANK), str(tmp_path)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert launched.returncode == 0, launched.stdout + launched.stderr
    for rank in range(2):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert found["equal"] is True
        assert found["served"] > 0
        assert found["fell"] == {}
        assert found["there_after_save"] is True
    assert_same_state(LlamaForCausalLM.from_pretrained(tmp_path / "saved"), tiny_models.llama())


def test_lora_weights_of_diffusers_come_back(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    from diffusers import UNet2DConditionModel

    blocks = {"down_block_types": ("CrossAttnDownBlock2D",), "up_block_types": ("CrossAttnUpBlock2D",)}
    sizes = {"sample_size": 8, "block_out_channels": (8,), "norm_num_groups": 4, "layers_per_block": 1}
    model = UNet2DConditionModel(**blocks, **sizes, cross_attention_dim=8, attention_head_dim=4)
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False))
    name = "pytorch_lora_weights.safetensors"
    counts = Counts()
    loaded = []
    for accelerated in (True, False):
        again = UNet2DConditionModel.from_config(model.config)
        if accelerated:
            with penstock.accelerate():
                model.save_lora_adapter(tmp_path)
                again.load_lora_adapter(str(tmp_path), prefix=None, weight_name=name, use_safetensors=True)
        else:
            again.load_lora_adapter(str(tmp_path), prefix=None, weight_name=name, use_safetensors=True)
        loaded.append({key: value for key, value in again.state_dict().items() if "lora" in key})
    assert (counts.served(SAVE), counts.served(LOAD)) == (1, 1)
    helpers.assert_same_tensors(*loaded)
    expected = {key: value for key, value in model.state_dict().items() if "lora" in key}
    assert len(expected) == len(loaded[0]) > 0
    assert all(torch.equal(*pair) for pair in zip(expected.values(), loaded[0].values(), strict=True))


@pytest.mark.parametrize("safe", [True, False])
def test_states_of_accelerate_come_back(tmp_path: Path, safe: bool) -> None:
    import accelerate

    with penstock.accelerate():
        accelerator = accelerate.Accelerator(cpu=True)
        model = tiny_models.bert()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
        model, optimizer = accelerator.prepare(model, optimizer)
        model(TOKENS).last_hidden_state.sum().backward()
        optimizer.step()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        counts = Counts()
        accelerator.save_state(tmp_path, safe_serialization=safe)
        assert counts.served("torch.save") >= 1
        assert counts.served(SAVE) == (1 if safe else 0)
        optimizer.step()
        accelerator.load_state(tmp_path)
        assert counts.served("torch.load") >= 1
    helpers.assert_same_tensors(dict(model.state_dict()), before)
    assert counts.fell(SAVE) == counts.fell(LOAD) == {}
