# Two commands matter: `make probe` and `make test`. Each sets up what it needs.
#
#   make probe BACKBONE=clip-rn50 DATA=food101 METHOD=mr2 SEEDS=5
#   make probe DATA=/my/images ARGS="--solver knn"
#   make finetune BACKBONE=clip-rn50 DATA=cars METHOD=mr2 GPUS=4
#   make compare BACKBONES="effnet-lite0 effnet-lite1" DATA=/my/pets METHODS="erm mr2 la cb" SEEDS=5
#
# What people give reaches the commands through the environment, quoted: no name can become shell code.

BACKBONE ?= effnet-lite0
DATA ?= digits
METHOD ?=
SEEDS ?= 1
GPUS ?= 1
BACKBONES ?= $(BACKBONE)
METHODS ?= erm mr2
SECONDS ?= 600
SEED ?= 1
ONLY ?=
ARGS ?=
PYTHON ?= python3
export BACKBONE DATA METHOD SEEDS BACKBONES METHODS GPUS SECONDS SEED ONLY

BIN := .venv/bin
READY := .venv/.ready

.PHONY: probe finetune compare setup test test-slow torture lint bench clean
.DEFAULT_GOAL := probe

probe: $(READY)
	@$(BIN)/probe run --backbone "$$BACKBONE" --data "$$DATA" --seeds "$$SEEDS" \
		$(if $(METHOD),--method "$$METHOD") $(ARGS)

finetune: $(READY)
	@$(BIN)/probe run --finetune --gpus "$$GPUS" --backbone "$$BACKBONE" --data "$$DATA" --seeds "$$SEEDS" \
		$(if $(METHOD),--method "$$METHOD") $(ARGS)

compare: $(READY)
	@$(BIN)/probe compare --backbones "$$BACKBONES" --data "$$DATA" --methods "$$METHODS" --seeds "$$SEEDS" $(ARGS)

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Setting up .venv (once, a few minutes) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,lint]'
	@touch $@

test: $(READY)
	$(BIN)/python -m pytest

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

# Faults and bad input without mercy, for so many seconds; a lost case is named by its row, seed and number.
torture: $(READY)
	@PYTHONPATH=tests:. $(BIN)/python -m torture --seconds "$$SECONDS" --seed "$$SEED" \
		$(if $(ONLY),--only "$$ONLY")

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
