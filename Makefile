# One command per need. Everything is set up in .venv first; a second set-up takes a fraction of a second.
#   make demo ARGS="--set train.epochs=2"     make verify PART=demo     make setup PYTHON=/usr/bin/python3.12

SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3,$(shell command -v $(p))))
BIN := .venv/bin
ARGS ?=
PART ?=
STAGES ?=
JSON ?=
ROWS ?=
PROFILE ?= laptop

# Libraries that set-up unpacked for a user without root; empty elsewhere.
unpacked = $(foreach d,$(wildcard .venv/lib-os/lib/*-linux-gnu .venv/lib-os/usr/lib/*-linux-gnu),$(abspath $(d)):)
ifneq ($(strip $(unpacked)),)
export LD_LIBRARY_PATH := $(subst : ,:,$(strip $(unpacked)))$(LD_LIBRARY_PATH)
endif

# Without compiled modules each process of the engine spends 13 s more of a core on its imports. The first one
# compiles what it imports; compiling the whole environment in set-up would take longer than it saves.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test lint format ui verify bench clean

help:
	@echo "make demo     set up, then retrain, measure and publish a draft on this machine (ARGS=... go to the run)"
	@echo "make test     set up, then lint, types and all tests"
	@echo "make setup    set up only"
	@echo "make lint     formatting, lint and types only"
	@echo "make ui       Prefect server, work pool, deployment, worker and MLflow, until Ctrl-C"
	@echo "make verify   what takes longer than a test; writes docs/verified.md (PART=... for one part)"
	@echo "make bench    our loops beside the plain way of doing the same (STAGES=stream ROWS=capture_rate JSON=file)"
	@echo "make clean    remove runs; published drafts stay"

setup:
	@test -n "$(PYTHON)" || { echo "set-up needs Python 3.11 or 3.12: apt-get install python3 python3-venv"; exit 2; }
	@$(PYTHON) .ci/set_up.py

demo: setup
	@$(BIN)/retrain-dspark run -p $(PROFILE) $(ARGS)

test: lint
	@$(BIN)/python -m pytest -m "not verify" -n 2 --dist loadfile $(ARGS)

lint: setup
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: setup
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

ui: setup
	@$(BIN)/retrain-dspark ui --worker $(ARGS)

verify: setup
	@$(BIN)/python tests/verify/run.py $(if $(PART),--part $(PART)) $(ARGS)

bench: setup
	@$(BIN)/python tests/bench/run.py $(if $(STAGES),--stages $(STAGES)) $(if $(ROWS),--rows $(ROWS)) $(if $(JSON),--json $(JSON))

clean:
	@test -x $(BIN)/retrain-dspark || { echo "nothing to clean: there is no .venv"; exit 0; } && \
		$(BIN)/retrain-dspark clean --keep 0 $(ARGS)
