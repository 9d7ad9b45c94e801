"""The command line: unknown keys and choices, quoting, sweeps, composition; cases CFG-01 to -04 and -13."""

import shlex
from pathlib import Path

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra

from harl.config import (
    ALGO_SCHEMAS,
    ConfigError,
    build_config,
    check_overrides,
    compose,
    config_dir,
    expand_sweep,
    normalise_overrides,
    to_config,
)
from harl.config.hitl_schema import LEARNING_KEYS

ALGORITHMS = ", ".join(sorted(ALGO_SCHEMAS))


def build_errors(*overrides):
    with pytest.raises(ConfigError) as caught:
        build_config(overrides)
    return caught.value.errors


def test_cfg01_misspelt_keys_of_every_kind_are_refused_at_once():
    typed = ["algo.lrr=1e-3", "env.kwargs.max_cyclez=10", "hydra.ouput_subdir=x", "algo/lr=1e-3"]
    expected = [
        "algo.lrr is unknown; did you mean algo.lr?",
        "env.kwargs.max_cyclez is unknown; did you mean env.kwargs.max_cycles?",
        "hydra.ouput_subdir is unknown; did you mean hydra.output_subdir?",
        "algo/lr=1e-3: algo/lr is no group; did you mean algo.lr?",
    ]
    assert check_overrides(typed) == expected
    assert build_errors(*typed) == expected


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["hitl.reward.feedback_grace_s=4"], "hitl.reward.feedback_grace_s needs hitl=web or hitl=sharpie"),
        (["hitl.reward={feedback_grace_s: 4}"], "hitl.reward needs hitl=web or hitl=sharpie"),
        (["hitl.wait_for_people=true"], "hitl.wait_for_people needs hitl=web"),
        (["hitl=web", "hitl.room=x"], "hitl.room needs hitl=sharpie"),
    ],
)
@pytest.mark.parametrize("config_name", ["config", "render"])
def test_keys_of_another_mode_of_people_say_which(typed, said, config_name):
    assert check_overrides(typed, config_name=config_name) == [said]


@pytest.mark.parametrize("prefix", ["+", "++"])
def test_cfg01_forcing_a_key_does_not_help(prefix):
    assert check_overrides([f"{prefix}algo.lrr=1"]) == ["algo.lrr is unknown; did you mean algo.lr?"]
    assert check_overrides([f"{prefix}hydra.ouput_subdir=x"]) != []


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("clip_param=0.1", "did you mean algo.clip_param?"),
        ("gama=0.9", "did you mean algo.gamma?"),
        ("algo.hidden_sizes=[64,64]", "did you mean model.hidden_sizes?"),
        ("model.lr=1e-3", "did you mean algo.lr?"),
        ("interval=5", "eval.interval"),
        ("env.local_ratio=0.5", "did you mean env.kwargs.local_ratio?"),
        ("train.eval_interval=25", "here it is eval.interval"),
        ("train.use_proper_time_limits=true", "here it is algo.time_limit"),
        ("device.cuda=true", "here it is device.name"),
        ("env.kwargs.curriculum=true", "env.kwargs.curriculum is not taken"),
        ("zzzz=1", "lists all keys"),
        ("model={hiden_sizes:[3]}", "did you mean model.hidden_sizes?"),
        ("model=big", "model is a section; set its keys: model.hidden_sizes"),
        ("algo=hapo", f"did you mean algo=happo?\navailable: {ALGORITHMS}"),
        ("env=mpee", "did you mean env=mpe?"),
        ("algo=on_policy_base", f"available: {ALGORITHMS}"),
        ("experiment=mpe_sprad_happo", "did you mean experiment=mpe_spread_happo?"),
        ("hydra/launcher=jobli", "hydra/launcher/jobli"),
        ("algo=null", "cannot be left out"),
        ("~env", "cannot be left out"),
        ("~algo.lr", "cannot be taken away"),
        ("+seed=3", "leave out the +"),
        ("algo.name=mappo", "choose it by algo=<name>"),
        ("algo/happo", "did you mean algo=happo?"),
        ("algo/happo=x", "did you mean algo=happo?"),
        ("happo", "did you mean algo=happo?"),
        ("--algo happo", "did you mean algo=happo?"),
        ("--seed=3", "write seed=3"),
        ("=3", "no key"),
        ("algo.lr = 3", "without spaces around ="),
    ],
)
def test_cfg01_every_mistake_has_a_hint(typed, hint):
    (error,) = check_overrides(normalise_overrides([typed]))
    assert hint in error


