# make demo   set up once, then the main job on real data
# make test   set up once, then lint, types, tests and every example in the docs
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test lint types unit examples clean

help:
	@sed -n 's/^# //p' Makefile

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
	OMP_NUM_THREADS=1 $(BIN)/pytest -W error -n 2 --dist worksteal -m 'not slow' tests

examples: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -W error --doctest-modules --doctest-glob='*.md' src README.md CONTRIBUTING.md docs

clean:
	rm -rf $(VENV) build dist src/*.egg-info
