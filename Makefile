# Everything runs in .venv, which is made here from the first fitting Python on the PATH (3.11 or newer).
# `make PYTHON=/path/to/python3.12 test` chooses another; `make test ARGS='-k wake'` passes arguments on. Tests run on
# all cores, eight at most; `ARGS='-n 0'` runs them in one process, as a debugger wants it.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet
CANDIDATES := $(if $(PYTHON),$(PYTHON),python3.13 python3.12 python3.11 python3)
NEEDS := import sys, venv, ensurepip, sqlite3, ssl; sys.exit(sys.version_info < (3, 11))
SPREAD := -n auto --maxprocesses 8
ARGS :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-system check bench prove lock clean

help:
	@echo "make demo         set up and run the demonstration: real work, real processes, one killed half-way"
	@echo "make test         all tests that need nothing but this checkout"
	@echo "make test-system  the tests that need a system package"
	@echo "make prove        the rules alone: every interleaving, every planted mutant"
	@echo "make check        types, style, and that the lock fits"
	@echo "make bench        the figures of bench/RESULTS.md, measured on this machine"
	@echo "make lock         choose versions anew and write both locks"
	@echo "make clean        remove what was made here"

demo: $(VENV)/runtime.stamp
	@$(BIN)/queuebell demo $(ARGS)

test: $(VENV)/dev.stamp
	@$(BIN)/python -m pytest $(SPREAD) $(ARGS)

test-system: $(VENV)/dev.stamp
	@$(BIN)/python -m pytest $(SPREAD) -m system $(ARGS)

prove: $(VENV)/dev.stamp
	@$(BIN)/python -m pytest tests/architecture tests/bridge/core tests/bridge/test_publication.py tests/listeners/core $(ARGS)
	@QUEUEBELL_PROVE=1 $(BIN)/python -m pytest --timeout 3600 tests/simulation/test_exhaustive.py $(ARGS)
	@$(BIN)/python -m tests.simulation 5000 1000
	@$(BIN)/python -m tests.model --all

check: $(VENV)/dev.stamp
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m mypy
	@$(BIN)/python -m pip --disable-pip-version-check check

bench: $(VENV)/dev.stamp
	@$(BIN)/python -m bench $(ARGS)

# The demonstration has a minute in all: it installs what runs, not what tests.
$(VENV)/runtime.stamp: requirements.lock pyproject.toml $(VENV)/pyvenv.cfg
	@echo "installing what queuebell runs on, by hash, into $(VENV)"
	@$(PIP) install --require-hashes -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/dev.stamp: requirements-dev.lock $(VENV)/runtime.stamp
	@echo "installing what tests and checks it, by hash, into $(VENV)"
	@$(PIP) install --require-hashes -r requirements-dev.lock
	@touch $@

$(VENV)/pyvenv.cfg:
	@found=; for python in $(CANDIDATES); do \
		if "$$python" -c '$(NEEDS)' >/dev/null 2>&1; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
		echo "queuebell needs Python 3.11 or newer with venv, pip, sqlite3 and ssl; tried: $(CANDIDATES)" >&2; \
		echo "install one (on Debian and Ubuntu also python3-venv), or name one: make PYTHON=/path/to/python3" >&2; \
		exit 1; \
	fi; \
	echo "making $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv $(VENV)

# Universal: one lock for all platforms and for 3.11 to 3.13. setuptools is in it because the checkout is installed
# without build isolation, which would fetch a second one that no hash covers. What runs includes the brokers' clients,
# which are small; the server of the extra `broker` has no wheel for some platforms, and would keep them from all of it.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-emit-find-links --no-header --no-annotate

lock: $(VENV)/dev.stamp
	@$(PIP) install 'uv>=0.9'
	@rm -f requirements.lock requirements-dev.lock
	@echo 'setuptools>=77' | $(LOCK) --extra nats --extra mqtt --output-file requirements.lock pyproject.toml -
	@echo 'setuptools>=77' | $(LOCK) --constraint requirements.lock --all-extras \
		--output-file requirements-dev.lock pyproject.toml -

clean:
	rm -rf $(VENV) build queuebell.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
