"""What a run says of itself before it starts."""

from __future__ import annotations

from harl.runners.runner import Runner


def announce_team(runner: Runner) -> None:
    """Say where the run is written, who is trained on what, and where that differs from what was typed."""
    layout, envs = runner.layout, runner.envs
    for notice in runner.notices:
        runner.logger.message(notice)
    spaces = ", ".join(
        f"{name} sees {width} and acts in {space}"
        for name, width, space in zip(layout.agents, layout.obs_dims, layout.action_spaces, strict=True)
    )
    runner.logger.message(f"run folder: {runner.folder.path}")
    runner.logger.message(
        f"{runner.algo_args.algo.name} on {envs.name}/{envs.scenario}: {spaces}; state {layout.state_type} "
        f"{layout.share_obs_shape}, episodes of {envs.episode_limit or 'unknown'} steps, "
        f"reward {runner.env_args.reward}"
    )
    if runner.env_args.reward == "individual" and runner.env_args.state_type == "EP":
        runner.logger.message("env.reward=individual: the state of each agent carries its one-hot id (FP)")
    if runner.finished:
        runner.logger.message(
            f"the budget is used up already: {runner.env_steps:,} environment steps were taken; "
            f"train.num_env_steps={2 * runner.algo_args.train.num_env_steps} would double it"
        )
