"""The YAML files: commented, in agreement with the schema, and with the published default values."""

import ast
import dataclasses
import inspect
import itertools
import re
import typing

import pytest
from omegaconf import OmegaConf

from harl.config import (
    ALGO_SCHEMAS,
    ENV_SCHEMAS,
    HITL_SCHEMAS,
    algo_schema,
    build_config,
    compose,
    config_dir,
    env_schema,
    hitl_schema,
    off_policy_schema,
    run_schema,
    to_dict,
    to_render_config,
)
from harl.config.run_schema import RenderConfig, RunArgs
from harl.config.schema import config_leaves, render_leaves

FILES = sorted(config_dir().rglob("*.yaml"), key=str)
EXPERIMENTS = sorted(path.stem for path in (config_dir() / "experiment").glob("*.yaml"))
TASKS = ("spread", "reference", "speaker_listener")


def dotted(data, prefix=""):
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(config_dir())))
def test_every_key_has_a_comment_above(path):
    previous = ""
    uncommented = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        is_key = re.match(r"\s*[A-Za-z_]\w*:( |$)", line)
        if is_key and not re.match(r"\s*# \S", previous):
            uncommented.append(f"{number}: {line}")
        previous = line
    assert not uncommented


@pytest.mark.parametrize("algo", sorted(ALGO_SCHEMAS))
@pytest.mark.parametrize("env", sorted(ENV_SCHEMAS))
def test_yaml_and_schema_have_the_same_keys(algo, env):
    data = _container(compose([f"algo={algo}", f"env={env}"]))
    assert set(dotted(data)) == set(config_leaves(algo, env, "off"))


@pytest.mark.parametrize("hitl", sorted(HITL_SCHEMAS))
def test_yaml_and_schema_have_the_same_keys_with_people(hitl):
    data = _container(compose([f"hitl={hitl}"]))
    assert set(dotted(data)) == set(config_leaves("happo", "mpe", hitl))


@pytest.mark.parametrize("hitl", sorted(HITL_SCHEMAS))
def test_render_yaml_and_schema_have_the_same_keys(hitl):
    data = _container(compose([f"hitl={hitl}"], config_name="render"))
    assert set(dotted(data)) == set(render_leaves(hitl))


def test_the_schema_has_no_default_values():
    schemas = {RunArgs, RenderConfig, *ENV_SCHEMAS.values(), *HITL_SCHEMAS.values()}
    for entry in ALGO_SCHEMAS.values():
        schemas |= set(entry)
    while schemas:
        schema = schemas.pop()
        for field in dataclasses.fields(schema):
            assert field.default is dataclasses.MISSING, (schema, field.name)
            assert field.default_factory is dataclasses.MISSING, (schema, field.name)
        nested = typing.get_type_hints(schema).values()
        schemas |= {hint for hint in nested if dataclasses.is_dataclass(hint)}


@pytest.mark.parametrize(
    "module", [run_schema, algo_schema, off_policy_schema, env_schema, hitl_schema], ids=lambda module: module.__name__
)
def test_every_schema_field_has_a_line_of_documentation(module):
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ClassDef) and node.name != "AlgoSchema":
            for statement, following in itertools.pairwise([*node.body, None]):
                if isinstance(statement, ast.AnnAssign):
                    assert isinstance(following, ast.Expr), f"{node.name}.{ast.unparse(statement.target)}"
                    assert isinstance(following.value, ast.Constant)


DEFAULTS = {
    "seed": 1,
    "device.deterministic": True,
    "train.n_rollout_threads": 20,
    "train.num_env_steps": 10_000_000,
    "train.episode_length": 200,
    "train.log_interval": 5 * 20 * 200,
    "train.use_linear_lr_decay": False,
    "eval.interval": 25 * 20 * 200,
    "eval.use_eval": True,
    "eval.n_eval_rollout_threads": 10,
    "eval.eval_episodes": 20,
    "model.hidden_sizes": [128, 128],
    "model.activation_func": "relu",
    "model.use_feature_normalization": True,
    "model.initialization_method": "orthogonal_",
    "model.gain": 0.01,
    "model.std_x_coef": 1.0,
    "model.std_y_coef": 0.5,
    "model.use_recurrent_policy": False,
    "model.use_naive_recurrent_policy": False,
    "model.recurrent_n": 1,
    "model.data_chunk_length": 10,
    "model.cnn_kernel_size": 3,
    "model.cnn_stride": 1,
    "algo.critic_lr": 0.0005,
    "algo.opti_eps": 1e-5,
    "algo.weight_decay": 0.0,
    "algo.critic_epoch": 5,
    "algo.use_clipped_value_loss": True,
    "algo.clip_param": 0.2,
    "algo.critic_num_mini_batch": 1,
    "algo.value_loss_coef": 1.0,
    "algo.use_max_grad_norm": True,
    "algo.max_grad_norm": 10.0,
    "algo.use_gae": True,
    "algo.gamma": 0.99,
    "algo.gae_lambda": 0.95,
    "algo.use_huber_loss": True,
    "algo.use_policy_active_masks": True,
    "algo.huber_delta": 10.0,
    "algo.action_aggregation": "prod",
    "algo.fixed_order": False,
    "algo.use_valuenorm": True,
}
"""Of the original implementation, in our keys and units; MAPPO's fixed_order has no meaning there and is false here."""


