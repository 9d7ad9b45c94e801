"""Values: types, ranges, combinations, saving; cases CFG-05, -06, -09, -11, -12, SED-08."""

import json
import subprocess
import sys

import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf

from harl.config import (
    ALGO_SCHEMAS,
    ConfigError,
    build_config,
    compose,
    from_dict,
    load_yaml,
    portable_name,
    save_yaml,
    to_config,
    to_dict,
    to_render_config,
)

DEFAULTS = to_dict(build_config())
MAPPO = to_dict(build_config(["algo=mappo"]))
HATRPO = to_dict(build_config(["algo=hatrpo"]))
PETTINGZOO = to_dict(
    build_config(["env=pettingzoo", "env.entry_point=my_pkg.envs:make", "env.reward=individual", "env.kwargs.size=5"])
)


def changed(base=DEFAULTS, **values):
    """A copy of a plain configuration; `algo__lr=1` sets algo.lr."""
    data = json.loads(json.dumps(base, allow_nan=True))
    for key, value in values.items():
        *sections, last = key.split("__")
        target = data
        for section in sections:
            target = target[section]
        target[last] = value
    return data


def errors_of(data):
    with pytest.raises(ConfigError) as caught:
        from_dict(data)
    return caught.value.errors


@pytest.mark.parametrize(
    ("key", "typed", "expected"),
    [
        ("train__num_env_steps", 1e6, 1_000_000),
        ("train__num_env_steps", 2e7, 20_000_000),
        ("train__num_env_steps", "1e6", 1_000_000),
        ("train__num_env_steps", "300", 300),
        ("algo__lr", 1e-5, 1e-5),
        ("algo__lr", "1e-5", 1e-5),
        ("algo__gamma", 1, 1.0),
        ("algo__use_gae", "false", False),
        ("algo__use_gae", "on", True),
        ("device__update_threads", None, None),
        ("device__name", "cuda:1", "cuda:1"),
    ],
)
def test_G_11_and_D_42_values_are_converted_by_the_type_of_the_key(key, typed, expected):
    data = to_dict(from_dict(changed(**{key: typed})))
    section, _, name = key.partition("__")
    assert data[section][name] == expected
    assert type(data[section][name]) is type(expected)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("train__num_env_steps", 1.5, "a whole number from 1 to 1000000000000000"),
        ("train__num_env_steps", float("inf"), "a whole number"),
        ("train__num_env_steps", True, "a whole number"),
        ("train__episode_length", None, "a whole number"),
        ("train__episode_length", "ten", "a whole number"),
        ("algo__lr", "fast", "a number from 0 to 1"),
        ("algo__lr", float("nan"), "a number from 0 to 1"),
        ("algo__lr", False, "a number from 0 to 1"),
        ("algo__use_gae", 1, "true or false"),
        ("algo__time_limit", "bootstap", "did you mean bootstrap?"),
        ("model__hidden_sizes", 64, "a list, not empty"),
        ("model__hidden_sizes", [], "a list, not empty"),
        ("model__hidden_sizes", [64, 0], "each element a whole number from 1 to 65536"),
        ("model__hidden_sizes", [[64]], "each element a whole number"),
        ("device__name", "gpu", "one of auto, cpu, cuda, cuda:<index>"),
        ("env__physics", "mpe", "one of mpe2, classic"),
        ("env__kwargs", 3, "a section of keys and values"),
        ("logger__progress", False, "write it in quotes"),
        ("exp_name", "", "not empty"),
        ("exp_name", "two\nlines", "on one line"),
        ("exp_name", 100000.0, "put the text in quotes"),
    ],
)
def test_wrong_types_and_choices_are_refused_with_what_is_allowed(key, value, allowed):
    (error,) = errors_of(changed(**{key: value}))
    assert error.startswith(key.replace("__", ".") + "=")
    assert allowed in error


def test_cfg03_a_list_in_inner_quotes_is_refused_by_type():
    (error,) = errors_of(changed(model__hidden_sizes="[64, 64]"))
    assert "one text in quotes" in error
    assert "[64, 64]" in error


