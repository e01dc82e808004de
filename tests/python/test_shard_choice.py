"""plan="auto": which way the numbers of all ranks speak for."""

from __future__ import annotations

import pytest
from penstock._torch.shards import _Measured, judge

GB = 10**9


@pytest.mark.parametrize(
    ("each", "world", "way"),
    [
        (_Measured(GB, GB, GB // 4, 0.1 * GB, 2.0 * GB), 4, "scatter"),  # all want all, from a slow drive
        (_Measured(GB, GB, GB // 4, 2.0 * GB, 0.2 * GB), 4, "exact"),  # the link is slower than the drive
        (_Measured(GB // 4, GB // 4, GB // 4, 0.1 * GB, 2.0 * GB), 4, "exact"),  # nobody reads what another reads
        (_Measured(GB, GB // 4, GB // 4, 0.5 * GB, 2.0 * GB), 4, "scatter"),  # columns, with the gaps between them
        (_Measured(GB, GB, GB // 2, 0.9 * GB, 0.9 * GB), 2, "exact"),  # no gain
    ],
)
def test_the_way_follows_from_bytes_and_rates(each: _Measured, world: int, way: str) -> None:
    found, reason = judge([each] * world)
    assert found == way
    assert "\n" not in reason


def test_the_reason_has_the_numbers() -> None:
    assert judge([_Measured(GB, GB, GB // 2, 0.5 * GB, 1.0 * GB)] * 2) == (
        "scatter",
        "own parts are 2 GB in 2 s; 1 GB read once and sent in 1.5 s (drive 1 GB/s, link 2 GB/s, of all ranks)",
    )


def test_the_slowest_rank_counts() -> None:
    fast = _Measured(GB, GB, GB // 2, 5.0 * GB, 1.0 * GB)
    assert judge([fast, fast])[0] == "exact"
    assert judge([fast, fast._replace(drive=0.2 * GB)])[0] == "scatter"
