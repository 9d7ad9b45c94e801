"""The bookkeeping of the bench of a person's help."""

from __future__ import annotations

from pathlib import Path

from harl.bench.benefit import Row, draw, reached, read, shares_until


def rows(returns: list[float], mode: str = "none") -> list[Row]:
    return [Row(mode, 1, 1000 * k, value, 0.0) for k, value in enumerate(returns)]


def test_the_mean_of_three_evaluations_in_a_row_has_to_reach_the_threshold() -> None:
    assert reached(rows([-9, -1, -9, -5, -4, -3]), -4.0) == 5000
    assert reached(rows([-9, -9, -9]), -4.0) is None


def test_the_share_of_human_steps_is_weighted_by_the_steps_of_each_line() -> None:
    shares = [(1000, 0.1), (4000, 0.2)]
    assert shares_until(shares, 4000) == (0.1 * 1000 + 0.2 * 3000) / 4000
    assert shares_until(shares, 500) == 0.0


def test_curves_are_drawn_from_what_was_written(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("mode,seed,env_steps,return_sum,human_share\nnone,1,0,-9.0,0.0\nnone,1,1000,-8.0,0.0\n")
    found = read(table)
    assert found == [Row("none", 1, 0, -9.0, 0.0), Row("none", 1, 1000, -8.0, 0.0)]
    draw(found, "a task", tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