ACTORS = {
    "algo.lr": 0.0005,
    "algo.actor_num_mini_batch": 1,
    "algo.entropy_coef": 0.01,
}
OF_ONE = {
    "happo": {**ACTORS, "algo.ppo_epoch": 5, "algo.share_param": False},
    "mappo": {**ACTORS, "algo.ppo_epoch": 5, "algo.share_param": True},
    "haa2c": {**ACTORS, "algo.a2c_epoch": 5, "algo.share_param": False},
    "hatrpo": {
        "algo.kl_threshold": 0.01,
        "algo.ls_step": 10,
        "algo.accept_ratio": 0.5,
        "algo.backtrack_coeff": 0.8,
        "algo.share_param": False,
    },
}
"""What the algorithms do not have in common. The original's learning rate of HATRPO has no effect and is not there."""


@pytest.mark.parametrize("algo", OF_ONE)
def test_defaults_are_those_of_the_original(algo):
    data = to_dict(build_config([f"algo={algo}"]))
    for key, expected in (DEFAULTS | OF_ONE[algo] | {"algo.name": algo}).items():
        value = data
        for part in key.split("."):
            value = value[part]
        assert value == expected, key
        assert type(value) is type(expected), key


def test_hatrpo_has_half_the_trust_region_on_mpe_and_nothing_else_differs():
    for name in EXPERIMENTS:
        if name.endswith("hatrpo"):
            plain = build_config(["algo=hatrpo"]).algo
            made = build_config([f"experiment={name}"]).algo
            assert made == dataclasses.replace(plain, algo=dataclasses.replace(plain.algo, kl_threshold=0.005))


def test_defaults_that_are_our_own():
    data = to_dict(build_config())
    assert data["algo"]["time_limit"] == "bootstrap"
    assert data["env"] == {
        "name": "mpe",
        "scenario": "simple_spread",
        "continuous_actions": False,
        "physics": "mpe2",
        "state_type": "EP",
        "reward": "shared_sum",
        "kwargs": {"max_cycles": 25, "local_ratio": None, "N": None},
    }
    assert data["hitl"] == {"name": "off"}
    assert (data["exp_name"], data["output_dir"], data["resume"], data["init_from"]) == (
        "default",
        "outputs",
        None,
        None,
    )


def test_there_is_an_experiment_for_every_mpe_task():
    expected = {
        f"mpe_{task}_{kind}_{algo}" for task in TASKS for kind in ("discrete", "continuous") for algo in ALGO_SCHEMAS
    }
    expected -= {f"mpe_{task}_continuous_had3qn" for task in TASKS}
    assert set(EXPERIMENTS) == expected | {"mpe_spread_happo"}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes_and_validates(name):
    config = build_config([f"+experiment={name}"])
    assert config.algo.algo.name == name.rpartition("_")[2]
    assert config.env.continuous_actions is ("continuous" in name)
    assert config.env.scenario.removeprefix("simple_") in name
    shared = config.algo.algo.name == "mappo" and config.env.scenario != "simple_speaker_listener"
    assert config.algo.algo.share_param is shared


def test_experiment_is_stronger_than_defaults_and_weaker_than_the_command_line():
    config = build_config(["experiment=mpe_reference_continuous_mappo", "env.scenario=simple_spread", "algo=happo"])
    assert config.run.exp_name == "continuous"
    assert config.env.scenario == "simple_spread"
    assert config.algo.algo.name == "happo"


def test_debug_run_is_small():
    config = build_config(["debug=default", "algo=mappo", "experiment=mpe_spread_discrete_mappo"])
    assert config.algo.train.num_env_steps <= 1000
    assert config.run.exp_name == "debug"


def test_render_configuration():
    config = to_render_config(compose(["run=outputs/x", "render.checkpoint=100000"], config_name="render"))
    assert config.run == "outputs/x"
    assert config.render.checkpoint == "100000"
    assert (config.render.episodes, config.render.video, config.render.deterministic) == (10, True, True)
    assert (config.render.fps, config.render.seed) == (10, None)


def _container(composed):
    return OmegaConf.to_container(composed, resolve=False)
