"""`python -m harl.render run=<run folder>`: evaluate a trained team, film it, and write its episodes to a table."""

from __future__ import annotations

import sys

from harl.config import compose, to_render_config
from harl.runners.command import EXPECTED_ERRORS, fail
from harl.runners.playback import Playback


def main() -> None:
    """Play the episodes that were asked for and say how they went."""
    try:
        config = to_render_config(compose(sys.argv[1:], config_name="render"))
        playback = Playback(config.run, config.render)
        print(playback.describe())
        episodes = playback.play()
        print(playback.summary(episodes))
        print(f"episodes: {playback.write_table(episodes)}")
        for path in playback.videos:
            print(f"video: {path}")
    except EXPECTED_ERRORS as error:
        fail(error)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
