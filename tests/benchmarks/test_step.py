"""The step benchmark measures what it says: both contestants train the same thing, and a dead one is told."""

from dataclasses import replace

import pytest

from remask.benchmarks.step import FAMILIES, config_of, contest

pytestmark = pytest.mark.dist


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_has_all_figures(family: str) -> None:
    config = replace(config_of(family, 64, 1), vocab_size=500)
    row = contest(config, [40, 7, 23], threads=1, repeats=2)
    assert (row["rows"], row["tokens"], row["threads"]) == (3, 70, 1) and row["real_share"] == pytest.approx(70 / 120)
    for name in ("tokens_per_s", "hf_tokens_per_s", "ratio", "gemm_fraction", "peak_rss_ratio"):
        assert row[name] > 0, name
    assert row["ratio_lowest"] <= row["ratio"] <= row["ratio_highest"]


def test_a_contestant_that_dies_is_told_with_its_words() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)ours ended: .*position"):
        contest(replace(config_of("bert", 64, 1), positions=8), [40], threads=1, repeats=1)
