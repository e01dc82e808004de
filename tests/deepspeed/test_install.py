"""install_into_deepspeed: what it replaces, when, and how all of it comes back."""

from __future__ import annotations

import helpers

ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}

LOOK = """
    import sys, warnings
    warnings.simplefilter("ignore")
    import penstock.fastpersist

    MODULES = (
        "deepspeed.runtime.checkpoint_engine.utils",
        "deepspeed.runtime.checkpoint_engine",
        "deepspeed.runtime.engine",
    )
    METHODS = ("save_checkpoint", "load_checkpoint")

    def everything():
        import deepspeed.runtime.engine as runtime
        found = {(name, key): value for name in MODULES for key, value in vars(sys.modules[name]).items()}
        return found | {("class", key): value for key, value in vars(runtime.DeepSpeedEngine).items()}

    def replaced():
        return sorted(
            key for key, value in everything().items()
            if getattr(getattr(value, "__code__", None), "co_filename", "").endswith("fastpersist/_deepspeed.py")
        )

    ALL = sorted([*((name, "create_checkpoint_engine") for name in MODULES), *(("class", name) for name in METHODS)])
    install = penstock.fastpersist.install_into_deepspeed
"""


def run(code: str) -> None:
    """As the only rank. Fails with what it said."""
    done = helpers.run_python(LOOK + code, check=False, **ALONE, **helpers.rendezvous())
    assert done.returncode == 0, done.stderr


def test_it_works_before_deepspeed_is_imported_and_undo_leaves_every_attribute_as_it_was() -> None:
    run(
        """
    finders = list(sys.meta_path)
    handle = install()
    assert "deepspeed" not in sys.modules
    import deepspeed
    assert replaced() == ALL, replaced()
    handle.undo()
    assert replaced() == [] and sys.meta_path == finders

    before = everything()
    with install() as handle:
        assert replaced() == ALL
        assert repr(handle) == "<penstock.fastpersist in deepspeed>"
        kept = deepspeed.runtime.engine.create_checkpoint_engine
    after = everything()
    assert repr(handle) == "<penstock.fastpersist in deepspeed, undone>"
    assert before.keys() == after.keys()
    assert all(before[key] is after[key] for key in before)
    assert sys.meta_path == finders
    deepspeed.init_distributed("gloo")
    engine = kept(None, None, 0, False, True)  # which somebody has kept
    assert type(engine).__name__ == "TorchCheckpointEngine", engine
    """
    )


def test_calls_are_nested_repeated_and_made_by_threads() -> None:
    run(
        """
    import threading
    handles = []
    threads = [threading.Thread(target=lambda: handles.append(install())) for _ in range(8)]
    threads.append(threading.Thread(target=lambda: __import__("deepspeed")))
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert len(handles) == 8 and replaced() == ALL
    before = everything()
    for handle in handles[1:]:
        handle.undo()
        handle.undo()
        assert replaced() == ALL
    assert all(before[key] is value for key, value in everything().items())
    handles[0].undo()
    assert replaced() == []
    """
    )


def test_a_factory_of_somebody_else_stays() -> None:
    run(
        """
    import deepspeed.runtime.engine as runtime
    def mine(*arguments, **named): ...
    runtime.create_checkpoint_engine = mine
    with install():
        assert runtime.create_checkpoint_engine is mine
        assert ("class", "save_checkpoint") in replaced()
    assert runtime.create_checkpoint_engine is mine and replaced() == []
    """
    )


def test_the_configuration_decides_the_engine_and_says_why_it_is_not_ours() -> None:
    run(
        """
    import deepspeed, types
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.utils import groups

    deepspeed.init_distributed("gloo")
    install()

    def make(moe=False, mpu=None, zero=None, **checkpoint):
        words = {"train_batch_size": 1, "checkpoint": checkpoint, "zero_optimization": zero or {"stage": 0}}
        config = DeepSpeedConfig(words)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            engine = deepspeed.runtime.engine.create_checkpoint_engine(
                config_params=config, groups=types.SimpleNamespace(mpu=mpu), zero_stage=0, has_moe_layers=moe,
                optimize_dp_state=True,
            )
        return engine, [str(warning.message) for warning in told if warning.category is RuntimeWarning]

    engine, told = make()
    assert type(engine).__name__ == "DeepSpeedCheckpointEngine" and told == []
    writer = engine.config.writer
    assert (writer.type, writer.decoupled, writer.data_parallel, engine.is_decoupled()) == ("fast", False, None, False)
    assert engine.config.tuning() == {}  # nothing was said

    engine, told = make(writer={"type": "FAST", "decoupled": True, "data_parallel": "socket", "io_buffer_size": 8e6})
    assert told == [] and engine.is_decoupled() and engine.config.writer.data_parallel == "socket"
    assert engine.config.writer.io_buffer_size == 8000000
    engine, told = make(checkpoint_serialization=False, writer={"type": "python"})
    assert engine.config.writer.type == "python" and not engine.config.checkpoint_serialization

    for more in ({"moe": True}, {"mpu": object()}):
        engine, told = make(**more, writer={"data_parallel": "replica"})
        assert engine.config.writer.data_parallel is None
        assert len(told) == 1 and "data_parallel is left out" in told[0], told
        engine, told = make(**more, writer={"decoupled": True})
        assert engine.is_decoupled() and told == []

    engine, told = make(use_node_local_storage=True)
    assert type(engine).__name__ == "TorchCheckpointEngine" and "use_node_local_storage" in told[0]
    nvme = {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"}}
    engine, told = make(zero=nvme)
    assert type(engine).__name__ == "TorchCheckpointEngine" and "nvme" in told[0]
    engine, told = make(zero={"stage": 3, "offload_optimizer": {"device": "cpu"}})
    assert type(engine).__name__ == "DeepSpeedCheckpointEngine" and told == []
    """
    )
