"""Training runs behind the links of a mapping: each in a thread of its own, with its own environments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from harl.hitl.sharpie_site.mapping import SiteMapping
from harl.hitl.sharpie_site.messages import log
from harl.hitl.sharpie_site.reception import Reception
from harl.hitl.sharpie_site.site import Site


class Stopping(Protocol):
    """How a run is asked to finish its step, save, and end."""

    requested: bool


class Training(Protocol):
    """What of a runner is used."""

    stopping: Stopping

    def run(self) -> Any:
        """Train to the end of the budget."""


MakeLearner = Callable[[Sequence[str], SiteMapping], tuple[Training, Reception]]
"""(what would be typed after `python -m harl.train`, mapping) → a run, and the way in to its people."""


class Learners:
    """All learners of a mapping.

    Args:
        mapping: whose experiments with a `learner` are served.
        make: makes one.

    Raises:
        ConfigError: one cannot be made.
    """

    def __init__(self, mapping: SiteMapping, make: MakeLearner) -> None:
        self.runs: Mapping[str, tuple[Training, Reception]] = {
            link: make(entry.learner, SiteMapping(experiments={link: entry}))
            for link, entry in mapping.experiments.items()
            if entry.learner is not None
        }
        self._threads = [
            threading.Thread(target=self._train, args=(link,), name=f"learner {link}", daemon=True)
            for link in self.runs
        ]

    def start(self) -> None:
        """Begin to train."""
        for thread in self._threads:
            thread.start()

    def serve(self, site: Site, link: str, room: str) -> bool:
        """Serve a session by the learner of its link; see `Reception.serve`."""
        return self.runs[link][1].serve(site, link, room)

    def stop(self, timeout: float) -> None:
        """Ask all runs to save and end, and wait `timeout` seconds for each at most."""
        for run, _ in self.runs.values():
            run.stopping.requested = True
        for thread in self._threads:
            thread.join(timeout)

    def _train(self, link: str) -> None:
        run, reception = self.runs[link]
        try:
            run.run()
            log.info("%s: the learner has used up its budget; its sessions are refused from now on", link)
        except SystemExit:
            log.info("%s: the learner was stopped", link)
        except Exception as error:
            log.error("%s: the learner failed: %s: %s", link, type(error).__name__, error)
        finally:
            reception.ending.set()