def test_cfg05_numbers_without_a_dot_in_a_users_yaml_are_numbers(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        '# @package _global_\nalgo:\n  lr: 1e-4\n  opti_eps: 1e-5\n  critic_lr: "1e-4"\ntrain:\n  num_env_steps: 2e7\n'
    )
    config = build_config(["experiment=mine"], extra_config_dirs=[tmp_path])
    assert (config.algo.algo.lr, config.algo.algo.opti_eps, config.algo.algo.critic_lr) == (1e-4, 1e-5, 1e-4)
    assert type(config.algo.algo.critic_lr) is float
    assert config.algo.train.num_env_steps == 20_000_000


@pytest.mark.parametrize("seed", [0, 2735729614, 4294967295, None])
def test_sed08_seeds_that_work(seed):
    config = from_dict(changed(seed=seed))
    assert config.run.seed == seed
    np.random.SeedSequence(config.run.seed)


@pytest.mark.parametrize("seed", [4294967296, -1, 1.5, "abc", True])
def test_sed08_seeds_that_are_refused(seed):
    (error,) = errors_of(changed(seed=seed))
    assert error.startswith("seed=")
    assert error.endswith("must be a whole number from 0 to 4294967295, or null")


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("algo__gamma", 1.5, "from 0 to 1"),
        ("algo__gae_lambda", -0.1, "from 0 to 1"),
        ("algo__lr", -1, "from 0 to 1"),
        ("algo__clip_param", 0, "above 0, at most 1"),
        ("algo__max_grad_norm", 0, "above 0"),
        ("algo__entropy_coef", -0.01, "from 0"),
        ("algo__ppo_epoch", 0, "from 1"),
        ("train__n_rollout_threads", 0, "from 1"),
        ("train__n_rollout_threads", 10**9, "from 1 to 1000000"),
        ("train__episode_length", 0, "from 1"),
        ("env__kwargs__max_cycles", 0, "from 1"),
        ("env__kwargs__local_ratio", 1.5, "from 0 to 1, or null"),
        ("env__kwargs__N", 0, "from 1"),
        ("device__torch_threads", 0, "from 1"),
        ("checkpoint__keep_last", 0, "from 1"),
        ("eval__interval", 0, "from 1"),
    ],
)
def test_cfg11_numbers_out_of_range_are_refused_with_the_range(key, value, allowed):
    (error,) = errors_of(changed(**{key: value}))
    assert key.replace("__", ".") in error
    assert allowed in error


@pytest.mark.parametrize("name", ["actor_num_mini_batch", "critic_num_mini_batch"])
def test_cfg11_more_minibatches_than_rows(name):
    sizes = {"train__episode_length": 10, "train__n_rollout_threads": 3}
    (error,) = errors_of(changed(**sizes, **{f"algo__{name}": 31}))
    assert f"algo.{name}=31" in error
    assert "at most 30" in error
    assert from_dict(changed(**sizes, **{f"algo__{name}": 30})).algo.train.episode_length == 10


def test_cfg11_all_errors_come_at_once():
    errors = errors_of(changed(algo__gamma=1.5, algo__lr=-1, seed=-1, eval__eval_episodes=25, env__physics="x"))
    assert [error.partition("=")[0] for error in errors] == [
        "seed",
        "algo.gamma",
        "algo.lr",
        "env.physics",
        "eval.eval_episodes",
    ]
    text = str(ConfigError(errors))
    assert text.startswith("5 configuration errors:\n  1. seed=-1")
    assert "Traceback" not in text


@pytest.mark.parametrize("valuenorm", [True, False])
@pytest.mark.parametrize("update", ["iteration", "minibatch"])
@pytest.mark.parametrize("share", [True, False])
def test_cfg12_flags_of_sharing_and_normalisation(valuenorm, update, share):
    flags = {"algo__use_valuenorm": valuenorm, "algo__valuenorm_update": update, "algo__share_param": share}
    assert from_dict(changed(MAPPO, **flags)).algo.algo.share_param is share
    if share:
        (error,) = errors_of(changed(**flags))
        assert "one after the other has no meaning for one network; use algo=mappo" in error
        assert errors_of(changed(HATRPO, **flags)) == [error.replace("algo=happo", "algo=hatrpo")]
    else:
        assert from_dict(changed(**flags)).algo.algo.use_valuenorm is valuenorm


