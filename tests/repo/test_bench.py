"""What bench/ makes of measurements: who won, which promises hold, how cost grows, what the document says."""

from __future__ import annotations

import argparse
import importlib
import json
import mmap
import random
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import cases  # noqa: E402
import document  # noqa: E402
import growth  # noqa: E402
import inputs  # noqa: E402
import machine  # noqa: E402
import model  # noqa: E402
import not_raced  # noqa: E402
import promises  # noqa: E402
import race  # noqa: E402
import report  # noqa: E402
import run_results  # noqa: E402
import runner  # noqa: E402
import summary  # noqa: E402

GIB = 1 << 30


def measured(key: str, seconds: list[float], **fields: float) -> runner.Series:
    """A case that moved 1 GiB in these times."""
    return runner.Series(cases.find_case(key), [{"seconds": one, "bytes": GIB, **fields} for one in seconds])


def of_a_run(*series: runner.Series) -> run_results.Results:
    about: dict[str, Any] = {"cores": 2, "filesystem": "ext4 on /dev/secret", "peers": {"safetensors": "0.8.0"}}
    return run_results.Results(about, list(series))


LOST = of_a_run(
    measured("cold: penstock.load", [0.5, 0.4, 0.6], cpu_seconds=0.5),
    measured("cold: fastsafetensors", [1.0, 1.0, 1.0], cpu_seconds=0.4),
    measured("warm: penstock.load", [0.2]),
    measured("warm: safetensors load_file", [0.1]),
)


def test_cases_have_names_of_their_own() -> None:
    counts = Counter(case.key for case in cases.all_cases())
    assert [key for key, count in counts.items() if count > 1] == []


def test_every_race_has_somebody_of_ours_and_somebody_to_beat() -> None:
    for one in cases.RACES:
        roles = {case.role for case in cases.all_cases() if case.race == one and case.runs_by_default}
        assert "ours" in roles, one.key
        assert roles & {"peer", "ceiling"}, one.key


def test_groups_hold_every_race_once() -> None:
    assert sorted(one.key for group in cases.GROUPS.values() for one in group) == sorted(one.key for one in cases.RACES)


def test_promises_name_cases_and_races_that_are_run() -> None:
    run = {case.key for case in cases.all_cases() if case.runs_by_default}
    races = {one.key for one in cases.RACES}
    for promise in (*promises.PROMISES, *promises.FIELD_PROMISES):
        assert set(promise.cases) <= run, promise.text
        assert set(promise.against) <= races, promise.text


def test_the_quick_race_is_of_cases_that_exist() -> None:
    assert set(race.QUICK) <= {case.key for case in cases.all_cases() if case.runs_by_default}


def test_the_comparisons_run_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: "fio")
    arguments = argparse.Namespace(races="", only="", all=False, quick=False)
    chosen = {case.race for case in race.choose_cases(arguments)}
    assert chosen == set(cases.RACES)
    arguments.races = "comparisons"
    assert {case.race for case in race.choose_cases(arguments)} == set(cases.COMPARISONS)
    assert {one.input for one in cases.COMPARISONS} <= {*inputs.FILES, *inputs.SIZED}


def test_every_peer_in_its_own_environment_is_pinned() -> None:
    pinned = (ROOT / "scripts" / "requirements-bench.txt").read_text()
    for name in race.PEERS:
        assert name == "torch" or f"\n{name}==" in pinned, name


def test_a_lost_race_is_listed_with_its_ratio() -> None:
    ((ours, first, ratio),) = summary.not_first(LOST.summaries)
    assert (ours.case.key, first.case.key) == ("warm: penstock.load", "warm: safetensors load_file")
    assert ratio == pytest.approx(0.5)
    assert report.losses_in_words(LOST.summaries) == (
        "penstock is not first in: warm load (0.50x of safetensors load_file)"
    )


def test_a_lost_comparison_is_listed_too() -> None:
    lost = of_a_run(measured("model-save: penstock.flashpack", [0.5]), measured("model-save: flashpack + fsync", [0.4]))
    assert report.losses_in_words(lost.summaries) == (
        "penstock is not first in: durable save of a model (0.80x of flashpack + fsync)"
    )


def test_a_promise_is_held_against_the_best_peer_of_its_races() -> None:
    figures = {one.promise.text: (one.figure, one.holds) for one in promises.judge(LOST.summaries)}
    assert figures["cold load, fresh memory: speed over the best peer in any format"] == (pytest.approx(2.0), True)
    assert figures["cold load, fresh memory: processor time over that of peers within 2x"] == (
        pytest.approx(1.25),
        False,
    )
    assert figures["warm load: speed over the first"] == (pytest.approx(0.5), False)


def test_promises_about_what_was_not_measured_are_not_judged() -> None:
    alone = of_a_run(measured("cold: penstock.load", [0.5]))
    assert not any(verdict.promise.against for verdict in promises.judge(alone.summaries))


