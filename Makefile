# Everything works on a machine that has Python 3.11 or newer and make: the first target makes .venv and installs.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt

# A SHARPIE site to test against, in an environment of its own: 0.6 GB, and nothing of ours needs it otherwise.
SHARPIE := .venv-sharpie

.PHONY: train test test-all lint bench clean sharpie

# Two minutes of HAPPO on simple_spread: from about -105 to better than -62, summed over the three agents.
train: $(VENV)/.run
	$(RUN) -m harl.train algo=happo env=mpe train.num_env_steps=1e6

# The fast tests, two at a time.
test: $(VENV)/.dev
	$(RUN) -m pytest -n 2 --dist worksteal -m "not slow"

# All tests, two at a time.
test-all: $(VENV)/.dev sharpie
	$(RUN) -m pytest -n 2 --dist worksteal

sharpie: $(SHARPIE)/.site

lint: $(VENV)/.dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

# Where the time goes, beside the matrix products alone.
bench: $(VENV)/.run
	$(RUN) -m harl.bench

$(VENV)/.python:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.run: $(VENV)/.python pyproject.toml setup.py constraints.txt
	$(PIP) -e ".[video,plot]"
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) -e ".[dev]"
	touch $@

$(SHARPIE)/.site:
	$(PYTHON) -m venv $(SHARPIE)
	$(SHARPIE)/bin/python -m pip install --quiet --disable-pip-version-check "SHARPIE==1.0.0rc1"
	touch $@

clean:
	rm -rf $(VENV) $(SHARPIE) build dist *.egg-info
