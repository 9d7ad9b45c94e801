"""SHARPIE's own runner, for comparisons: python reference_runner.py PORT KEY. Run by the site's Python."""

import sys

from sharpie.runner.manage import main

port, key = sys.argv[1:]
sys.argv = ["sharpie-runner", "runserver", "--hostname", "127.0.0.1", "--port", port, "--connection-key", key]
main()
