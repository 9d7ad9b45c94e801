"""Frames a second of this runner and of SHARPIE's own, at the same site, environment, pictures and scripted person.

    make sharpie && .venv/bin/python -m tests.interop.sharpie.frame_rates [--repeats 10]

Every frame waits for the answer to the one before it (lock step), at a target that nobody reaches. Both play at the
same time, each in a room of its own, so that whatever else the machine does slows both; each line is one such pair of
episodes, as their people saw them while both were playing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from tests.interop.sharpie.real_site import KEY, ROOT, RealSite, find_python

LINKS = {"it-fast": "128 x 64", "it-fast-large": "400 x 200"}
SHORTEST_S = 1.0
"""Both must have been playing for so long."""
MAPPING = ROOT / "tests" / "hitl" / "sharpie_mapping.yaml"


def together(site: RealSite, link: str, name: str) -> tuple[float, float] | None:
    """Frames a second of ours and theirs; None where one of them did not come to the end."""
    ours = [sys.executable, "-m", "harl.hitl.sharpie", "--hostname", "127.0.0.1", "--port", str(site.port), "--mapping",
            str(MAPPING), "--record", str(site.folder), "room", link, f"{name}-ours"]  # fmt: skip
    reference = str(Path(__file__).with_name("reference_runner.py"))
    theirs = [str(site.python), reference, str(site.port), KEY, link, f"{name}-theirs"]
    people = [site.person(user, link, f"{name}-{whose}", "agent_0", [1], "--timeout", "20", "--times")
              for user, whose in (("alice", "ours"), ("bob", "theirs"))]  # fmt: skip
    with site.runner(ours, f"{name}-ours"), site.runner(theirs, f"{name}-theirs"):
        episodes = [person.episodes()[0] for person in people]
    stuck = [whose for whose, episode in zip(("ours", "theirs"), episodes, strict=True) if not episode["done"]]
    if stuck:
        print(f"{LINKS[link]}  did not come to the end: {', '.join(stuck)}", flush=True)
        return None
    start, end = max(episode["times"][0] for episode in episodes), min(episode["times"][-1] for episode in episodes)
    if end - start < SHORTEST_S:
        print(f"{LINKS[link]}  did not play at the same time", flush=True)
        return None
    one, other = (sum(start <= at < end for at in episode["times"]) / (end - start) for episode in episodes)
    return one, other


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    python = find_python()
    assert python is not None, "make sharpie, or set SHARPIE_VENV"
    with tempfile.TemporaryDirectory() as folder:
        site = RealSite(Path(folder), python)
        site.start()
        try:
            for link, size in LINKS.items():
                pairs = []
                for turn in range(repeats):
                    rates = together(site, link, f"turn-{turn}")
                    if rates is None:
                        continue
                    ours, theirs = rates
                    pairs.append((ours, theirs, ours / theirs))
                    print(f"{size}  ours {ours:6.1f}  theirs {theirs:6.1f} frames/s  {ours / theirs:.2f}", flush=True)
                ours, theirs, ratio = (statistics.median(column) for column in zip(*pairs, strict=True))
                print(f"{size}  median: ours {ours:.1f}, theirs {theirs:.1f}, ratio {ratio:.2f}")
        finally:
            site.kill()


if __name__ == "__main__":
    main()
