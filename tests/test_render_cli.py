"""`python -m harl.render`: a trained team played again from its run folder alone."""

from __future__ import annotations

import csv
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harl import render
from harl.experiment.run_folder import RunFolder
from tests.runners.runs import QUICK, Done, checkpoint, cli, parts_of, run, typed, world

av = pytest.importorskip("av", reason="PyAV, of the extra `video`, reads the videos back")


def played(cwd: Path, folder: RunFolder | Path, *options: str) -> Done:
    path = folder.path if isinstance(folder, RunFolder) else folder
    return typed(cwd, f"run={path}", *options, main=render.main)


def videos(done: Done) -> list[Path]:
    return [Path(line.removeprefix("video: ")) for line in done.out.splitlines() if line.startswith("video: ")]


def table(done: Done) -> list[dict[str, str]]:
    (path,) = (line.removeprefix("episodes: ") for line in done.out.splitlines() if line.startswith("episodes: "))
    with Path(path).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def frames(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    overrides = ["env=mpe", "checkpoint.interval=20", "checkpoint.keep_last=9"]
    return run(tmp_path_factory.mktemp("spread"), *overrides).folder


@pytest.fixture(scope="module")
def filmed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("filmed"), *world("Filmed"), *QUICK).folder


def test_rnd_07_each_episode_is_a_video_of_its_own_steps(filmed: RunFolder, tmp_path: Path) -> None:
    """One picture before each of the 25 actions, none of the next episode."""
    done = played(tmp_path, filmed, "render.episodes=3")
    assert (done.code, done.err) == (0, "")
    paths = videos(done)
    assert [path.name.rsplit("_", 1)[1] for path in paths] == [f"episode-{k}.mp4" for k in range(3)]
    assert all(path.parent == filmed.videos for path in paths)
    for path in paths:
        brightness = [float(frame.mean()) for frame in frames(path)]
        assert len(brightness) == 25
        assert brightness == pytest.approx([10.0 * t for t in range(25)], abs=4)
    assert not any(tmp_path.iterdir()), "everything lies in the run folder"


def test_a_particle_world_is_filmed_by_its_own_renderer(spread: RunFolder, tmp_path: Path) -> None:
    done = played(tmp_path, spread, "render.episodes=1")
    assert done.code == 0, done.err
    pictures = frames(videos(done)[0])
    assert len(pictures) == 25
    assert pictures[0].shape == (700, 700, 3)
    assert len(np.unique(pictures[0].reshape(-1, 3), axis=0)) > 3, "something is to be seen"
    assert np.abs(pictures[0].astype(int) - pictures[-1].astype(int)).max() > 50, "something moves"


def test_returns_are_printed_and_written_for_every_episode(spread: RunFolder, tmp_path: Path) -> None:
    done = played(tmp_path, spread, "render.episodes=4", "render.video=false")
    assert done.code == 0, done.err
    rows = table(done)
    assert [row["episode"] for row in rows] == ["0", "1", "2", "3"]
    assert {row["length"] for row in rows} == {"25"}
    sums = [float(row["return_sum"]) for row in rows]
    for row, total in zip(rows, sums, strict=True):
        own = [float(row[f"return/agent_{i}"]) for i in range(3)]
        assert total == pytest.approx(sum(own))
        assert float(row["return_mean"]) == pytest.approx(total / 3)
    assert len(set(sums)) == 4
    assert f"return, summed over agents: {np.mean(sums):.2f} ± {np.std(sums):.2f}" in done.out
    assert "(lowest" in done.out
    assert videos(done) == []


def test_res_06_playing_again_gives_the_same_episodes_and_changes_nothing(spread: RunFolder, tmp_path: Path) -> None:
    before = checkpoint(spread)
    first = table(played(tmp_path, spread, "render.episodes=3", "render.video=false"))
    assert table(played(tmp_path, spread, "render.episodes=3", "render.video=false")) == first
    filmed_too = table(played(tmp_path, spread, "render.episodes=3", "render.checkpoint=best"))
    assert filmed_too == first, "pictures change nothing"
    other = table(played(tmp_path, spread, "render.episodes=3", "render.video=false", "render.seed=99"))
    assert [row["seed"] for row in other] != [row["seed"] for row in first]
    assert checkpoint(spread) == before


def test_files_of_an_earlier_render_are_not_replaced_without_a_word(filmed: RunFolder, tmp_path: Path) -> None:
    options = ["render.episodes=2", "render.seed=5"]
    assert "replaces" not in played(tmp_path, filmed, *options).out
    again = played(tmp_path, filmed, *options)
    before, played_after = again.out.split("return, summed over agents")
    assert "replaces files of an earlier render: " in before
    assert "seed-5_episodes.csv and 2 more" in before
    assert "episodes: " in played_after
    assert "replaces" not in played(tmp_path, filmed, "render.episodes=1", "render.seed=6").out


def test_sampled_actions_are_another_thing_than_the_most_likely_ones(spread: RunFolder, tmp_path: Path) -> None:
    likely = played(tmp_path, spread, "render.episodes=2", "render.video=false")
    sampled = played(tmp_path, spread, "render.episodes=2", "render.video=false", "render.deterministic=false")
    assert "most likely actions" in likely.out
    assert "sampled actions" in sampled.out
    assert [row["seed"] for row in table(likely)] == [row["seed"] for row in table(sampled)]
    assert [row["return_sum"] for row in table(likely)] != [row["return_sum"] for row in table(sampled)]
    again = played(tmp_path, spread, "render.episodes=2", "render.video=false", "render.deterministic=false")
    assert table(again) == table(sampled)


