"""Mapping files: what they may say, what they make, and what the Gallery's become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import harl
from harl.config import ConfigError
from harl.envs.api import EnvError
from harl.envs.mpe import MPEVectorEnv
from harl.hitl import sharpie
from harl.hitl.sharpie_site.environments import SingleEnv
from harl.hitl.sharpie_site.gallery import import_gallery
from harl.hitl.sharpie_site.mapping import AgentEntry, EnvironmentEntry, parse_mapping, read_mapping
from harl.hitl.sharpie_site.overrides import get_policy_actions
from harl.hitl.sharpie_site.people import Waits
from harl.hitl.sharpie_site.serving import Makers, NotServed, Serving, made
from harl.hitl.sharpie_site.settings import read_roles
from tests.hitl.sharpie_fakes import agent

WORLDS = "tests.hitl.sharpie_worlds"
FIXTURES = Path(__file__).parent / "sharpie_mapping.yaml"
MAKERS = Makers(sharpie._load, sharpie._environment)


def parsed(experiment: Any) -> Any:
    return parse_mapping({"experiments": {"x": experiment}}, "file.yaml", Path("/base")).experiments["x"]


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    file = tmp_path / "mapping.yaml"
    file.write_text(
        """
experiment: {}
experiments:
  a:
    enviroment: {name: mpe}
  b:
    environment: {name: mpe, run: outputs/x}
    agents:
      agent_0: {checkpoint: x, object: "m:o", interval: -1}
      agent_1: {object: not a path, deterministic: perhaps, inputs_type: thoughts}
  c:
    agents: [agent_0]
"""
    )
    with pytest.raises(ConfigError) as raised:
        read_mapping(file)
    errors = "\n".join(raised.value.errors)
    for part in (
        "experiment is unknown; did you mean experiments?",
        "experiments.a.enviroment is unknown; did you mean environment?",
        "experiments.b.agents.agent_1.object='not a path': must be an import path, package.module:attribute, or null",
        "experiments.b.agents.agent_1.deterministic='perhaps': must be true or false",
        "experiments.b.agents.agent_1.inputs_type='thoughts': must be one of actions, reward, other",
        "experiments.c.agents must hold names and their entries",
    ):
        assert f"{file}: {part}" in errors


@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        ({"environment": {"name": "mpe", "run": "x"}}, "must have one of name, run, entry_point; it has"),
        ({"environment": {}}, "it has none"),
        ({"environment": {"name": "mpe"}, "learner": ["algo=happo"]}, "a learner brings its own"),
        ({"environment": {"name": "mpe"}, "agents": {"a": {"checkpoint": "x", "object": "m:o"}}}, "one of them"),
        ({"environment": {"name": "mpe"}, "agents": {"a": {"object": "m:o", "interval": -1}}}, "interval=-1"),
        (7, "must hold keys and values"),
    ],
)
def test_contradictions_are_refused(experiment: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parsed(experiment)


@pytest.mark.parametrize("text", ["a: [", "[1, 2]", "\0"])
def test_files_that_are_no_mapping(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mapping.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"mapping\.yaml"):
        read_mapping(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_mapping(tmp_path / "nowhere.yaml")


def test_waits_of_an_experiment_count_before_those_of_all() -> None:
    common = Waits(timeout_s=5.0, absent="default")
    assert parsed({"environment": {"name": "mpe"}, "timeout_s": 2}).waits(common) == Waits(
        timeout_s=2.0, absent="default"
    )


def test_the_fixture_mapping_makes_everything() -> None:
    Serving(read_mapping(FIXTURES)).check()


def test_what_cannot_be_made_is_known_before_people_come() -> None:
    broken = {
        "a": {"environment": {"entry_point": f"{WORLDS}:Wolk"}},
        "b": {"environment": {"entry_point": f"{WORLDS}:Walk", "kwargs": {"lenght": 3}}},
        "c": {"environment": {"entry_point": f"{WORLDS}:Walk"}, "agents": {"x": {"object": f"{WORLDS}:not_a_policy"}}},
        "d": {"environment": {"name": "mpee"}},
        "e": {"agents": {"x": {"checkpoint": "no/such/run"}}},
        "g": {"agents": {"x": {}}},
        "f": {"environment": {"entry_point": "no_such_module:x", "from_site": ["size"]}},
    }
    serving = Serving(parse_mapping({"experiments": broken}, "f", Path()), MAKERS)
    with pytest.raises(ConfigError) as raised:
        serving.check()
    text = "\n".join(raised.value.errors)
    for part in (
        "experiments.a: entry point", "did you mean 'Walk'", "did you mean 'length'", "without predict(observation)",
        "experiments.d:", "experiments.e:", "experiments.f:",
        "experiments.g: there is neither an environment, nor a learner, nor an agent with a checkpoint",
    ):  # fmt: skip
        assert part in text


def test_arguments_come_from_the_site_where_the_mapping_lets_them() -> None:
    mapped = parsed(
        {"environment": {"entry_point": f"{WORLDS}:Walk", "kwargs": {"length": 4}, "from_site": ["length"]}}
    )
    metadata = {"length": 9, "leaves": 1}
    env = Serving().environment(mapped, metadata)
    assert (env.length, env.leaves, env.render_mode) == (9, 99, "rgb_array")
    assert Serving().environment(mapped, {}).length == 4


def test_an_object_is_kept_for_all_rooms_or_made_for_each() -> None:
    agents = {"kept": {"object": f"{WORLDS}:Steady"}, "fresh": {"object": f"{WORLDS}:Steady", "per_room": True},
              "other": {"object": f"{WORLDS}:Steady"}}  # fmt: skip
    mapped = parsed({"environment": {"entry_point": f"{WORLDS}:Walk"}, "agents": agents})
    serving = Serving()
    first, second = serving.policies("x", mapped), serving.policies("x", mapped)
    assert first["kept"] is second["kept"]
    assert first["kept"].target is not first["other"].target
    assert first["fresh"] is not second["fresh"]
    assert serving.policies("y", mapped)["kept"] is not first["kept"]


def test_objects_that_are_made_already_are_taken_from_fresh_copies_of_their_module() -> None:
    one, two = made(f"{WORLDS}:made_already", {}), made(f"{WORLDS}:made_already", {})
    assert type(one).__name__ == "Steady"
    assert one is not two
    with pytest.raises(EnvError, match="takes no arguments: action"):
        made(f"{WORLDS}:made_already", {"action": 1})


def test_without_the_command_there_are_no_checkpoints() -> None:
    with pytest.raises(NotServed, match=r"python -m harl\.hitl\.sharpie"):
        Serving().policies("x", parsed({"agents": {"a": {"checkpoint": "outputs/run"}}}))
    with pytest.raises(NotServed, match=r"python -m harl\.hitl\.sharpie"):
        Serving().environment(parsed({"environment": {"name": "mpe"}}), {})


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A team that was trained for one iteration."""
    folder = tmp_path_factory.mktemp("runs")
    runner = harl.make_runner(
        ["algo=happo", "env=mpe", f"output_dir={folder}", "train.num_env_steps=8", "train.n_rollout_threads=2",
         "train.episode_length=4", "eval.use_eval=false", "logger.tensorboard=false", "logger.progress=off",
         "env.kwargs.max_cycles=3"]
    )  # fmt: skip
    runner.run()
    return runner.folder.path


