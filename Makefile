# Every target sets up what it needs first: a .venv with pinned versions.
# PIP_FLAGS goes to pip. On Linux x86 without a GPU, point it at PyTorch's index of CPU wheels to save several GB.
PYTHON ?= python3
PIP_FLAGS ?=
# The public address of the repository, for the links in the README of a package.
ADDRESS ?=
# What must not be skipped by `make test`: "packages" that it installs itself; "browser" where one is sure to be there.
OCIL_NO_SKIP ?= packages
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TEST_READY := $(VENV)/.ready-test
# pip compiles what it installs in one process, which takes as long as the installation: see compile.
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_FLAGS) --constraint constraints.txt
TYPES = $(BIN)/mypy && $(BIN)/lint-imports
TYPES_LOG = $(VENV)/types.log
# Tests write thousands of small files and wait until a disk has them. Where memory has room, it takes them instead, and
# only those of a test that failed stay there. Ray writes for as long as it runs, and is left out.
IN_MEMORY = $(if $(TMPDIR),,$(shell [ ! -w /dev/shm ] || grep -qs ' /dev/shm .*noexec' /proc/mounts || df -Pm /dev/shm | awk 'NR == 2 && $$4 > 2000 {print "TMPDIR=/dev/shm RAY_TMPDIR=/tmp"}'))
# Of every package with a plugin for pytest, each process would rewrite all modules: only the two that are used are named.
PYTEST = $(IN_MEMORY) OMP_NUM_THREADS=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(BIN)/python -m pytest -p xdist -p hypothesispytest -n 2 --dist worksteal -o tmp_path_retention_policy=failed

# Every process that tests start would compile ocil again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo docs package test quick lint style types format clean

help:  ## what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(READY)  ## create .venv and install ocil with its pinned dependencies

# An older pip, as Python brings along, takes half as long again. What is installed is compiled on all cores, but for
# what no command needs: tests of packages and large parts of others. Some files are for newer versions of Python.
UNUSED = /tests/|/torch/(testing/_internal|_inductor)/|/ray/(data|llm|rllib|serve|train|tune)/|/(fontTools|graphql|mypyc?|onnxruntime|torchgen)/|/sympy/physics/|/pygments/lexers/|/scipy/signal/|/onnx/backend/|/numpy/distutils/
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ocil needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 2; }
	@echo "Installing into $(VENV): pip prints nothing meanwhile, and takes 1 to 5 minutes."
	@[ "`uname -s`-`uname -m`" != Linux-x86_64 ] || [ -n "$(PIP_FLAGS)" ] || command -v nvidia-smi >/dev/null || echo "PyTorch comes with 5.6 GB of CUDA packages here. To get its CPU build, stop and give pip the address of PyTorch's CPU wheels: make PIP_FLAGS='--extra-index-url ADDRESS' ..."
	$(PYTHON) -m venv $(VENV)
	@$(INSTALL) 'pip>=25' || echo "The pip that is there does as well."
	$(INSTALL) --editable '.[$(1)]'
	@$(BIN)/python -m compileall -qq -j 0 -x '$(UNUSED)' $(VENV)/lib || true
	@touch $(READY)
endef

# `make test` installs once: .[test] has all that .[dev] has.
$(READY): pyproject.toml constraints.txt | $(if $(filter test,$(MAKECMDGOALS)),$(TEST_READY))
	$(call install,dev)

$(TEST_READY): pyproject.toml constraints.txt
	$(call install,test)
	@touch $(TEST_READY)

demo: $(READY)  ## fine-tuning, ER and AFS on the embedded dataset: a table and a picture (about 2 minutes on 2 cores)
	$(BIN)/ocil compare fine-tune er afs --seeds 3 --out runs/demo

docs: $(READY)  ## build the documentation into site/: open site/index.html, search works offline
	@$(BIN)/python -c 'import mkdocs, material, mkdocstrings' 2>/dev/null || $(INSTALL) --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean  # --quiet would hide warnings from its strictness
	@echo "site/index.html"

package: $(READY)  ## build sdist and wheel into dist/, install the wheel into a fresh environment and use it there
	@$(INSTALL) 'setuptools>=77'
	PIP_FLAGS='$(PIP_FLAGS)' $(BIN)/python tools/check_package.py --address '$(ADDRESS)'

# Types and layers are checked beside the tests, and what is found is printed after them. Style takes a second.
test: $(TEST_READY) style  ## every check and every test, as continuous integration runs them (under 15 minutes on 2 cores)
	@echo "mypy and lint-imports run beside the tests: what they print follows at the end."
	@{ $(TYPES); } >$(TYPES_LOG) 2>&1 & types=$$!; \
	OCIL_NO_SKIP=$(OCIL_NO_SKIP) $(PYTEST); tests=$$?; \
	wait $$types; types=$$?; echo "$(TYPES)"; cat $(TYPES_LOG); \
	[ $$types -eq 0 ] || echo "mypy or lint-imports failed: see above."; \
	[ $$tests -eq 0 ] || echo "The tests failed: see above."; \
	[ $$types -eq 0 ] && [ $$tests -eq 0 ]

quick: style  ## ruff and the tests that are not slow (4 to 6 minutes on 2 cores)
	$(PYTEST) -m 'not slow'

lint: style types  ## ruff, mypy --strict, import-linter

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(TYPES)

format: $(READY)  ## let ruff format and mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove what make made
	rm -rf $(VENV) .npm runs/demo site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
