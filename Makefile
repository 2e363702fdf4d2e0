# Commands for people and CI. Each performs the set-up that it needs.
#   make demo             install, sweep a few points of every family, write report.html
#   make tour             a larger demo with something for nearly every section of the report (about ten minutes)
#   make test             install, then lint, type-check and test; FAST=1 omits tests that need a framework or are slow
#   make test-long        statistical tests with enough draws to estimate error rates; run before a release
#   make test-pages       run every command of README and the tutorial, in order
#   make test-browser     open the pages of MLflow in Chromium, which is installed if it is missing
#   make test-frameworks  the same models in TensorFlow, JAX and PyTorch, in a separate environment
#   make test-cluster     tracking servers, PostgreSQL, Slurm and Ray, with drivers killed; installs missing packages
#   make test-oldest      the fast tests with the lowest versions that pyproject.toml admits
#   make test-newest      the fast tests with the newest versions, pre-releases included
#   make test-gpu         validate a GPU machine without a network; run make gpu-wheels before, with a network
#   make gate             is planning slower than at BASE (origin/main)?
#   make docs             build the documentation as a site, with a report of this machine: site/index.html
#   make ui               the MLflow UI on http://127.0.0.1:5000; set PORT=5001 if that port is taken
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 5000

.PHONY: demo tour docs test gate test-long test-pages test-browser test-frameworks test-cluster test-oldest test-newest test-gpu gpu-wheels lint lint-style format ui install install-dev benchmarks clean

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("ParaDnn needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing TensorFlow, MLflow and other requirements into $(VENV): one to three minutes"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(VENV)/.installed $@

demo: install
	$(BIN)/python -m paradnn.train -m experiment=quick
	$(BIN)/python -m analysis report --out report.html
	@echo
	@echo "Look at the runs:  make ui   prints the links to open"
	@echo "Measure your own:  $(BIN)/python -m paradnn.train -m model=lstm model.embedding_size=100,200 batch_size=16,64"

# An undecided comparison exits with 1, which is not a failure here.
tour: install
	$(BIN)/python -m paradnn.train -m experiment=tour
	$(BIN)/python -m paradnn.compare compile=graph compile=xla --minutes 1 -- model=fc model.nodes=256 batch_size=64 measure=quick || [ $$? = 1 ]
	$(BIN)/python -m analysis import-archive
	$(BIN)/python -m analysis report --out report.html
	@echo
	@echo "The report is $(CURDIR)/report.html: open it in a browser"

# Pages keep their paths below build/docs, so that the links between them work. `make demo` writes the report if it
# is missing.
docs: $(VENV)/.installed-docs $(if $(wildcard report.html),,demo)
	rm -rf build/docs site && mkdir -p build/docs
	cp -r --parents README.md CONTRIBUTING.md CHANGELOG.md docs benchmarks/README.md notebooks/analysis.ipynb \
	  analysis/claims report.html build/docs
	$(BIN)/python -c "import analysis; found = (getattr(analysis, name) for name in analysis.__all__); \
	  [print(f'\n::: {each.__module__}.{each.__name__}') for each in found if '.analyses.' in each.__module__]" >> build/docs/docs/reference/api.md
	$(BIN)/zensical build --strict
	@echo "Open site/index.html"

$(VENV)/.installed-docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

# Two test processes, since a driver's test mostly waits for another process. Each test file stays in one of them. mypy
# runs in parallel.
PROCESSES ?= 2
test: install-dev lint-style
	@log=$$(mktemp); $(BIN)/mypy > $$log 2>&1 & types=$$!; \
	$(BIN)/python -m pytest --cache-clear -n $(PROCESSES) --dist loadfile --no-loadscope-reorder \
	  $(if $(FAST),-m '$(FAST_MARKS)'); tests=$$?; \
	wait $$types; types=$$?; cat $$log; rm $$log; [ $$tests = 0 ] && [ $$types = 0 ]

# Compares processor time, which neighbors disturb less. Undecided (exit code 3) is not a failure. GATE holds further
# options, such as --markdown FILE.
BASE ?= origin/main
gate: install
	$(BIN)/paradnn gate --base $(BASE) --slower 10% --metric cpu --minutes 5 $(GATE) -- $(CURDIR)/$(BIN)/python -m paradnn.plan -m experiment=quick || [ $$? = 3 ]

test-long: install-dev
	$(BIN)/python -m pytest -n 2 -m long

test-pages: install-dev
	$(BIN)/python -m pytest -m pages tests/test_readme.py tests/test_wheel.py

# PICTURES=FOLDER saves a picture of each page there.
test-browser: install-dev
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  { $(APT) update -qq && $(APT) install -y -qq --no-install-recommends chromium; }
	BROWSER_PICTURES=$(PICTURES) $(BIN)/python -m pytest -m browser tests/browser

FRAMEWORKS := .venv-frameworks
test-frameworks: $(FRAMEWORKS)/.installed
	$(FRAMEWORKS)/bin/python -m pytest tests/worker/test_framework_agreement.py tests/worker/test_frameworks.py tests/worker/test_kernels.py tests/worker/test_engines.py tests/worker/test_data_parallel.py

$(FRAMEWORKS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,jax,torch,engines]'
	touch $@

# Both lanes ignore constraints.txt and resolve again each time. The ranges of pyproject.toml are what they showed.
FAST_MARKS := not framework and not slow and not pages and not long and not browser
test-oldest: RESOLUTION := --resolution lowest-direct
test-newest: RESOLUTION := --prerelease allow --upgrade
test-oldest test-newest: install-dev
	$(BIN)/python -m uv venv --quiet --clear --python $(BIN)/python .venv-$(@:test-%=%)
	$(BIN)/python -m uv pip install --quiet --python .venv-$(@:test-%=%)/bin/python $(RESOLUTION) -e '.[dev]'
	.venv-$(@:test-%=%)/bin/python -m pytest --cache-clear -n $(PROCESSES) --dist loadfile --no-loadscope-reorder -m '$(FAST_MARKS)'

# Installs missing packages of the distribution. RUNLEVEL=1 keeps their services from starting.
CLUSTER := .venv-cluster
CLUSTER_TESTS ?= tests/cluster
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
APT := $(SUDO) env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get
test-cluster: $(CLUSTER)/.installed
	@PATH="$$PATH:/usr/sbin:/sbin"; \
	missing=; for program in postgres:postgresql slurmctld:slurm-wlm munged:munge; do \
	  command -v $${program%%:*} >/dev/null || ls /usr/lib/postgresql/*/bin/$${program%%:*} >/dev/null 2>&1 || \
	  case " $$missing " in *" $${program##*:} "*) ;; *) missing="$$missing $${program##*:}";; esac; done; \
	if [ -n "$$missing" ]; then \
	  command -v apt-get >/dev/null || { echo "install these first:$$missing"; exit 1; }; \
	  $(APT) update -qq && $(APT) install -y -qq --no-install-recommends $$missing; fi
	$(CLUSTER)/bin/python -m pytest $(CLUSTER_TESTS)

$(CLUSTER)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(CLUSTER)
	$(CLUSTER)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,server,ray]'
	touch $@

# A GPU machine has its own PyTorch and JAX, and often no network. `gpu-wheels` downloads the other requirements, about
# 35 MiB per version in GPU_PYTHONS (the Python versions of that machine). `test-gpu` installs missing packages from
# there; it also runs as python3 -m tests.gpu. PLATFORM=cpu rehearses it without a GPU.
GPU := .gpu
GPU_PYTHONS ?= 3.12
GPU_PLATFORMS := $(foreach libc,17 27 28 34 35,--platform manylinux_2_$(libc)_x86_64) --platform manylinux2014_x86_64 --platform manylinux1_x86_64
GPU_PURE := absl-py cycler fonttools hydra-core keras markdown-it-py mdurl namex nvidia-ml-py omegaconf packaging pip pygments pyparsing \
  iniconfig pluggy pytest python-dateutil rich six typing_extensions
GPU_COMPILED := contourpy h5py kiwisolver matplotlib ml_dtypes optree pillow protobuf psutil PyYAML
PLATFORM ?= gpu

gpu-wheels:
	rm -rf $(GPU)/wheels
	$(PYTHON) -m pip wheel --quiet --no-deps -c constraints.txt -w $(GPU)/wheels antlr4-python3-runtime
	for version in $(GPU_PYTHONS); do \
	  $(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: -c constraints.txt -d $(GPU)/wheels \
	    --python-version $$version --implementation cp $(GPU_PLATFORMS) $(GPU_PURE) $(GPU_COMPILED) || exit; done
	du -sh $(GPU)/wheels

test-gpu:
	$(PYTHON) -m tests.gpu --platform $(PLATFORM)

lint: lint-style
	$(BIN)/mypy

lint-style: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

ui: install
	@$(BIN)/python -m paradnn.ui --port $(PORT)

benchmarks: install
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.repeatability
	$(BIN)/python -m benchmarks.fidelity
	$(BIN)/python -m benchmarks.ceilings

clean:
	rm -rf $(VENV) $(FRAMEWORKS) $(CLUSTER) $(GPU) build site .mypy_cache .pytest_cache .ruff_cache
