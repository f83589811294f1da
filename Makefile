# make demo        raw text to a fine-tuned BERT, in minutes     make demo MINUTES=3
# make reproduce   a table of the paper in small, in minutes     make reproduce ARGS="table8"
# make test        the tests, in two processes                   make test ARGS="tests/cli/test_cli.py -x"
#                                                                make test TESTERS=0 (in one)
# make test-all    the slow ones too (many minutes)
# make check       lint, format, types
#
# Everything is installed into .venv, with the versions of constraints.txt, on first use.
# Another interpreter (3.11 or newer): make demo PYTHON=python3.13 (before .venv exists)
#
# torch is installed first and alone, so that no other package pulls another build of it. On Linux
# the registry's default build brings several GB of CUDA libraries. For the CPU build, take the index
# address for "CPU" from PyTorch's "Get started" page and set PIP_EXTRA_INDEX_URL to it before make;
# or have the build you want in .venv already (python3 -m venv .venv; .venv/bin/pip install ...).

PYTHON ?= python3
MINUTES ?= 7
ARGS ?=
TESTERS ?= 2

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

.PHONY: help demo reproduce test test-all check

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo: .venv/.runtime
	.venv/bin/bothways demo --minutes $(MINUTES) $(ARGS)

reproduce: .venv/.runtime
	.venv/bin/bothways reproduce $(or $(ARGS),table5)

test: .venv/.dev
	.venv/bin/pytest -n $(TESTERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-all: .venv/.dev
	.venv/bin/pytest -n $(TESTERS) --dist loadfile --no-loadscope-reorder -m "slow or not slow" $(ARGS)

check: .venv/.dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

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
