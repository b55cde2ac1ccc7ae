# Two commands matter: `make probe` and `make test`. Each sets up what it needs.
#
#   make probe BACKBONE=clip-rn50 DATA=food101 METHOD=mr2 SEEDS=5
#   make probe DATA=/my/images ARGS="--solver knn"
#   make finetune BACKBONE=clip-rn50 DATA=cars METHOD=mr2 GPUS=4
#   make compare BACKBONES="effnet-lite0 effnet-lite1" DATA=/my/pets METHODS="erm mr2 la cb" SEEDS=5
#   make improve BACKBONE=effnet-lite0 DATA=/my/pets BUDGET=0.5 MINUTES=20
#
# What people give reaches the commands through the environment, as it is: nothing in it is run, not by make
# (`$(shell ...)`) and not by the shell (`$(...)`, quotes, semicolons). ARGS is split into words as a shell
# would, and PYTHON is the program that makes .venv.

GIVEN := BACKBONE DATA METHOD SEEDS BACKBONES METHODS GPUS BUDGET MINUTES SECONDS SEED ONLY ARGS PYTHON
$(foreach name,$(GIVEN),$(if $(filter-out undefined,$(origin $(name))),$(eval override $(name) := $$(value $(name)))))

# Any other variable on the command line is a slip (GPU=2, DATAS=x) and would change nothing. The known name
# that differs from it by the fewest letters, at most two, is proposed. Names are looked at, values never.
STRANGE := $(strip $(foreach name,$(filter-out BIN READY DEV SHELL MAKE%,$(.VARIABLES)),\
	$(if $(filter command,$(origin $(name))),$(name))))
LETTERS := A/a B/b C/c D/d E/e F/f G/g H/h I/i K/k L/l M/m N/n O/o P/p R/r S/s T/t U/u Y/y
has = $(if $(findstring $(patsubst %/,%,$(dir $(1))),$(2))$(findstring $(notdir $(1)),$(2)),yes,no)
differences = $(subst $() ,,$(foreach l,$(LETTERS),$(if $(filter $(call has,$(l),$(1)),$(call has,$(l),$(2))),,x)))
nearest = $(firstword $(sort $(foreach name,$(GIVEN),$(call differences,$(1),$(name))/$(name))))
meant = $(if $(filter-out xxx%,$(nearest)),; did you mean $(notdir $(nearest))?,.)
$(if $(STRANGE),$(foreach name,$(firstword $(STRANGE)),$(error there is no variable $(name)$(call meant,$(name)) \
	Known are $(GIVEN); what else `probe` takes goes into ARGS)))

# The first run, which names neither data nor method: digits with a long tail, where one lever clearly helps.
ifeq ($(origin DATA) $(origin METHOD) $(origin ARGS),undefined undefined undefined)
probe: DATA := digits-lt
probe: METHOD := la
endif

BACKBONE ?= effnet-lite0
DATA ?= digits
METHOD ?=
SEEDS ?= 1
GPUS ?= 1
BACKBONES ?= $(BACKBONE)
METHODS ?= erm mr2
BUDGET ?= 0.5
MINUTES ?= 20
SECONDS ?= 600
SEED ?= 1
ONLY ?=
ARGS ?=
PYTHON ?= python3
export $(GIVEN)

BIN := .venv/bin
READY := .venv/.ready# what running needs
DEV := .venv/.dev# and what tests and linters need besides
# Python compiles what it imports; compiling all that is installed, most of it never used, is half of a set-up.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
SPLIT := import os, shlex, sys; os.execv(sys.argv[1], sys.argv[1:] + shlex.split(os.environ["ARGS"]))
WITH_ARGS := $(BIN)/python -c '$(SPLIT)'

# `--seeds "$SEEDS"` where SEEDS was given: the defaults above are of other commands.
said = $(if $(and $(filter override,$(origin $(1))),$(value $(1))),$(2) "$$$(1)")

.PHONY: probe finetune compare improve setup locked lock audit test test-slow torture lint docs bench sanity evidence clean
.DEFAULT_GOAL := probe

probe: $(READY)
	@$(WITH_ARGS) $(BIN)/probe run --backbone "$$BACKBONE" --data "$$DATA" --seeds "$$SEEDS" \
		$${METHOD:+--method "$$METHOD"}

finetune: $(READY)
	@$(WITH_ARGS) $(BIN)/probe run --finetune --gpus "$$GPUS" --backbone "$$BACKBONE" --data "$$DATA" \
		--seeds "$$SEEDS" $${METHOD:+--method "$$METHOD"}

compare: $(READY)
	@$(WITH_ARGS) $(BIN)/probe compare --backbones "$$BACKBONES" --data "$$DATA" --methods "$$METHODS" \
		--seeds "$$SEEDS"

improve: $(READY)
	@$(WITH_ARGS) $(BIN)/probe improve --backbone "$$BACKBONE" --data "$$DATA" --seeds "$$SEEDS" \
		--budget "$$BUDGET" --minutes "$$MINUTES"

setup: $(DEV)

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || "$$PYTHON" -m venv .venv
	@echo "Setting up .venv (once, a few minutes) ..."
	@$(PIP) -c constraints.txt -e '.[plots,letters]'
	@touch $@

$(DEV): $(READY)
	@echo "Adding what tests and linters need (once) ..."
	@$(PIP) -c constraints.txt -e '.[plots,letters,test,lint]'
	@touch $@

# The same from requirements.lock, every file checked against its checksum: what CI does.
locked:
	@test -x $(BIN)/python || "$$PYTHON" -m venv .venv
	@$(PIP) --require-hashes -r requirements.lock
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $(READY) $(DEV)

lock: $(DEV)
	$(BIN)/python .ci/lock.py

# Known weaknesses of the locked versions, by the package index's advisories; in an environment of its own.
audit:
	@test -x .venv-audit/bin/pip-audit || { "$$PYTHON" -m venv .venv-audit && .venv-audit/bin/pip install -q pip-audit; }
	.venv-audit/bin/pip-audit --require-hashes --disable-pip -r requirements.lock

# One test process per core, with one thread each: more would wait for each other.
test: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

test-slow: $(DEV)
	$(BIN)/python -m pytest -m slow

# Faults and bad input without mercy, for so many seconds; a lost case is named by its row, seed and number.
torture: $(DEV)
	@$(BIN)/python -m tests.torture --seconds "$$SECONDS" --seed "$$SEED" $${ONLY:+--only "$$ONLY"}

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation as a site, site/index.html; in an environment of its own, without torch.
docs: .venv-docs/.ready
	.venv-docs/bin/mkdocs build --strict --quiet

.venv-docs/.ready: .ci/docs.txt
	@test -x .venv-docs/bin/python || "$$PYTHON" -m venv .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -r .ci/docs.txt
	@touch $@

bench: $(DEV)
	$(WITH_ARGS) $(BIN)/python -m benchmarks

# Does every method of the catalogue train, by every way to a head? A table; fails where one does not.
sanity: $(DEV)
	$(WITH_ARGS) $(BIN)/python -m benchmarks.sanity

# What helps hard classes: every study of recipes/evidence, hours; go on with the same command. Figures to results/.
evidence: $(READY)
	@$(WITH_ARGS) $(BIN)/python -m benchmarks.evidence $(call said,SEEDS,--seeds) $(call said,MINUTES,--minutes) \
		$(call said,ONLY,--only)

clean:
	rm -rf .venv .venv-audit .venv-docs site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