@pytest.mark.parametrize("key", ["lr", "actor_num_mini_batch", "entropy_coef"])
def test_keys_that_would_have_no_effect_are_refused_with_the_reason(key):
    (error,) = check_overrides(["algo=hatrpo", f"algo.{key}=1"])
    assert error.startswith(f"algo.{key} is not taken: the ")
    assert "hatrpo" in error
    assert check_overrides(["algo=haa2c", f"algo.{key}=1"]) == []


@pytest.mark.parametrize("name", LEARNING_KEYS)
def test_render_never_learns_and_says_so_to_whoever_types_how(name):
    typed, value = f"hitl.{name}", "x"
    with pytest.raises(ConfigError) as caught:
        compose(["hitl=web", f"{typed}={value}"], config_name="render")
    (error,) = caught.value.errors
    assert error.startswith(f"{typed}={value}: harl.render records what people do and never learns from it")
    assert check_overrides(["hitl=web", f"{typed}={value}"]) == [], "it is a key of a training"


def test_render_takes_what_says_how_people_take_part_and_passes_over_what_a_file_says_of_learning(tmp_path):
    section = ["hitl=web", "hitl.takeover={learn: mask, idle_s: 3}"]
    assert len(check_overrides(section, config_name="render")) == 1
    assert check_overrides(["hitl=web", "hitl.takeover={idle_s: 3}", "hitl.pace=free"], config_name="render") == []
    (tmp_path / "hitl").mkdir()
    file = "# @package hitl\ndefaults: [web, _self_]\ntakeover: {learn: mask}\n"
    (tmp_path / "hitl" / "study.yaml").write_text(file, encoding="utf-8")
    composed = compose(["hitl=study"], config_name="render", extra_config_dirs=[tmp_path])
    assert composed.hitl.takeover.learn == "mask"


def test_cfg13_an_algorithm_that_is_not_there_is_refused_with_those_that_are():
    (error,) = check_overrides(["algo=qmix"])
    assert error == f"algo=qmix: there is no such choice\navailable: {ALGORITHMS}"


def test_errors_of_overrides_and_of_values_come_together():
    errors = build_errors("algo.lrr=1", "algo.gamma=2", "seed=-1")
    assert len(errors) == 3


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("exp_name='a=b'", "a=b"),
        ('exp_name="a=b"', "a=b"),
        ("exp_name='a,b'", "a,b"),
        ("exp_name=a|b", "a|b"),
        ("exp_name='a|b'", "a|b"),
        ("exp_name='a#b'", "a#b"),
        ("exp_name=x:y", "x:y"),
        ("exp_name='it\\'s'", "it's"),
        ("exp_name='ü'", "ü"),
        ("exp_name=with some spaces", "with some spaces"),
        ("exp_name=' edges '", " edges "),
    ],
)
def test_cfg02_quoted_texts_arrive_unchanged(typed, text):
    assert check_overrides([typed]) == []
    assert build_config([typed]).run.exp_name == text


@pytest.mark.parametrize(("typed", "column"), [("a=b", 10), ("a#b", 10), ("a'b", 10), ("é", 9), ("a(b)", 9)])
def test_cfg02_parse_errors_show_the_place_and_a_fix_that_works(typed, column):
    (error,) = check_overrides([f"exp_name={typed}"])
    shown, pointer, advice = error.splitlines()[-3:]
    assert shown == f"  exp_name={typed}"
    assert pointer == " " * (2 + column) + "^"
    (fix,) = shlex.split(advice.partition("quotes: ")[2])
    assert build_config([fix]).run.exp_name == typed


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("model.hidden_sizes=[64,64", "a bracket is not closed"),
        ('exp_name="a', "the quote is not closed"),
        ("algo.lr==3", "one = is enough: algo.lr=3"),
        ("exp_name=a,b", "add -m"),
        ("exp_name=a,b", "'exp_name=\"a,b\"'"),
    ],
)
def test_cfg02_other_unreadable_values(typed, hint):
    (error,) = check_overrides([typed])
    assert hint in error