def test_a_checkpoint_acts_in_the_environment_of_its_run(run_folder: Path) -> None:
    agents = {name: {"checkpoint": str(run_folder)} for name in ("agent_0", "agent_1", "agent_2")}
    serving = Serving(makers=MAKERS)
    mapped = parsed({"agents": agents})
    env, policies = serving.environment(mapped, {}), serving.policies("x", mapped)
    assert isinstance(env, SingleEnv)
    obs, _ = env.reset()
    assert {name: seen.shape for name, seen in obs.items()} == dict.fromkeys(agents, (18,))
    expected = harl.load(run_folder).act(obs)
    pictures, longer = [env.render()], MPEVectorEnv(1, "simple_spread")
    for step in range(1, 4):
        actions = {name: policy.predict(obs[name]) for name, policy in policies.items()}
        if step == 1:
            assert actions == expected
        longer.set_state(env.envs.get_state())
        obs, rewards, terminated, truncated, _ = env.step(actions)
        pictures.append(env.render())
        longer.step(np.array([[[actions[name]] for name in agents]], np.float32))
        np.testing.assert_array_equal(pictures[-1], longer.render())
        assert list(rewards) == list(agents)
        assert all(truncated.values()) is (step == 3)
        assert not any(terminated.values())
    assert not np.array_equal(pictures[1], pictures[2])
    assert not np.array_equal(pictures[2], pictures[3])
    env.close()


@pytest.mark.parametrize("able", [False, True])
def test_where_the_last_state_cannot_be_drawn_the_one_before_it_is_shown(able: bool) -> None:
    def render_end(env: int) -> Any:
        raise RuntimeError("out of order")

    envs = MPEVectorEnv(1, max_cycles=1)
    envs.watch_ends, envs.render_end = lambda envs: able, render_end if able else lambda env: None  # type: ignore
    env = SingleEnv(envs)
    env.reset()
    first = env.render()
    env.step(dict.fromkeys(envs.layout.agents, 1))
    assert env.render() is first


