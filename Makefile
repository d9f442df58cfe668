# make demo   set up once, then the main job on real data
# make test   set up once, then lint, types, tests and every example in the docs
# make docs   set up once, then build the documentation into site/: open site/index.html (its search needs a server)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test lint types unit examples docs clean

help:
	@sed -n 's/^# make/make/p' Makefile

# Torch is pinned by the constraints file; everything else takes what the bounds allow.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench,dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/equipoise demo

test: lint types unit examples

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# One thread a worker: two workers on two cores, and the same numbers on any machine.
unit: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -W error -n 2 --dist worksteal -m 'not slow' --ignore tests/docs tests

# Sessions (>>>) of docstrings and pages; tests/docs runs the pages' other blocks and checks their commands.
examples: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -W error -m 'not slow' --doctest-modules --doctest-glob='*.md' \
		--ignore docs/figures --ignore docs/hooks src README.md CONTRIBUTING.md docs tests/docs

# What the site is built with stays out of what the tests need.
$(VENV)/.docs: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench,docs]'
	touch $@

# The notice about the generator's own future is not about this site. (--quiet would keep --strict from seeing warnings.)
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site src/*.egg-info
