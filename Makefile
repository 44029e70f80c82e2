# Everything runs in .venv, which is made here from the first fitting Python on the PATH (3.11 or newer).
# `make PYTHON=/path/to/python3.12 test` chooses another; `make test ARGS='-k wake'` passes arguments on. Tests run in
# three processes a core (tests/conftest.py), eight at most; `ARGS='-n 0'` runs them in one, as a debugger wants it.

VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
# Python compiles what it imports, once; to compile all that is installed would take a quarter of the time.
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet
CANDIDATES := $(if $(PYTHON),$(PYTHON),python3.14 python3.13 python3.12 python3.11 python3)
NEEDS := import sys, venv, ensurepip, sqlite3, ssl; sys.exit(sys.version_info < (3, 11))
SUITE := trixie
SPREAD := -n auto --maxprocesses 8 --dist worksteal
ARGS :=

# Where bytecode is not kept, each of the hundreds of processes that the tests start compiles all of this anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-rest test-system test-long test-celery test-all test-fresh test-containers check bench peers mutants lock release site clean

help:
	@echo "make demo         set up and run the demonstration: real work, real processes, one killed half-way"
	@echo "make test         the tests that every change needs: three to four minutes on two cores"
	@echo "make test-rest    all other tests that need nothing but this checkout, and a sample of the mutants"
	@echo "make test-system  the tests that need a system package"
	@echo "make test-long    minutes more: what make test-rest shows, with other seeds"
	@echo "make test-celery  Celery's own tests with each of its pools, on our transport; needs redis-server"
	@echo "make test-all     hours: every interleaving of larger worlds, thousands of stories"
	@echo "make test-containers  both compose files, with bridges, brokers and databases killed; needs root and Docker's programs"
	@echo "make test-fresh   with SUITE=trixie: make demo and make test in a bare root of Debian; needs root and debootstrap"
	@echo "make mutants      change one thing at a time and see whether a test notices; ARGS=contract for one room"
	@echo "make check        types, style, and that the lock fits"
	@echo "make bench        the figures of bench/RESULTS.md, measured on this machine"
	@echo "make peers        the same beside Celery, taskiq, arq, PgQueuer and Procrastinate; ARGS='--out FILE' keeps it"
	@echo "make site         the documentation as a site with search, in site/; nothing in it is fetched from elsewhere"
	@echo "make lock         choose versions anew and write all locks"
	@echo "make release      with VERSION=1.2.3: build it, try it with each Python, and tag it; nothing is uploaded"
	@echo "make clean        remove what was made here"

demo: $(VENV)/runtime.stamp
	@$(BIN)/queuebell demo $(ARGS)

test: $(VENV)/dev.stamp
	@$(BIN)/python -m pytest $(SPREAD) $(ARGS)

test-system: $(VENV)/dev.stamp
	@$(BIN)/python -m pytest $(SPREAD) -m "system and not long" $(ARGS)

# Documents, examples, the demonstration, the bench, planted faults, workers of frameworks: not for every change, but for
# every submission (`.ci/run`).
test-rest: $(VENV)/dev.stamp
	@$(BIN)/python -m pytest $(SPREAD) -m "rest and not system and not long" $(ARGS)
	@$(MAKE) --no-print-directory mutants ARGS='small --sample'

# Minutes more: what repeats with other seeds what `make test-rest` shows.
test-long: $(VENV)/dev.stamp
	@$(BIN)/python -m pytest $(SPREAD) -m long $(ARGS)

# A quarter of an hour: its workers wait for each other most of the time.
test-celery: $(VENV)/dev.stamp
	@$(BIN)/python -m pytest -n 0 -m "" tests/queuebell/frameworks/celery $(ARGS)

# Hours: every interleaving of larger worlds, thousands of stories.
test-all: test test-rest test-long
	@QUEUEBELL_PROVE=1 $(BIN)/python -m pytest --timeout 36000 tests/exploration/test_exhaustive.py \
		tests/exploration/cluster/test_exhaustive.py
	@$(BIN)/python -m tests.exploration 5000 1000

# Five minutes, two of them for the images.
test-containers: $(VENV)/dev.stamp
	@.ci/containers

test-fresh:
	@.ci/fresh "$(SUITE)"