def test_a_promise_is_shown_beside_what_the_engine_alone_would_reach() -> None:
    run = of_a_run(*LOST.series, measured("cold: the engine alone, read", [0.25]))
    reached = {one.promise.text: one.engine_alone for one in promises.judge(run.summaries)}
    assert reached["cold load: speed over fastsafetensors"] == pytest.approx(4.0)
    assert reached["cold load, fresh memory: speed over the best peer in any format"] == pytest.approx(4.0)
    assert reached["cold load: processor time over fastsafetensors"] is None
    assert reached["warm load: speed over the first"] is None
    assert all(one.engine_alone is None for one in promises.judge(LOST.summaries))
    assert set(promises.ENGINE_ALONE.values()) <= {case.key for case in cases.all_cases()}


def test_a_line_is_found_through_its_own_points() -> None:
    fixed, slope = growth.fit([(x, 0.25 + 2.0 * x) for x in (0.001, 0.1, 1.0, 100.0)])
    assert fixed == pytest.approx(0.25)
    assert slope == pytest.approx(2.0)


def test_a_small_model_counts_as_much_as_a_large_one() -> None:
    """Without weights the error of the largest would make the fixed cost negative."""
    fixed, _ = growth.fit([(1, 1.1), (10, 2.0), (1000, 90.0), (10000, 1200.0)])
    assert 0.5 < fixed < 1.5


def test_results_are_the_same_after_a_round_through_json(tmp_path: Path) -> None:
    run = of_a_run(*LOST.series)
    run.left_out = {"torch-save: FastPersist zip": "refused"}
    for amount, seconds in ((16 << 20, 0.1), (128 << 20, 0.5)):
        run.add_grown(measured("grow-load: penstock", [seconds]), amount)
    run_results.write(tmp_path / "race.json", run_results.as_json(run))
    again = run_results.read(tmp_path / "race.json")
    assert again.summaries == run.summaries
    assert again.points == run.points
    assert again.left_out == run.left_out
    kept = json.loads((tmp_path / "race.json").read_text())
    assert kept["not_raced"]["InstantTensor"] == not_raced.EVERYWHERE["InstantTensor"]
    assert kept["not_raced"]["torch-save: FastPersist zip"] == "refused"