@pytest.mark.parametrize("typed", ["exp_name=", "exp_name=''", "exp_name='  '"])
def test_cfg02_an_empty_name_is_refused(typed):
    assert "not empty" in build_errors(typed)[0]


def test_cfg03_lists():
    for typed in ("model.hidden_sizes=[64,64]", "model.hidden_sizes=[64, 64]"):
        assert build_config([typed]).algo.model.hidden_sizes == (64, 64)
    assert "one text in quotes" in build_errors("model.hidden_sizes='[64, 64]'")[0]
    assert "each element a whole number" in build_errors("model.hidden_sizes=[[64],[64]]")[0]


@pytest.mark.parametrize("text", ["1e5", "6e1234", "123E456", "007", "1_000", "3m", "true", "null", "-1", "nan"])
def test_cfg04_names_that_look_like_numbers_stay_as_typed(text):
    assert build_config([f"exp_name={text}"]).run.exp_name == text
    (rewritten,) = normalise_overrides([f"exp_name={text}"])
    assert normalise_overrides([rewritten]) == [rewritten]
    assert expand_sweep([f"exp_name={text},plain,'a,b'"]) == [[rewritten], ["exp_name=plain"], ["exp_name='a,b'"]]


def test_cfg04_without_rewriting_the_user_is_asked_for_quotes():
    with hydra.initialize_config_dir(str(config_dir()), version_base="1.3"):
        composed = hydra.compose("config", ["exp_name=1e5"])
    with pytest.raises(ConfigError, match=r"exp_name=100000\.0: .*quotes"):
        to_config(composed)


def test_cfg04_a_scenario_that_looks_like_a_number_keeps_its_text():
    (error,) = build_errors("env.scenario=1e5")
    assert error.startswith("env.scenario=1e5: must be one of simple_spread")


def test_null_stays_null_where_it_is_allowed():
    assert normalise_overrides(["resume=null", "seed=null"]) == ["resume=null", "seed=null"]
    assert build_config(["resume=null", "seed=null"]).run.seed is None


@pytest.mark.parametrize("typed", ["2735729614", "4294967295"])
def test_sed08_typed_seeds_that_work(typed):
    assert build_config([f"seed={typed}"]).run.seed == int(typed)


@pytest.mark.parametrize("typed", ["4294967296", "-1", "1.5", "abc", "'abc'"])
def test_sed08_typed_seeds_that_are_refused(typed):
    (error,) = build_errors(f"seed={typed}")
    assert "from 0 to 4294967295, or null" in error


def test_numbers_as_people_type_them():
    config = build_config(["train.num_env_steps=1e6", "eval.interval=2e5", "algo.lr=1e-5", "algo.weight_decay=0"])
    assert config.algo.train.num_env_steps == 1_000_000
    assert config.algo.eval.interval == 200_000
    assert config.algo.algo.lr == 1e-5


def test_free_form_keyword_arguments_of_an_environment():
    typed = [
        "env=pettingzoo",
        "env.entry_point=a.b:c",
        "env.reward=shared_sum",
        "env.kwargs.size=5",
        "env.kwargs.m=[1,2]",
    ]
    assert normalise_overrides(typed)[3:] == ["++env.kwargs.size=5", "++env.kwargs.m=[1,2]"]
    assert build_config(typed).env.kwargs == {"size": 5, "m": [1, 2]}


def test_experiment_with_and_without_plus():
    for typed in ("experiment=mpe_spread_continuous_happo", "+experiment=mpe_spread_continuous_happo"):
        assert build_config([typed]).env.continuous_actions is True


