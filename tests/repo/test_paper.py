"""Models of bench/paper.py, who keeps what of them, and what bench/fastsafetensors_race.py makes of measurements."""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import fastsafetensors_figures as figures  # noqa: E402
import fastsafetensors_race as race  # noqa: E402
import model  # noqa: E402
import paper  # noqa: E402
import paper_chart  # noqa: E402
import paper_models as models  # noqa: E402
import ranks  # noqa: E402
from rank_ways import BY_KEY, WAYS, RankTask, expert_filter  # noqa: E402

GIB, MIB = 1 << 30, 1 << 20
BY_NAME = {one.name: one for one in models.ARCHITECTURES}


@pytest.mark.parametrize(
    ("name", "parameters", "tensors", "shards"),
    [
        ("Llama 7B", 6_738_415_616, 291, 2),
        ("Llama 13B", 13_015_864_320, 363, 3),
        ("Llama 70B", 68_976_648_192, 723, 15),
        ("Falcon 40B", 41_835_970_560, 484, 9),
        ("Bloom 176B", 176_247_271_424, 845, 72),
    ],
)
def test_models_have_the_parameters_that_are_published(name: str, parameters: int, tensors: int, shards: int) -> None:
    architecture = BY_NAME[name]
    assert models.nbytes_of(architecture) == 2 * parameters
    assert len(models.tensors_of(architecture)) == tensors
    split = models.shards_of(architecture)
    assert len(split) == shards == architecture.shards
    assert [tensor for shard in split for tensor in shard] == models.tensors_of(architecture)
    assert all(split)


@pytest.mark.parametrize("architecture", models.ARCHITECTURES, ids=lambda one: one.name)
def test_a_scaled_model_fits_has_the_same_names_and_says_its_factor(architecture: models.Architecture) -> None:
    scaled = models.scaled_to(architecture, GIB)
    small = models.nbytes_of(scaled.architecture)
    assert 0.9 * GIB < small <= GIB
    assert scaled.factor == models.nbytes_of(architecture) / small
    assert f"scaled down by {scaled.factor:.1f} " in scaled.in_words()
    names = [tensor[0] for tensor in models.tensors_of(architecture)]
    assert [tensor[0] for tensor in models.tensors_of(scaled.architecture)] == names


def test_a_model_that_fits_is_not_scaled() -> None:
    llama = BY_NAME["Llama 7B"]
    assert models.scaled_to(llama, 13 * GIB) == models.Scaled(llama, 1.0, 1.0)


@pytest.mark.parametrize("architecture", models.ARCHITECTURES, ids=lambda one: one.name)
def test_plans_split_every_matrix_into_equal_parts_and_nothing_by_two_globs(architecture: models.Architecture) -> None:
    plan = models.PLANS[architecture.family]
    task = RankTask("load", [], plan=plan, ranks=4)
    for name, _, shape in models.tensors_of(models.scaled_to(architecture, GIB).architecture):
        assert sum(fnmatchcase(name, glob) for glob in plan) <= 1
        dimension = task.dimension(name)
        assert dimension is not None or len(shape) == 1, name
        assert dimension is None or shape[dimension] % 4 == 0, name
    assert all(any(fnmatchcase(name, glob) for name, _, _ in models.tensors_of(architecture)) for glob in plan)


def test_parts_of_ranks_cover_an_extent_once() -> None:
    parts = [RankTask("load", [], rank, 4).part(10) for rank in range(4)]
    assert parts == [(0, 3), (3, 6), (6, 9), (9, 10)]


def test_experts_are_dealt_in_blocks_and_everything_else_is_wanted() -> None:
    names = [f"model.layers.0.mlp.experts.{number}.up_proj.weight" for number in range(16)]
    is_wanted = expert_filter(16, 8, 3)
    assert [names.index(name) for name in names if is_wanted(name)] == [6, 7]
    assert is_wanted("model.layers.0.mlp.router.weight")


def test_files_of_the_race_are_of_the_size_that_was_asked_for() -> None:
    for mib in (64, 128, 512):
        shards = race.shards_of(mib)
        sizes = [sum(map(model.tensor_nbytes, shard)) / MIB for shard in shards]
        assert sizes == pytest.approx([mib] * 4, rel=0.01)
        names = [name for shard in shards for name, _, _ in shard]
        assert len(set(names)) == len(names)