# An hour or two for all rooms, minutes for one (docs/explanation/verification.md#mutants).
mutants: $(VENV)/mutants.stamp
	@$(BIN)/python -m tests.mutants $(ARGS)

check: $(VENV)/dev.stamp
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m mypy
	@$(BIN)/python -m tests.docs.plain_words
	@$(BIN)/python -m pip --disable-pip-version-check check

bench: $(VENV)/dev.stamp
	@$(BIN)/python -m bench $(ARGS)

# Twelve minutes, and ten more in which all are left alone. Needs redis-server and PostgreSQL's programs besides.
peers: $(VENV)/dev.stamp $(PEERS)/peers.stamp
	@$(BIN)/python -m bench $(ARGS) peers

# The demonstration has a minute in all: it installs what runs, not what tests. The pip that comes with an older Python
# takes three times as long.
$(VENV)/runtime.stamp: requirements.lock pyproject.toml $(VENV)/pyvenv.cfg
	@echo "installing what queuebell runs on, by hash, into $(VENV)"
	@sed -n '/^pip==/,/[^\]$$/p' requirements.lock | $(PIP) install --no-compile --require-hashes -r /dev/stdin
	@$(PIP) install --no-compile --require-hashes -r requirements.lock
	@$(PIP) install --no-compile --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/dev.stamp: requirements-dev.lock $(VENV)/runtime.stamp
	@echo "installing what tests and checks it, by hash, into $(VENV)"
	@$(PIP) install --no-compile --require-hashes -r requirements-dev.lock
	@touch $@

$(VENV)/mutants.stamp: requirements-mutants.lock $(VENV)/dev.stamp
	@echo "installing what plants mutants, by hash, into $(VENV)"
	@$(PIP) install --no-compile --require-hashes -r requirements-mutants.lock
	@touch $@

$(PEERS)/peers.stamp: requirements-peers.lock $(VENV)/pyvenv.cfg
	@echo "installing what we are measured beside, by hash, into $(PEERS)"
	@$(BIN)/python -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip --disable-pip-version-check --no-input --quiet install --require-hashes -r requirements-peers.lock
	@touch $@

$(VENV)/site.stamp: requirements-site.lock $(VENV)/dev.stamp
	@echo "installing what builds the site, by hash, into $(VENV)"
	@$(PIP) install --no-compile --require-hashes -r requirements-site.lock
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

# Universal: one lock for all platforms and for 3.11 to 3.14. setuptools is in it because the checkout is installed
# without build isolation, which would fetch a second one that no hash covers. What runs includes the brokers' clients,
# which are small; the server of the extra `broker` has no wheel for some platforms, and would keep them from all of it.
# What we are measured beside (peers) wants other versions than ours of a client, and has an environment of its own.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-emit-find-links --no-header --no-annotate

lock: $(VENV)/dev.stamp
	@$(PIP) install --no-compile 'uv>=0.9'
	@rm -f requirements.lock requirements-all.lock requirements-dev.lock requirements-mutants.lock requirements-peers.lock \
		requirements-release.lock requirements-site.lock
	@printf 'pip>=26\nsetuptools>=77\n' | $(LOCK) --extra nats --extra mqtt --output-file requirements.lock pyproject.toml -
	@echo 'setuptools>=77' | $(LOCK) --constraint requirements.lock --extra all --output-file requirements-all.lock \
		pyproject.toml -
	@printf 'pip>=26\nsetuptools>=77\n' | $(LOCK) --constraint requirements-all.lock --all-extras \
		--output-file requirements-dev.lock pyproject.toml -
	@$(LOCK) --constraint requirements-dev.lock --group mutants --output-file requirements-mutants.lock
	@$(LOCK) --group peers --output-file requirements-peers.lock
	@$(LOCK) --constraint requirements-dev.lock --group release --output-file requirements-release.lock
	@$(LOCK) --constraint requirements-dev.lock --group site --output-file requirements-site.lock

site: $(VENV)/site.stamp
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@$(BIN)/python -m tests.docs.site site
	@echo "the site is in site/: $(BIN)/python -m http.server --bind 127.0.0.1 --directory site"

release: $(VENV)/pyvenv.cfg
	@deploy/release "$(VERSION)"

clean:
	rm -rf $(VENV) $(PEERS) build dist site queuebell.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
