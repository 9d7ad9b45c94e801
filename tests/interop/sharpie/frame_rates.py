"""Frames a second of this runner and of SHARPIE's own, at the same site, environment, pictures and scripted person.

    make sharpie && .venv/bin/python -m tests.interop.sharpie.frame_rates [--repeats 3]

Every frame waits for the answer to the one before it (lock step), at a target that nobody reaches. The runners take
turns; each line is one episode of 300 steps as the person saw it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from tests.interop.sharpie.real_site import KEY, ROOT, RealSite, find_python

LINKS = {"it-fast": "128 x 64", "it-fast-large": "400 x 200"}
MAPPING = ROOT / "tests" / "hitl" / "sharpie_mapping.yaml"


def measured(site: RealSite, link: str, name: str, command: list[str]) -> float:
    """Frames a second of one episode."""
    with site.runner(command, name):
        (episode,) = site.person("alice", link, name, "agent_0", [1]).episodes()
    assert episode["done"], episode["error"]
    return float((episode["frames"] - 1) / episode["seconds"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    python = find_python()
    assert python is not None, "make sharpie, or set SHARPIE_VENV"
    with tempfile.TemporaryDirectory() as folder:
        site = RealSite(Path(folder), python)
        site.start()
        here = Path(__file__).parent
        theirs = [str(python), str(here / "reference_runner.py"), str(site.port), KEY]
        ours = [sys.executable, "-m", "harl.hitl.sharpie", "--hostname", "127.0.0.1", "--port", str(site.port),
                "--mapping", str(MAPPING), "--record", folder, "runserver"]  # fmt: skip
        try:
            for link, size in LINKS.items():
                rates: dict[str, list[float]] = {"ours": [], "theirs": []}
                for turn in range(2 * repeats):
                    which = ("ours", "theirs", "theirs", "ours")[turn % 4]
                    rate = measured(site, link, f"{which}-{turn}", ours if which == "ours" else theirs)
                    rates[which].append(rate)
                    print(f"{size}  {which:6}  {rate:6.1f} frames/s", flush=True)
                middle = {which: statistics.median(found) for which, found in rates.items()}
                print(f"{size}  median: ours {middle['ours']:.1f}, theirs {middle['theirs']:.1f}, "
                      f"{middle['ours'] / middle['theirs']:.2f} times")  # fmt: skip
        finally:
            site.kill()


if __name__ == "__main__":
    main()
