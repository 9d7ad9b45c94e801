"""`python -m harl.render run=<run folder>`: evaluate a trained team, film it, and write its episodes to a table."""

from __future__ import annotations

import sys

from harl.config import compose, to_render_config


def main() -> None:
    """Play the episodes that were asked for; Ctrl-C ends it without a traceback at any time, also while it starts."""
    try:
        _render()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _render() -> None:
    from harl.hitl import make_bridge
    from harl.runners.command import EXPECTED_ERRORS, fail  # loads torch, which takes a second
    from harl.runners.playback import Playback

    try:
        config = to_render_config(compose(sys.argv[1:], config_name="render"))
        bridge = make_bridge(config.hitl)
        try:
            playback = Playback(config.run, config.render, bridge)
            print(playback.describe())
            if playback.replaces:
                first, *others = playback.replaces
                more = f" and {len(others)} more" if others else ""
                print(f"replaces files of an earlier render: {first}{more}; Ctrl-C keeps them")
            episodes = playback.play()
        finally:
            if bridge is not None:
                bridge.close("the episodes are over")
        print(playback.summary(episodes))
        print(f"episodes: {playback.write_table(episodes)}")
        for path in playback.videos:
            print(f"video: {path}")
    except EXPECTED_ERRORS as error:
        fail(error)


if __name__ == "__main__":
    main()
