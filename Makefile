# Each target sets up what it needs: a virtual environment in .venv with the package installed from this tree.
PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python
WORKERS ?= 2
export OMP_NUM_THREADS ?= 1

.PHONY: demo test docs compat packages install audit constraints clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: install  ## train on colored digits, show what CoDID does where the colors change
	$(RUN) -m codid_lightning demo

test: install  ## style, types, spelling and the whole test suite
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -m codespell_lib
	$(RUN) -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

docs: install  ## the documentation site, in build/site; a warning is an error
	$(RUN) -m sphinx --fail-on-warning --keep-going --builder html --quiet docs build/site

compat: install  ## the fast tests with the oldest and newest dependencies, for each installed Python
	$(RUN) -m benchmarks.compat --workers $(WORKERS)

packages: install  ## wheel and source distribution, each installed into an empty environment and tested
	$(RUN) -m benchmarks.packages

audit: install  ## security advisories: the kept list and, where it can be reached, pip-audit's service
	$(RUN) -m benchmarks.advisories

constraints: install  ## renew .ci/constraints.txt: the newest versions within our bounds, with hashes
	echo '# Every package of the development environment with hashes; `make constraints` writes it, `make install LOCKED=1` reads it.' > .ci/constraints.txt
	echo 'hatchling>=1.25' | $(RUN) -m uv pip compile pyproject.toml - --extra dev --generate-hashes --universal --python-version 3.11 --quiet --no-annotate --no-header >> .ci/constraints.txt

install: $(VENV)/.installed  ## the virtual environment alone; LOCKED=1 takes exactly .ci/constraints.txt

$(VENV)/.installed: pyproject.toml $(if $(LOCKED),.ci/constraints.txt)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "codid-lightning needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
ifdef LOCKED
	$(RUN) -m pip install --quiet --require-hashes -r .ci/constraints.txt
	$(RUN) -m pip install --quiet --no-deps --no-build-isolation --editable .
else
	$(RUN) -m pip install --quiet --editable ".[dev]"
endif
	touch $@

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