@pytest.mark.parametrize(
    ("base", "values", "parts"),
    [
        (MAPPO, {"algo__fixed_order": True}, ("algo.fixed_order=true", "use algo=happo")),
        (DEFAULTS, {"eval__eval_episodes": 25}, ("multiple of eval.n_eval_rollout_threads=10", "20 and 30")),
        (DEFAULTS, {"resume": "a", "init_from": "b"}, ("resume=a", "init_from=b")),
        (DEFAULTS, {"env__scenario": "simple_reference", "env__kwargs__N": 4}, ("env.kwargs.N=4", "simple_spread")),
        (
            DEFAULTS,
            {"env__scenario": "simple_speaker_listener", "env__kwargs__local_ratio": 0.5},
            ("env.kwargs.local_ratio=0.5", "simple_spread or simple_reference"),
        ),
        (PETTINGZOO, {"env__workers": 2}, ("env.workers=2", "must be 0")),
        (PETTINGZOO, {"env__entry_point": "my_pkg.envs"}, ("env.entry_point", "package.module:function")),
    ],
)
def test_combinations_that_are_refused(base, values, parts):
    (error,) = errors_of(changed(base, **values))
    assert all(part in error for part in parts)


def test_fewer_evaluation_episodes_than_environments_are_allowed():
    assert from_dict(changed(eval__eval_episodes=3)).algo.eval.eval_episodes == 3


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("curriculum", "env=pettingzoo"),
        ("terminate_on_success", "env=pettingzoo"),
        ("num_agent_neighbors", "env=pettingzoo"),
        ("num_landmark_neighbors", "env=pettingzoo"),
        ("benchmark_data", "does not report"),
        ("dynamic_rescaling", "pictures"),
        ("render_mode", "harl.render"),
    ],
)
def test_options_of_mpe2_that_are_not_taken_are_refused_by_name(option, reason):
    (error,) = errors_of(changed(**{f"env__kwargs__{option}": True}))
    assert error.startswith(f"env.kwargs.{option} is not taken")
    assert reason in error


def test_what_the_user_must_give_has_no_silent_default():
    with pytest.raises(ConfigError) as caught:
        build_config(["env=pettingzoo"])
    entry_point, reward = caught.value.errors
    assert entry_point.startswith("env.entry_point=???: must be given: a text like package.module:function")
    assert reward.startswith("env.reward=???: must be given: one of shared_sum, shared_mean, individual")
    with pytest.raises(ConfigError, match=r"run=\?\?\?: must be given"):
        to_render_config(compose(config_name="render"))


def test_missing_and_unknown_keys_of_a_plain_configuration():
    data = changed(algo__gama=0.9, clip_param=0.1)
    del data["algo"]["gamma"]
    del data["eval"]
    assert errors_of(data) == [
        "clip_param is unknown; did you mean algo.clip_param?",
        "algo.gamma is missing: a number from 0 to 1",
        "algo.gama is unknown; did you mean algo.gamma?",
        "eval is missing: must be a section of keys and values",
    ]


def test_what_was_stored_before_a_key_was_there_goes_on_as_it_was():
    data = to_dict(build_config(["algo=happo", "hitl=web"]))
    full = from_dict(data)
    del data["hitl"]["takeover"]["bc_max_age"], data["hitl"]["reward"]["feedback_grace_s"]
    assert from_dict(data) == full, "the defaults of today are what was done then"
    del data["hitl"]["takeover"]["bc_agents"]
    assert errors_of(data) == ["hitl.takeover.bc_agents is missing: one of same, all"]