def test_the_checkpoint_can_be_chosen(spread: RunFolder, tmp_path: Path) -> None:
    best = int((spread.checkpoints / "best").read_text(encoding="utf-8"))
    chosen: Sequence[tuple[str, int]] = [("best", best), ("latest", 80), ("20", 20)]
    for option, steps in chosen:
        done = played(tmp_path, spread, f"render.checkpoint={option}", "render.episodes=1", "render.video=false")
        assert done.code == 0, done.err
        assert f"trained for {steps} environment steps" in done.out
    done = played(tmp_path, spread.checkpoints / "40", "render.episodes=1", "render.video=false")
    assert "trained for 40 environment steps" in done.out


def test_without_any_evaluation_the_best_is_the_newest(filmed: RunFolder, tmp_path: Path) -> None:
    done = played(tmp_path, filmed, "render.episodes=1", "render.video=false")
    assert "trained for 80 environment steps" in done.out


@pytest.mark.parametrize(
    ("options", "code", "texts"),
    [
        (["render.checkpoint=30"], 1, ["there is no checkpoint 30", "0, 20, 40, 60, 80"]),
        (["render.checkpoint=newest"], 2, ["render.checkpoint=newest", "best, latest"]),
        (["render.episods=3"], 2, ["render.episods", "render.episodes"]),
        (["render.episodes=0"], 2, ["render.episodes=0"]),
        (["algo=mappo"], 2, ["algo"]),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    spread: RunFolder, tmp_path: Path, options: list[str], code: int, texts: list[str]
) -> None:
    done = played(tmp_path, spread, *options)
    assert done.code == code
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err
    for text in texts:
        assert text in done.err


def test_res_13_a_run_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, text in (("missing", "does not exist"), ("empty", "empty folder")):
        done = typed(tmp_path, f"run={path}", main=render.main)
        assert done.code == 1
        assert text in done.err
        assert done.err.count("\n") == 1
    done = typed(tmp_path, main=render.main)
    assert done.code == 2
    assert "run" in done.err


def test_rnd_02_pictures_that_the_environment_does_not_make(tmp_path: Path) -> None:
    folder = run(tmp_path, *world("Identity"), *QUICK).folder
    done = played(tmp_path, folder, "render.episodes=2")
    assert done.code == 1
    assert "render" in done.err
    assert "Traceback" not in done.err
    assert not list(folder.path.rglob("*.mp4"))
    assert played(tmp_path, folder, "render.episodes=2", "render.video=false").code == 0


def test_rnd_06_without_an_encoder_it_says_at_once_that_it_will_be_a_gif(
    filmed: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as hidden:
        hidden.setitem(sys.modules, "av", None)
        done = played(tmp_path, filmed, "render.episodes=1")
    assert done.code == 0, done.err
    assert "video as gif" in done.out.splitlines()[0], "before anything is played"
    (path,) = videos(done)
    with Image.open(path) as picture:
        assert (picture.format, picture.n_frames, picture.size) == ("GIF", 25, (24, 16))


def test_rnd_02_a_video_is_never_empty(filmed: RunFolder, tmp_path: Path) -> None:
    done = played(tmp_path, filmed, "render.episodes=2", "render.fps=25")
    with av.open(str(videos(done)[0])) as container:
        stream = container.streams.video[0]
        assert (stream.frames, float(stream.average_rate)) == (25, 25.0)


def test_res_07_a_moved_run_is_played_where_it_lies(
    spread: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(spread.path, tmp_path / "moved")
    done = played(tmp_path, Path("moved"), "render.episodes=1")
    assert done.code == 0, done.err
    assert videos(done)[0].parent == tmp_path / "moved" / "videos"
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]


def test_D_45_and_msk_04_and_ded_01_masks_and_departures_count(tmp_path: Path) -> None:
    for name, total in (("TwoLegal", 10.0), ("Deaths", 9.0)):
        folder = run(tmp_path, *world(name), *QUICK).folder
        for deterministic in (True, False):
            done = played(tmp_path, folder, "render.video=false", f"render.deterministic={deterministic}")
            assert done.code == 0, done.err
            assert {float(row["return_sum"]) for row in table(done)} == {total}


@pytest.mark.slow
def test_rnd_04_and_res_09_a_new_process_without_a_display(spread: RunFolder, tmp_path: Path) -> None:
    hidden = {"DISPLAY": None, "WAYLAND_DISPLAY": None, "SDL_VIDEODRIVER": None}
    outcomes = []
    for _ in range(2):
        done = cli(tmp_path, f"run={spread.path}", "render.episodes=2", module="harl.render", env=hidden)
        assert (done.returncode, done.stderr) == (0, "")
        outcomes.append(done.stdout)
    assert outcomes[0] == outcomes[1]
    assert "2 episodes" in outcomes[0]
    here = played(tmp_path, spread, "render.episodes=2")
    assert here.out == outcomes[0], "the same as in the process that trained"
    assert len(frames(videos(here)[0])) == 25
    assert parts_of(checkpoint(spread), "learners")
