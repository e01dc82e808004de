"""The example of docs/guides/sglang.md runs as it stands there."""

from __future__ import annotations

from pathlib import Path

import page_blocks
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "sglang.md"


def test_the_example_loads_weights(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my-model").symlink_to(models / "shards")
    monkeypatch.chdir(tmp_path)
    page_blocks.main(PAGE)  # in this process, where torchvision has its stand-in
    assert "Loading weights with penstock: 100%" in capfd.readouterr().err