def test_names_that_choose_a_schema_are_checked():
    errors = errors_of(changed(algo__name="hapo", env__name="mpe3"))
    assert errors == [
        f"algo.name=hapo: must be one of {', '.join(ALGO_SCHEMAS)}; did you mean algo=happo?",
        "env.name=mpe3: must be one of mpe, pettingzoo; did you mean env=mpe?",
    ]


def test_interpolation_that_leads_nowhere_is_an_error_of_the_configuration():
    composed = OmegaConf.merge(compose(), {"exp_name": "${nothing}"})
    with pytest.raises(ConfigError, match=r"nothing.*exp_name"):
        to_config(composed)


@pytest.mark.parametrize("base", [DEFAULTS, MAPPO, PETTINGZOO])
def test_cfg09_a_saved_configuration_reads_back_and_reproduces_itself(base, tmp_path):
    config = from_dict(changed(base, exp_name="1e5", algo__lr=1e-5, model__hidden_sizes=[64, 32], seed=None))
    path = tmp_path / "config.yaml"
    save_yaml(path, config)
    assert load_yaml(path) == config
    assert from_dict(yaml.safe_load(path.read_text())) == config
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    assert from_dict(OmegaConf.to_container(OmegaConf.load(path))) == config


@pytest.mark.parametrize("text", ["1e5", "007", "1_000", "off", "null", "6e1234", "a: b", "#x", "ü", "'q'", "12:30:00"])
def test_cfg04_texts_survive_saving_for_every_reader(text, tmp_path):
    config = from_dict(changed(exp_name=text))
    save_yaml(tmp_path / "config.yaml", config)
    assert load_yaml(tmp_path / "config.yaml").run.exp_name == text
    assert OmegaConf.load(tmp_path / "config.yaml").exp_name == text


def test_cfg09_a_file_that_is_no_configuration_is_named(tmp_path):
    path = tmp_path / "config.yaml"
    with pytest.raises(ConfigError, match="cannot be read"):
        load_yaml(path)
    path.write_text("a: [1")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_yaml(path)
    path.write_text("text")
    with pytest.raises(ConfigError, match="no sections"):
        load_yaml(path)
    path.write_text(yaml.safe_dump(changed(algo__gamma=2)))
    with pytest.raises(ConfigError, match=r"config.yaml: algo.gamma=2"):
        load_yaml(path)


@pytest.mark.parametrize(
    "text",
    [
        "lbforaging:Foraging-8x8-2p-3f-v3",
        "a/b",
        "a\\b",
        "*",
        "name.",
        "x" * 300,
        "CON",
        "com1.txt",
        "..",
        "a=b",
        " ",
        "é",
    ],
)
def test_cfg06_folder_names_are_portable(text):
    name = portable_name(text)
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert 1 <= len(name) <= 80
    assert not name.endswith(".")
    assert name.split(".")[0].upper() not in {"CON", "PRN", "AUX", "NUL", "COM1", "LPT1"}
    assert portable_name(name) == name


def test_cfg06_long_names_that_begin_alike_stay_apart():
    assert portable_name("x" * 300) != portable_name("x" * 301)
    assert portable_name("simple_spread") == "simple_spread"


def test_the_schema_is_imported_without_hydra():
    code = "import sys, harl.config.schema, harl.config as c; c.PPOConfig; print(sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "harl.config.schema" in modules
    assert "'hydra'" not in modules


def test_D_54_keys_of_one_name_in_two_sections_stay_apart():
    config = build_config(["algo=hasac", "eval.interval=30", "checkpoint.interval=50", "train.num_env_steps=600"])
    assert (config.algo.eval.interval, config.run.checkpoint.interval) == (30, 50)
    shared = [set(to_dict(config)[section]) for section in ("train", "model", "eval", "algo", "checkpoint", "env")]
    assert sum(map(len, shared)) > len(set.union(*shared)), "there are such keys: interval, name"
    assert (config.algo.algo.name, config.env.name, config.run.device.name) == (
        "hasac",
        "mpe",
        DEFAULTS["device"]["name"],
    )
