"""What is kept of an episode on this side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harl.hitl.sharpie_site.people import PersonLeft
from tests.hitl.sharpie_fakes import agent, batch, left
from tests.hitl.test_sharpie_episode import STEADY, WORLDS, Stage, entry


def test_the_journal_has_every_step_and_why_it_ended(tmp_path: Path) -> None:
    settings = {"agent_0": agent(inputs_type="reward"), "agent_1": agent(participant=False)}
    mapped = entry(agents={"agent_0": STEADY, "agent_1": STEADY})
    stage = Stage(mapped, settings, [batch(agent_0=0), batch(agent_0=1), left()], record=tmp_path)
    with pytest.raises(PersonLeft):
        stage.play()
    (file,) = (tmp_path / "x").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["start", "reset", "step", "reward", "step", "end"]
    assert lines[2]["source"] == {"agent_0": "policy", "agent_1": "policy"}
    assert lines[2]["observations"] == {"agent_0": [1.0], "agent_1": [1.0]}
    assert lines[3]["rewards"] == {"agent_0": 1, "agent_1": 1.0}
    assert lines[3]["step"] == 1
    assert lines[-1]["why"] == "PersonLeft: A user has disconnected"


class Costly:
    """An observation that counts how often it is made into a list."""

    made = 0

    def tolist(self) -> list[float]:
        Costly.made += 1
        return [1.0, 2.0]


def test_what_the_site_and_the_journal_are_told_is_written_out_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{WORLDS}.Walk._seen", lambda walk: {agent: Costly() for agent in walk.agents})
    monkeypatch.setattr(Costly, "made", 0)
    stage = Stage(
        entry(agents={"agent_0": {}, "agent_1": STEADY}),
        {"agent_0": agent(), "agent_1": agent(participant=False)},
        [batch(agent_0=1)] * 4,
        record=tmp_path,
    )
    assert stage.play() == 3
    lines = [json.loads(line) for file in tmp_path.rglob("*.jsonl") for line in file.read_text().splitlines()]
    told = [line for line in lines if line["kind"] == "step"]
    for frame, line in zip(stage.socket.frames[1:], told, strict=True):
        assert {name: line[name] for name in ("observations", "actions", "rewards")} == {
            name: frame[name] for name in ("observations", "actions", "rewards")
        }
        assert line["observations"] == {"agent_0": [1.0, 2.0], "agent_1": [1.0, 2.0]}
    assert Costly.made == 2 * (1 + 1 + 3)  # two agents: the first frame, the line of the reset, and three steps
