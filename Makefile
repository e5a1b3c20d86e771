# One verb each. Everything lives in .venv and .halogen of this checkout; remove them and nothing is left.
PYTHON ?= python3
PY := .venv/bin/python
BENCH ?= first_light loader convert swap restart kv_pool engine mixed
BUILT := pyproject.toml $(wildcard services/engine/kernels/cpu/*.py services/engine/kernels/cpu/native/*)

.PHONY: setup up down test lint protos bench verify
.DELETE_ON_ERROR:

setup: .venv/.setup  ## .venv with every extra

up: .venv/.up  ## serve the demo model (DETACH=1 returns once it answers)
	@exec $(PY) -m services.cli up --home .halogen $(if $(DETACH),--detach,--stop-with-parent)

down:  ## stop what `up` started
	@test -f .venv/.up || { echo "nothing was ever started here"; exit 0; }; exec $(PY) -m services.cli down --home .halogen

test: .venv/.setup lint  ## lint, and every test that needs no GPU and no Docker
	@OMP_NUM_THREADS=1 exec $(PY) -m pytest -m "not gpu" -n 2 --dist loadgroup

lint: .venv/.setup  ## ruff, mypy --strict, the import law
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy && .venv/bin/lint-imports

protos: .venv/.setup  ## regenerate the stubs beside the protos
	@$(PY) protos/generate.py

bench: .venv/.bench  ## each benchmark beside its peers (BENCH=loader runs that one; bench/README.md)
	@for each in $(BENCH); do $(PY) -m bench.$$each || exit; done

verify: .venv/.setup  ## run every promise of the README and print a table
	@exec $(PY) -m tests.e2e.verify

.venv/.made:  # what a killed attempt left has no pip, and is made again
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "halogen needs Python 3.11 or newer: install it, or give it with make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv || \
	  { echo "python's venv module is missing: on Debian, apt-get install python3-venv"; exit 1; }
	@touch $@

.venv/.up: .venv/.made $(BUILT)
	@echo "installing halogen with its engine into .venv (PyTorch comes along: a minute or more)" >&2
	@$(PY) -m pip install --quiet --disable-pip-version-check -e '.[engine,demo]' && touch $@

.venv/.setup: .venv/.made $(BUILT)
	@echo "installing halogen with every extra into .venv (PyTorch comes along: a minute or more)" >&2
	@$(PY) -m pip install --quiet --disable-pip-version-check -e '.[engine,demo,dev]' && touch $@ .venv/.up

.venv/.bench: .venv/.setup
	@echo "installing the loaders that ours is measured beside" >&2
	@$(PY) -m pip install --quiet --disable-pip-version-check -e '.[engine,demo,dev,bench]' && touch $@
