# make demo        raw text to a fine-tuned BERT, in minutes     make demo MINUTES=3
# make reproduce   a table of the paper in small, in minutes     make reproduce ARGS="table8"
# make test        the tests, in two processes                   make test ARGS="tests/cli/test_cli.py -x"
#                                                                make test TESTERS=0 (in one)
# make test-all    the long and the slow ones too (many minutes)
# make check       lint, format, types
# make check-bugs  bugs that were mended, put back one at a time; a test must fail each time
# make test-wheel  the tests against an installed wheel           make test-wheel ARGS="tests/test_shipped.py"
# make container-steps  the container's steps in a fresh environment
# make site        the documentation site, in build/site, without the network
# make notebooks   notebooks/ executed, and written with their outputs (ten minutes or so)
# make check-all   all of these but notebooks, which test-all executes: check, test-all,
#                  check-bugs, test-wheel, container-steps, site (an hour or so)
#
# Everything is installed into .venv, with the versions of constraints.txt, on first use.
# Another interpreter (3.11 or newer): make demo PYTHON=python3.13 (before .venv exists)
#
# torch is installed first and alone, so that no other package pulls another build of it. On Linux
# the registry's default build brings several GB of CUDA libraries. For the CPU build:
#     PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo
# or have the build you want in .venv already (python3 -m venv .venv; .venv/bin/pip install ...).

PYTHON ?= python3
MINUTES ?= 7
ARGS ?=
TESTERS ?= 2

# Containers often set this, and every process that a test starts would compile each module again.
export PYTHONDONTWRITEBYTECODE =

PIP := .venv/bin/pip --disable-pip-version-check --quiet

# The interpreter is chosen when .venv is made; another one later would be ignored without a word.
version = $(shell $(1) -c 'import sys; print(sys.version_info[:2])')
ifneq ($(origin PYTHON),file)
ifneq ($(wildcard .venv/bin/python),)
ifneq ($(call version,$(PYTHON)),$(call version,.venv/bin/python))
$(error .venv was made with another Python than $(PYTHON); remove .venv to set it up again)
endif
endif
endif

.PHONY: help demo reproduce test test-all check check-bugs test-wheel container-steps site notebooks check-all

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo: .venv/.runtime
	.venv/bin/bothways demo --minutes $(MINUTES) $(ARGS)

reproduce: .venv/.runtime
	.venv/bin/bothways reproduce $(or $(ARGS),table5)

test: .venv/.dev
	.venv/bin/pytest -n $(TESTERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-all: .venv/.dev
	.venv/bin/pytest -n $(TESTERS) --dist loadfile --no-loadscope-reorder -m "" $(ARGS)

check: .venv/.dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

check-bugs: .venv/.dev
	.venv/bin/python scripts/check_bugs.py $(ARGS)

test-wheel: .venv/.dev
	PYTHON=.venv/bin/python scripts/test_wheel.sh -n $(TESTERS) --dist loadfile --no-loadscope-reorder $(ARGS)

container-steps:
	rm -rf build/container
	PYTHON=$(PYTHON) container/install.sh . build/container

# Every warning is an error: a broken link, a page outside the navigation, a docstring that is no reST.
site: .venv/.dev
	rm -rf build/site  # a page that is not read again would not warn again
	.venv/bin/python scripts/write_names.py
	.venv/bin/python -m sphinx -q -W --keep-going -c docs/site . build/site
	@echo "build/site/index.html"

notebooks: .venv/.dev
	.venv/bin/python scripts/run_notebooks.py $(ARGS)

check-all: check test-all check-bugs test-wheel container-steps site

# A stamp is made last, so that an installation that was broken off is done again.
.venv/.torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "bothways needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.12")'
	@echo "setting up .venv (first time: a minute or two)"
	@test -x .venv/bin/pip || $(PYTHON) -m venv .venv
	@$(PIP) install "$$(grep '^torch==' constraints.txt)"
	@touch $@

.venv/.runtime: .venv/.torch pyproject.toml
	@echo "installing bothways into .venv"
	@$(PIP) install --constraint constraints.txt --editable '.[train]'
	@touch $@

.venv/.dev: .venv/.runtime
	@echo "installing the development tools into .venv"
	@$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@touch $@