def test_rows_of_column_slices_for_four_ranks_have_4_kib_and_more() -> None:
    task = RankTask("load", [], plan=race.SLICES["column slices"], ranks=4)
    split = [shape for shard in race.shards_of(512) for name, _, shape in shard if task.dimension(name) == 1]
    assert len(split) == 64
    assert min(2 * columns // 4 for _, columns in split) == 4096


def rank(begin: float, end: float, **fields: Any) -> dict[str, Any]:
    known = {"cpu_seconds": 1.0, "kept_bytes": 10, "peak_bytes": 20, "peak_anonymous_bytes": 15, "io_read_bytes": 50}
    return {**known, "bytes_on_drive": 40, "begin": begin, "end": end, **fields}


def test_a_group_takes_from_the_first_begin_to_the_last_end() -> None:
    together = ranks.combine([rank(1.0, 2.0), rank(1.5, 4.0, peak_bytes=30)], 100)
    assert together["seconds"] == 3.0
    assert (together["peak_bytes"], together["kept_bytes"]) == (30, 10)
    assert (together["cpu_seconds"], together["io_read_bytes"], together["bytes_on_drive"]) == (2.0, 100, 80)
    assert ranks.combine([rank(1.0, 2.0), rank(1.0, 2.0, bytes_on_drive=None)], 100)["bytes_on_drive"] is None


def measured(*seconds: float, **fields: Any) -> list[dict[str, Any]]:
    known = {"bytes": 2048 * MIB, "files": 4, "kept_bytes": 1024 * MIB, "peak_bytes": 1024 * MIB}
    return [{**known, "io_read_bytes": 0, "bytes_on_drive": None, "seconds": one, **fields} for one in seconds]


def judged(results: ranks.Results) -> dict[str, tuple[float, bool]]:
    return {one.text: (pytest.approx(one.value), one.holds) for one in figures.figures_of(results)}


def test_a_loader_is_held_against_the_peers_or_against_the_engine() -> None:
    results = {
        "1 process, penstock SafeTensorsFileLoader": measured(9.0, 1.0, 1.0),
        "1 process, fastsafetensors SafeTensorsFileLoader": measured(1.4),
        "1 process, penstock ParallelLoader": measured(1.0),
        "1 process, fastsafetensors ParallelLoader": measured(2.0),
    }
    assert judged(results) == {
        "1 process, SafeTensorsFileLoader: speed over the peer's": (1.4, False),
        "1 process, ParallelLoader: speed over the peer's": (2.0, True),
    }
    assert judged(results | {figures.ENGINE: measured(0.91)})[
        "1 process, SafeTensorsFileLoader: speed over the peer's"
    ] == (1.4, True)
    assert judged(results | {figures.ENGINE: measured(0.8)})[
        "1 process, SafeTensorsFileLoader: speed over the peer's"
    ] == (1.4, False)


def test_two_ranks_are_never_excused_by_the_engine() -> None:
    found = judged(
        {
            figures.ENGINE: measured(1.0),
            "2 ranks, penstock ParallelLoader": measured(1.0),
            "2 ranks, fastsafetensors ParallelLoader": measured(1.4),
        }
    )
    assert found["2 ranks, ParallelLoader: speed over the peer's"] == (1.4, False)


def test_memory_is_that_of_the_worst_round_beside_shard_and_batch() -> None:
    rounds = [*measured(1.0), *measured(1.0, peak_bytes=1600 * MIB)]
    found = judged({"2 ranks, penstock ParallelLoader": rounds, "2 ranks, penstock SafeTensorsFileLoader": rounds})
    assert found["2 ranks, ParallelLoader: peak memory over shard and batch"] == (1600 / 1536, False)
    assert found["2 ranks, SafeTensorsFileLoader: peak memory over shard and batch"] == (1600 / 2048, True)


def test_what_four_ranks_read_is_counted_by_the_engine_and_by_the_kernel() -> None:
    rows = measured(1.0, bytes_on_drive=2060 * MIB, io_read_bytes=2100 * MIB)
    found = judged({"4 ranks, row slices, penstock.load": rows, "4 ranks, column slices, penstock.load": rows})
    assert found["4 ranks, row slices: bytes_on_drive over the checkpoint's"] == (2060 / 2048, True)
    assert found["4 ranks, row slices: the kernel's read_bytes over the checkpoint's"] == (2100 / 2048, False)
    assert found["4 ranks, column slices: the kernel's read_bytes over the checkpoint's"] == (2100 / 2048, True)


def test_a_filter_is_held_against_the_whole_by_time() -> None:
    found = judged(
        {
            "50,000 tensors, penstock.load": measured(1.2),
            "50,000 tensors, experts 1/8, penstock.load": measured(0.19),
        }
    )
    assert found == {"50,000 tensors, penstock.load: time of 1/8 of the experts over all": (0.19 / 1.2, True)}


def test_every_figure_has_entries_that_are_measured() -> None:
    checkpoint = ranks.Checkpoint("any", [], 0)
    entries = [*race.dense_entries(checkpoint), *race.expert_entries(checkpoint, 640)]
    keys = {entry.key for entry in entries}
    assert len(keys) == len(entries)
    found = figures.figures_of({key: measured(1.0, bytes_on_drive=1) for key in keys})
    assert len(found) == 2 + 2 + 3 + 4 + 2


def test_a_paper_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    import run_results

    fields = {"cpu_seconds": 1.0, "peak_anonymous_bytes": 1}
    results = [paper.Result("Llama 7B", 2, "load", measured(1.0, 2.0, **fields))]
    path = tmp_path / "paper.json"
    run_results.write(path, paper.as_json({"models": {}}, results, {"x": "y"}))
    assert paper.read(path) == ({"models": {}}, results, {"x": "y"})


def test_bars_of_a_model_stand_side_by_side_in_the_order_of_the_ways() -> None:
    bars = [paper_chart.Bar(name, 1, way.key, 1.0, 1.0, 1.0) for name in ("a", "b") for way in WAYS]
    places = [place for place, _ in paper_chart.places_of(bars)]
    assert places == sorted(places)
    assert sum(places[: len(WAYS)]) / len(WAYS) == pytest.approx(0)
    assert sum(places[len(WAYS) :]) / len(WAYS) == pytest.approx(1)
    assert set(paper_chart.colours_of(paper_chart.charts.LIGHT)) == set(BY_KEY)
    assert paper_chart.mixed("#000000", "#ffffff", 0.2) == "#333333"