def test_compose_is_a_library_call_that_leaves_no_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2):
        assert compose([f"seed={seed}"]).seed == seed
        assert not GlobalHydra.instance().is_initialized()
    with pytest.raises(ConfigError):
        compose(["algo=hapo"])
    assert not GlobalHydra.instance().is_initialized()
    assert list(tmp_path.iterdir()) == []


def test_compose_inside_an_active_hydra_puts_it_back():
    with hydra.initialize_config_dir(str(config_dir()), version_base="1.3"):
        outer = GlobalHydra.instance().hydra
        assert build_config(["algo=mappo"]).algo.algo.name == "mappo"
        assert GlobalHydra.instance().hydra is outer
        assert hydra.compose("config", ["seed=9"]).seed == 9


def test_folders_of_the_users_own(tmp_path):
    folder = tmp_path / "it's mine"
    (folder / "algo").mkdir(parents=True)
    (folder / "algo" / "slow.yaml").write_text("# @package _global_\ndefaults:\n  - happo\nalgo:\n  lr: 1e-6\n")
    assert build_config(["algo=slow"], extra_config_dirs=[folder]).algo.algo.lr == 1e-6
    assert build_config(["algo=slow", f'hydra.searchpath=["{folder}"]']).algo.algo.lr == 1e-6
    assert "did you mean algo=slow?" in check_overrides(["algo=slwo"], extra_config_dirs=[folder])[0]
    (error,) = check_overrides(["seed=1"], extra_config_dirs=[tmp_path / "nowhere"])
    assert error == f"config folder {tmp_path / 'nowhere'} does not exist"


def test_a_changed_file_is_read_again(tmp_path):
    (tmp_path / "experiment").mkdir()
    path = tmp_path / "experiment" / "mine.yaml"
    path.write_text("# @package _global_\ndefaults:\n  - override /env: mpe\n")
    assert check_overrides(["experiment=mine", "env.workers=0"], extra_config_dirs=[tmp_path]) != []
    path.write_text("# @package _global_\ndefaults:\n  - override /env: pettingzoo\n")
    assert check_overrides(["experiment=mine", "env.workers=0"], extra_config_dirs=[tmp_path]) == []


def test_a_broken_file_of_the_users_is_an_error_of_the_configuration(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nalgo: {lr: 1\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        build_config(["experiment=mine"], extra_config_dirs=[tmp_path])


def test_expand_sweep_gives_every_job_in_hydras_order():
    jobs = expand_sweep(["algo=happo,mappo", "seed=range(1,3)", "algo.lr=1e-4", "hydra.sweep.dir=x"])
    assert jobs == [
        ["algo=happo", "seed=1", "algo.lr=0.0001"],
        ["algo=happo", "seed=2", "algo.lr=0.0001"],
        ["algo=mappo", "seed=1", "algo.lr=0.0001"],
        ["algo=mappo", "seed=2", "algo.lr=0.0001"],
    ]
    assert [build_config(job).algo.algo.name for job in jobs] == ["happo", "happo", "mappo", "mappo"]


def test_expand_sweep_over_files():
    jobs = expand_sweep(["algo=glob(*)", "experiment=glob(mpe_spread_*_happo)"])
    assert len(jobs) == 2 * len(ALGO_SCHEMAS)
    assert {job[0] for job in jobs} == {f"algo={name}" for name in ALGO_SCHEMAS}


def test_sweeps_are_checked_before_the_first_job():
    typed = ["algo=happo,mapo", "algo.lrr=1,2", "seed=1,2"]
    assert [error.split(";")[0] for error in check_overrides(typed, multirun=True)] == [
        "algo=mapo: there is no such choice",
        "algo.lrr is unknown",
    ]
    assert check_overrides(["algo=happo,mappo", "seed=1,2", "env.scenario=simple_spread"], multirun=True) == []
    assert "env.scenario is unknown" in check_overrides(["env=mpe,pettingzoo", "env.scenario=x"], multirun=True)[0]
    with pytest.raises(ConfigError, match="interval"):
        expand_sweep(["algo.lr=interval(0,1)"])


def test_the_configuration_is_found_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (config_dir() / "config.yaml").is_file()
    assert Path(config_dir()).is_absolute()