def test_the_document_changes_between_its_markers_only(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(f"before\n{document.BEGIN}\nyesterday\n{document.END}\nafter\n")
    document.update(page, LOST)
    once = page.read_text()
    document.update(page, LOST)
    assert page.read_text() == once
    assert once.startswith(f"before\n{document.BEGIN}\n")
    assert once.endswith(f"{document.END}\nafter\n")
    assert "yesterday" not in once


def test_the_document_tells_of_losses_misses_and_absence_and_of_no_path(tmp_path: Path) -> None:
    text = document.render(LOST, tmp_path)
    assert "| warm load | penstock.load: 5.00 GiB/s | safetensors load_file: 10.00 GiB/s | 0.50x |" in text
    assert "| **warm load: speed over the first** | 0.50 | at least 0.95 | MISSED |" in text
    assert "InstantTensor" in text
    assert "/dev/secret" not in text


def test_a_document_without_markers_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing here\n")
    with pytest.raises(SystemExit, match="has no place for the tables"):
        document.update(page, LOST)
    assert page.read_text() == "nothing here\n"


def test_our_document_has_its_markers() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    assert text.index(document.BEGIN) < text.index(document.END)


@pytest.fixture
def setting(tmp_path: Path) -> runner.Setting:
    expected = model.Expected(0, 0, 0, 0)
    return runner.Setting(tmp_path, tmp_path / "model.safetensors", tmp_path / "many.safetensors", expected, "", "")


def test_a_round_has_every_case_and_the_warm_loads_of_a_file_follow_each_other(setting: runner.Setting) -> None:
    chosen = [case for case in cases.all_cases() if case.runs_by_default and case.race in cases.ENGINE_RACES]
    series = [runner.Series(case) for case in chosen]
    first, second = (runner.order_of_round(series, setting, random.Random(seed)) for seed in (1, 2))
    assert first != second
    for order in (first, second):
        assert Counter(one.case.key for one in order) == {case.key: case.race.per_round for case in chosen}
        warm = [one for one in order if one.case.race == cases.WARM_LOAD and one.case.input_suffix == ".safetensors"]
        begin = order.index(warm[0])
        assert len(warm) > 3
        assert order[begin : begin + len(warm)] == warm


def test_a_warm_file_is_read_once_for_all_who_load_it(setting: runner.Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    setting.idle_seconds = 0
    cached: set[Path] = set()
    read: list[Path] = []

    def fill(path: Path) -> None:
        read.append(path)
        cached.add(path)

    monkeypatch.setattr(machine, "compact_memory", lambda: None)
    monkeypatch.setattr(machine, "warm_page_cache", fill)
    monkeypatch.setattr(machine, "drop_page_cache", lambda paths, everything: cached.difference_update(paths))
    monkeypatch.setattr(machine, "size_of", lambda _: 1 << 16)
    monkeypatch.setattr(machine, "resident_bytes", lambda path: (path in cached) << 16)
    by_race = {case.race.key: case for case in cases.all_cases()}
    warm, cold, many = by_race["warm"], by_race["cold"], by_race["many"]
    for case, file in ((warm, setting.model), (warm, setting.model), (many, setting.many), (warm, setting.model)):
        runner.settle(case, file, setting)
    assert read == [setting.model, setting.many, setting.model]
    runner.settle(cold, setting.model, setting)
    runner.settle(warm, setting.model, setting)
    assert len(read) == 4
    cached.clear()  # as whoever loads it may
    runner.settle(warm, setting.model, setting)
    assert len(read) == 5


def test_loads_start_long_after_the_last_process_let_go_of_its_memory(setting: runner.Setting) -> None:
    by_role = {(case.race.key, case.role): case for case in cases.all_cases()}
    setting.idle_seconds, setting.last_end = 0.5, 100.0
    rests = {key: runner.rest_before(case, setting, 101.0) for key, case in by_role.items()}
    assert rests["cold", "ours"] == rests["cold", "peer"] == runner.MEMORY_REST_SECONDS - 1.0
    assert rests["cold", "ceiling"] == rests["save", "ours"] == rests["open", "ours"] == 0.5
    assert runner.rest_before(by_role["cold", "peer"], setting, 200.0) == 0.5


def test_everybody_starts_with_memory_at_hand(setting: runner.Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    setting.idle_seconds, setting.memory_at_hand = 0, True
    setting.expected = model.Expected(nbytes=4 << 20, tensors=1, checksum=0, page_sample=0)
    taken: list[int] = []
    monkeypatch.setattr(machine, "have_memory_at_hand", taken.append)
    monkeypatch.setattr(machine, "drop_page_cache", lambda paths, everything: None)
    monkeypatch.setattr(machine, "size_of", lambda _: 1 << 16)
    monkeypatch.setattr(machine, "resident_bytes", lambda _: 0)
    by_role = {(case.race.key, case.role): case for case in cases.all_cases()}
    for key in (("cold", "ours"), ("cold", "peer"), ("save", "ours"), ("save", "peer")):
        runner.settle(by_role[key], setting.model, setting)
    assert taken == [9 << 20] * 4
    setting.memory_at_hand, setting.last_end = False, -100.0
    runner.settle(by_role["save", "peer"], setting.model, setting)
    assert len(taken) == 4


@pytest.mark.parametrize(("free_gib", "taken"), [(8, 3 << 30), (2, 1 << 30), (1, 0), (0, 0)])
def test_memory_at_hand_is_of_what_is_free(monkeypatch: pytest.MonkeyPatch, free_gib: int, taken: int) -> None:
    mapped: list[int] = []

    class Mapping:
        def __init__(self, _: int, nbytes: int, flags: int) -> None:
            assert flags & mmap.MAP_POPULATE
            mapped.append(nbytes)

        def close(self) -> None:
            mapped.append(-mapped[-1])

    monkeypatch.setattr(machine, "system_field", lambda *_: f"{free_gib << 20} kB")
    monkeypatch.setattr(mmap, "mmap", Mapping)
    machine.have_memory_at_hand(3 << 30)
    assert mapped == ([taken, -taken] if taken else [])


@pytest.mark.parametrize("size", [4096, 1 << 20, (1 << 30) + 5])
def test_half_of_a_file_is_every_other_stretch(size: int) -> None:
    stretches = machine.resident_stretches(size)
    held = sum(end - begin for begin, end in stretches)
    assert all(begin % 4096 == 0 and begin < end <= size for begin, end in stretches)
    assert held <= machine.HALF_STRETCH or 0.4 * size <= held <= 0.6 * size


def test_shards_hold_all_tensors_in_order_and_about_as_much_each() -> None:
    tensors = sorted(model.transformer_of(2))
    groups = model.split_evenly(tensors, 8)
    assert [tensor for group in groups for tensor in group] == tensors
    sizes = [sum(map(model.tensor_nbytes, group)) for group in groups]
    largest = max(map(model.tensor_nbytes, tensors))
    assert max(sizes) - min(sizes) <= 2 * largest


def test_shards_are_written_with_their_index_and_checksum(tmp_path: Path) -> None:
    tensors: list[model.Tensor] = [(f"t{i}", "F32", [100 + i]) for i in range(9)]
    expected = model.ensure_shards(tmp_path / "shards", tensors, count=3)
    index = json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == {name for name, _, _ in tensors}
    assert index["metadata"]["total_size"] == expected.nbytes == sum(map(model.tensor_nbytes, tensors))
    assert model.ensure_shards(tmp_path / "shards", tensors, count=3) == expected


def test_the_large_models_are_what_they_are_called() -> None:
    experts = model.mixture_of_experts(2)
    assert 49_900 < len(experts) < 50_100
    assert 1.4 * GIB < sum(map(model.tensor_nbytes, experts)) < 1.7 * GIB
    assert sum(map(model.tensor_nbytes, model.one_tensor(4))) == 4 * GIB
    assert 1.0 <= sum(map(model.tensor_nbytes, model.one_mib())) / (1 << 20) < 1.01


def test_every_family_is_a_module_of_its_own() -> None:
    for family in cases.FAMILIES:
        assert importlib.import_module(f"cases.{family}").CASES
