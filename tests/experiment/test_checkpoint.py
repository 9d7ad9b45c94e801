"""Checkpoints: exact round trips, nothing but data inside, and always a whole one to go back to."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickletools
import signal
import zipfile
from collections import OrderedDict, namedtuple
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harl.experiment import checkpoint_files
from harl.experiment.checkpoint import CheckpointError, CheckpointStore, CheckpointWarning
from harl.experiment.plain_state import NUMPY_MARK


def trained() -> dict[str, Any]:
    """State like a run's: networks, an optimiser with steps behind it, arrays, generators, counters."""
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    network(torch.randn(5, 4)).sum().backward()
    optimiser.step()
    return {
        "actors": {"agent_0": network.state_dict()},
        "optimisers": [optimiser.state_dict()],
        "rng": {"minibatch": np.random.default_rng(3).bit_generator.state, "torch": torch.get_rng_state()},
        "env": {
            "positions": np.random.randn(3, 2),
            "steps": np.arange(3, dtype=np.uint32),
            "names": np.array(["a", "ü"]),
        },
        "counters": {
            "env_steps": 2**40,
            "best": float("-inf"),
            "done": False,
            "note": "ü\n",
            "none": None,
            "t": (1, (2.5,)),
        },
    }


def assert_equal(left: Any, right: Any) -> None:
    """Equal in value, type and dtype, whatever the nesting."""
    if isinstance(left, torch.Tensor | np.ndarray):
        assert type(left) is type(right)
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        assert bool((left == right).all())
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_equal(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert type(left) is type(right)
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_equal(one, other)
    else:
        assert type(left) is type(right)
        assert left == right


def damage(file: Path) -> None:
    """Change one byte in the middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


def filled(folder: Path, scores: list[float | None], keep_last: int = 10) -> CheckpointStore:
    store = CheckpointStore(folder, keep_last)
    for number, score in enumerate(scores, start=1):
        store.save(100 * number, {"a": {"x": torch.full((500,), float(number))}, "b": {"y": number}}, score)
    return store


def test_what_is_saved_comes_back_exactly(tmp_path: Path) -> None:
    state = trained()
    store = CheckpointStore(tmp_path / "checkpoints", 2)
    folder = store.save(1000, state)
    assert folder == tmp_path / "checkpoints" / "1000"
    assert sorted(file.name for file in folder.iterdir()) == [
        "actors.pt",
        "counters.pt",
        "env.pt",
        "manifest.json",
        "optimisers.pt",
        "rng.pt",
    ]
    steps, loaded = store.load()
    assert steps == 1000
    state["actors"]["agent_0"] = dict(state["actors"]["agent_0"])
    assert_equal(state, loaded)


@pytest.mark.parametrize(
    "array",
    [
        np.array(2.5),
        np.empty((0, 3), np.int8),
        np.arange(12, dtype=">i4").reshape(3, 4).T,
        np.broadcast_to(np.float32(1), (3, 4)),
        np.array([np.nan, -0.0, np.inf], np.float16),
        np.array([True, False]),
        np.array([2**63], np.uint64),
    ],
    ids=str,
)
def test_arrays_of_every_kind(tmp_path: Path, array: np.ndarray[Any, Any]) -> None:
    store = CheckpointStore(tmp_path, 1)
    store.save(0, {"a": [array, array.dtype.type(1)]})
    loaded = store.load()[1]["a"]
    assert loaded[0].dtype == array.dtype
    assert loaded[0].shape == array.shape
    assert loaded[0].tobytes() == array.tobytes()
    assert loaded[1] == 1
    assert not isinstance(loaded[1], np.generic)
    loaded[0][...] = 0  # what was loaded can be written to


def test_a_view_is_saved_without_what_lies_around_it(tmp_path: Path) -> None:
    replay = torch.zeros(1_000_000)
    folder = CheckpointStore(tmp_path, 1).save(0, {"a": replay[10:20]})
    assert (folder / "a.pt").stat().st_size < 10_000


def test_res_08_checkpoints_hold_only_tensors_and_plain_types(tmp_path: Path) -> None:
    state = trained() | {"ordered": OrderedDict(x=np.float64(1.5), y=torch.nn.Parameter(torch.ones(2)))}
    folder = CheckpointStore(tmp_path, 1).save(5, state)
    classes = set()
    for file in folder.glob("*.pt"):
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                if name.endswith("data.pkl"):
                    operations = list(pickletools.genops(archive.read(name)))
                    classes |= {argument for operation, argument, _ in operations if operation.name == "GLOBAL"}
                    assert not {operation.name for operation, _, _ in operations} & {"STACK_GLOBAL", "INST", "OBJ"}
    # torch writes the (empty) table of a tensor's backward hooks as an OrderedDict
    assert "torch._utils _rebuild_tensor_v2" in classes
    assert all(name.startswith("torch ") or name in EXPECTED_CLASSES for name in classes), classes


EXPECTED_CLASSES = {"torch._utils _rebuild_tensor_v2", "collections OrderedDict"}


class Level(IntEnum):
    HIGH = 1


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"deep": [0, {1: object()}]}, r"state\['a'\]\['deep'\]\[1\]\[1\] is a builtins\.object"),
        ([Path("x")], r"state\['a'\]\[0\] is a pathlib"),
        (Level.HIGH, r"state\['a'\] is a .*Level"),
        (namedtuple("Pair", "x")(1), r"state\['a'\] is a .*Pair"),
        ({(1, 2): 3}, r"state\['a'\] has the key \(1, 2\)"),
        ({NUMPY_MARK: 1}, r"reserved"),
        ([np.array([object()])], r"state\['a'\]\[0\] is a numpy array of object"),
        (torch.eye(2).to_sparse(), r"state\['a'\] is a Tensor of layout torch\.sparse_coo"),
        (lambda: 0, r"state\['a'\] is a builtins\.function"),
    ],
)
def test_what_would_not_load_is_refused_before_anything_is_written(tmp_path: Path, value: Any, named: str) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", 1)
    with pytest.raises(TypeError, match=named):
        store.save(1, {"fine": 1, "a": value})
    with pytest.raises(TypeError, match=r"state key '../a' cannot name a file"):
        store.save(1, {"../a": 1})
    with pytest.raises(ValueError, match="score=nan"):
        store.save(1, {"a": 1}, float("nan"))
    assert not store.folder.exists()


def test_res_11_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    store = filled(tmp_path, [5.0, 4.0, None, 3.0, 2.0], keep_last=2)
    assert store.steps() == [100, 400, 500]
    assert (store.latest, store.best, store.best_score) == (500, 100, 5.0)
    assert store.load("latest")[0] == 500
    assert store.load("best")[1]["b"] == {"y": 1}
    store.save(600, {"b": {"y": 6}}, 5.0)
    assert store.best == 100  # equal is not better
    store.save(700, {"b": {"y": 7}}, 5.5)
    assert store.best == 700
    assert store.steps() == [600, 700]
    assert (tmp_path / "latest").read_text() == (tmp_path / "best").read_text() == "700\n"


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    store = filled(tmp_path, [1.0, 2.0])
    store.save(200, {"b": {"y": 22}}, 0.5)
    assert store.load(200)[1] == {"b": {"y": 22}}
    assert (store.steps(), store.best) == ([100, 200], 100)
    assert sorted(child.name for child in tmp_path.iterdir()) == ["100", "200", "best", "latest"]


def test_discard_after(tmp_path: Path) -> None:
    store = filled(tmp_path, [1.0, 3.0, 2.0, 4.0])
    assert store.discard_after(300) == [400]
    assert (store.steps(), store.latest, store.best) == ([100, 200, 300], 300, 200)
    assert store.discard_after(300) == []
    store.discard_after(0)
    assert (store.steps(), store.latest, store.best) == ([], None, None)


@pytest.mark.parametrize("kind", ["byte", "truncated", "missing file", "missing manifest", "broken manifest", "gone"])
def test_a_damaged_latest_falls_back_to_the_whole_one_before_and_says_so(tmp_path: Path, kind: str) -> None:
    store = filled(tmp_path, [1.0, 2.0, 3.0])
    folder = tmp_path / "300"
    match kind:
        case "byte":
            damage(folder / "a.pt")
        case "truncated":
            os.truncate(folder / "a.pt", 100)
        case "missing file":
            (folder / "a.pt").unlink()
        case "missing manifest":
            (folder / "manifest.json").unlink()
        case "broken manifest":
            (folder / "manifest.json").write_text('{"schema": 1')
        case "gone":
            folder.rename(tmp_path / "elsewhere")
    with pytest.warns(CheckpointWarning, match="checkpoint 300 is damaged .*: using 200 instead"):
        steps, state = store.load()
    assert steps == 200
    assert state["b"] == {"y": 2}


def test_a_damaged_checkpoint_asked_for_by_name_is_an_error(tmp_path: Path) -> None:
    store = filled(tmp_path, [3.0, 2.0, 1.0])
    damage(tmp_path / "100" / "a.pt")
    for which in ("best", 100):
        with pytest.raises(CheckpointError, match=r"checkpoint 100 is damaged \(a\.pt .*whole checkpoints: 200, 300"):
            store.load(which)  # type: ignore[arg-type]
    for step in (200, 300):
        damage(tmp_path / str(step) / "b.pt")
    with pytest.raises(CheckpointError, match=r"300 is damaged .*200 is damaged .*100 is damaged .*checkpoints: none"):
        store.load()


def test_only_the_keys_that_are_asked_for_are_read(tmp_path: Path) -> None:
    store = filled(tmp_path, [1.0])
    damage(tmp_path / "100" / "a.pt")
    assert store.load(keys=["b"]) == (100, {"b": {"y": 1}})
    with pytest.raises(CheckpointError, match="has no c; it has: a, b"):
        store.load(keys=["b", "c"])


def test_res_13_what_is_not_there_is_named(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", 1)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*checkpoints: looked there"):
        store.load()
    filled(store.folder, [None, None])
    with pytest.raises(CheckpointError, match="has a score yet; there are: 100, 200"):
        store.load("best")
    with pytest.raises(CheckpointError, match=r"no checkpoint 150 in .*; there are: 100, 200"):
        store.load(150)
    with pytest.raises(CheckpointError, match="'newest' is none of: latest, best"):
        store.load("newest")  # type: ignore[arg-type]
    (store.folder / "latest").unlink()
    assert store.load()[0] == 200


def test_a_checkpoint_of_a_newer_layout_is_refused(tmp_path: Path) -> None:
    store = filled(tmp_path, [1.0, 2.0])
    manifest = tmp_path / "200" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"schema": 2}))
    with pytest.raises(CheckpointError, match="has layout 2, this version of harl reads 1"):
        store.load()


class Attack:
    """Runs a command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def plant(store: CheckpointStore, step: int, content: Any) -> None:
    """Put something in a checkpoint's file, with a manifest that agrees."""
    file = store.folder / str(step) / "a.pt"
    torch.save(content, file)
    manifest_file = file.with_name("manifest.json")
    manifest = json.loads(manifest_file.read_text())
    data = file.read_bytes()
    manifest["files"]["a"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest_file.write_text(json.dumps(manifest))


@pytest.mark.parametrize("which", ["latest", "best", 200])
def test_sec_01_code_in_a_checkpoint_is_refused_and_not_run(tmp_path: Path, which: Any) -> None:
    store = filled(tmp_path / "checkpoints", [1.0, 2.0])
    marker = tmp_path / "pwned"
    plant(store, 200, {"x": Attack(marker)})
    with pytest.raises(CheckpointError, match=r"was refused .*could run code") as error:
        store.load(which)
    assert "weights_only" not in str(error.value)
    assert not marker.exists()
    torch.load(tmp_path / "checkpoints/200/a.pt", weights_only=False)  # the attack itself works
    assert marker.exists()


def test_sec_01_bytes_are_not_taken_for_addresses(tmp_path: Path) -> None:
    store = filled(tmp_path, [1.0])
    plant(store, 100, {NUMPY_MARK: torch.ones(8, dtype=torch.uint8), "dtype": "|O", "shape": (1,)})
    with pytest.raises(CheckpointError, match=r"was refused"):
        store.load()


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="needs a limit on the size of files")
@pytest.mark.parametrize("limit", [0, 100, 5_000, 60_000])
def test_a_disk_that_is_full_leaves_the_checkpoint_before_whole(tmp_path: Path, limit: int) -> None:
    import resource

    store = filled(tmp_path, [1.0])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot save .* step 200 .*File too large; whole checkpoints: 100$"):
            store.save(200, {"b": 1, "a": torch.zeros(100_000)}, 2.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sorted(child.name for child in tmp_path.iterdir()) == ["100", "best", "latest"]
    assert store.load()[0] == store.load("best")[0] == 100
    store.save(200, {"b": 1})
    assert store.latest == 200


def test_no_space_left_is_said_in_plain_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path, [1.0])

    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint_files, "to_disk", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        store.save(200, {"a": 1})
    assert store.steps() == [100]


def test_a_process_killed_while_saving_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    store = filled(tmp_path, [1.0])
    torch.save(1, tmp_path / "half.pt")
    (tmp_path / ".200.tmp").mkdir()
    (tmp_path / "half.pt").rename(tmp_path / ".200.tmp" / "a.pt")
    assert store.load()[0] == 100
    store.save(300, {"b": 1})
    assert sorted(child.name for child in tmp_path.iterdir()) == ["100", "300", "best", "latest"]


def test_a_process_killed_while_replacing_a_step_leaves_the_old_one(tmp_path: Path) -> None:
    store = filled(tmp_path, [1.0, 2.0])
    (tmp_path / "200").rename(tmp_path / ".200.replaced")
    assert store.load()[0] == 200
    store.save(300, {"b": 1}, 0.0)
    assert store.steps() == [100, 200, 300]
    assert store.load("best")[1]["b"] == {"y": 2}
    store.save(200, {"b": 2}, 2.0)
    assert store.load(200)[1] == {"b": 2}
    assert not (tmp_path / ".200.replaced").exists()


def test_ctrl_c_while_saving_leaves_nothing_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path, [1.0])

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint_files, "to_disk", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.save(200, {"a": 1})
    assert sorted(child.name for child in tmp_path.iterdir()) == ["100", "best", "latest"]


def test_at_least_one_checkpoint_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep_last=0"):
        CheckpointStore(tmp_path, 0)