def test_what_people_say_reaches_a_team_as_the_hint() -> None:
    said: list[Any] = []

    class Team:
        layout = MPEVectorEnv(1).layout

        def act(self, obs: Any, deterministic: bool, hint: Any) -> Any:
            said.append((*obs, deterministic, hint))
            return {"agent_1": 3}

    serving = Serving(makers=Makers(lambda run, which: Team(), lambda entry: MPEVectorEnv(1)))
    team = serving.policies("x", parsed({"agents": {"partner": {"checkpoint": "run", "plays": "agent_1"}}}))
    settings = {"partner": agent(inputs_type="other", textual_inputs=True)}
    assert get_policy_actions({"partner": np.zeros(18)}, team, {"partner": "go left"}, settings) == {"partner": 3}
    get_policy_actions({"partner": np.zeros(18)}, team, {}, settings)
    assert said == [("agent_1", True, "go left"), ("agent_1", True, None)]


def test_an_unknown_agent_of_a_run_is_named_with_the_known_ones(run_folder: Path) -> None:
    with pytest.raises(NotServed, match="no agent 'pilot' for the role 'pilot'; it has agent_0, agent_1, agent_2"):
        Serving(makers=MAKERS).policies("x", parsed({"agents": {"pilot": {"checkpoint": str(run_folder)}}}))


def test_environments_of_harl_by_name() -> None:
    entry = EnvironmentEntry(name="mpe", settings={"scenario": "simple_reference", "kwargs": {"max_cycles": 7}})
    envs = sharpie._environment(entry)
    assert (envs.scenario, envs.episode_limit) == ("simple_reference", 7)
    with pytest.raises(ConfigError, match="simple_refrence"):
        sharpie._environment(EnvironmentEntry(name="mpe", settings={"scenario": "simple_refrence"}))


GALLERY = """
use_case: spread
dependencies: [mpe2]
environment:
  name: Simple spread
  filepaths: {environment: spread/environment.py}
  metadata: {max_cycles: 50}
policy:
  name: Spread agent
  filepaths: {policy: spread/policy.py, helper: spread/agent.py}
  checkpoint_interval: 0
agents:
  - {role: agent_0, name: One, policy: Spread agent, participant: true,
     keyboard_inputs: {ArrowLeft: 1, default: 0}, inputs_type: actions, multiple_keyboard_inputs: true}
  - {role: agent_1, name: Two, policy: null, participant: false, keyboard_inputs: {default: 3}, inputs_type: other}
experiment: {link: spread, name: Spread, number_of_episodes: 2, target_fps: 24.0, wait_for_inputs: false}
"""


def test_a_gallery_configuration_becomes_a_mapping(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(GALLERY)
    (tmp_path / "mapping.yaml").write_text(import_gallery(file))
    mapping = read_mapping(tmp_path / "mapping.yaml")
    entry = mapping.experiments["spread"]
    assert mapping.import_from == (str(tmp_path.resolve()),)
    assert entry.environment == EnvironmentEntry(entry_point="environment:environment", kwargs={"max_cycles": 50})
    assert entry.agents == {
        "agent_0": AgentEntry(object="policy:policy", participant=True, several_keys=True),
        "agent_1": AgentEntry(participant=False, inputs_type="other", default=3),
    }
    assert (entry.target_fps, entry.wait_for_inputs) == (24.0, False)


def test_what_a_gallery_configuration_lacks_is_said_at_once(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "environment: {filepaths: {environment: 'my env.py'}}\n"
        "agents: [{role: a, policy: Who}, {name: x}]\nexperiment: {}"
    )
    with pytest.raises(ConfigError) as raised:
        import_gallery(file)
    text = "\n".join(raised.value.errors)
    for part in ("experiment.link is missing", "'my env.py' is no Python file", "agents[0].policy='Who' is none of",
                 "agents[1].role is missing"):  # fmt: skip
        assert part in text
    with pytest.raises(ConfigError, match="cannot be read"):
        import_gallery(tmp_path / "nowhere.yaml")


def test_roles_of_the_site() -> None:
    role = read_roles({"a": agent(multiple_keyboard_inputs=True)})["a"]
    assert role.is_default([0])
    assert role.is_default([])
    assert role.is_default(None)
    assert not role.is_default([0, 1])
    assert not role.is_default([False])
