# Two commands do all the set-up; both may be repeated and then start in seconds.
#   make demo   a scaling study on this machine's CPUs
#   make test   everything the tests need, then every test
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Arguments for pytest, as in: make test PYTEST="tests/submit -x"
PYTEST ?=
# Where to take PyTorch from. Without a GPU the CPU build saves several GB; it has an index of its own.
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
SOURCES := pyproject.toml constraints.txt
# Containers often set it. Every process would compile this project anew, which takes longer than many a command.
unexport PYTHONDONTWRITEBYTECODE
# What Horovod is compiled for: make horovod FRAMEWORKS=tensorflow
FRAMEWORKS ?= torch

# $(call timed,what it does and how long that takes,command)
define timed
@echo "==> $(1)"; began=$$(date +%s); $(2) && echo "    done in $$(($$(date +%s) - began)) s: $(1)"
endef

.PHONY: help demo test lint types venv system-packages cluster-packages horovod clean cluster-up cluster-down

help:
	@echo "make demo    set up (about 4 min the first time), then a scaling study with 1, 2 and 4 ranks on this machine's CPUs"
	@echo "make test    set up the rest (SLURM and MPI too, as root), then lint, types and every test (about 45 min)"
	@echo "make cluster-up, cluster-down   a SLURM cluster of four nodes on this machine (as root), to try everything on"
	@echo "make lint    ruff        make types   mypy        make clean   remove $(VENV)"

demo: $(BIN)/.torch horovod
	@echo "==> A scaling study of a small network on 1,797 real handwritten digits: 1, 2 and 4 CPU ranks (about 1 min)"
	@source $(BIN)/activate && export CUDA_VISIBLE_DEVICES= && \
	  python -m hvdtrain.submit --cluster local --gpus 1,2,4 --job digits --wait && python -m analysis report runs/digits

# Beside each other: what waits for the network, and then what computes.
test:
	+@$(MAKE) --no-print-directory -j2 $(BIN)/.dev system-packages
	+@$(MAKE) --no-print-directory -j3 horovod lint types FRAMEWORKS=torch,tensorflow
	$(call timed,Tests (about 40 min on 2 cores),source $(BIN)/activate && python -m tests $(PYTEST))

lint: $(BIN)/.dev
	$(call timed,ruff,$(BIN)/ruff check . && $(BIN)/ruff format --check .)

types: $(BIN)/.dev
	$(call timed,mypy,$(BIN)/mypy)

# $(call supported,interpreter,modules that it must have,what to say otherwise): the oldest version is that of pyproject.toml
define supported
@$(1) -c 'import sys, $(2); sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { echo "$(3)"; exit 1; }
endef

# Where venv fails it may leave an interpreter, which would be taken for the whole environment from then on.
$(BIN)/python:
	$(call supported,$(PYTHON),os,$(PYTHON): hvdtrain needs Python 3.10 or newer; name one: make demo PYTHON=python3.11)
	$(call timed,Python environment in $(VENV) (5 s),$(PYTHON) -m venv $(VENV) || { rm -f $@; exit 1; })

# Without a GPU, and where its index answers, the CPU build of PyTorch.
$(BIN)/.torch: $(SOURCES) | $(BIN)/python
	$(call supported,$(BIN)/python,pip,$(VENV) is no environment of Python 3.10 or newer with pip: make clean VENV=$(VENV)$(,) then make demo PYTHON=python3.11)
	$(call timed,PyTorch$(,) Open MPI and what the report needs (1 to 2 min the first time),\
	  index=""; if ! command -v nvidia-smi >/dev/null && $(PYTHON) -c "import urllib.request as r; r.urlopen('$(TORCH_CPU_INDEX)/torch/'$(,) timeout=3)" 2>/dev/null; \
	  then index="--extra-index-url $(TORCH_CPU_INDEX)"; fi; \
	  $(PIP) install -q -c constraints.txt $$index -e '.[torch$(,)mpi]')
	@touch $@

$(BIN)/.dev: $(BIN)/.torch
	$(call timed,TensorFlow$(,) Keras and test tools (1 min),$(PIP) install -q -c constraints.txt -e '.[torch$(,)keras$(,)mpi$(,)data$(,)kernels$(,)dev]')
	@touch $@

horovod: $(BIN)/.torch
	$(call timed,Horovod for $(FRAMEWORKS) (2 min the first time$(,) then seconds),source $(BIN)/activate && hvdtrain build-horovod --frameworks $(FRAMEWORKS))

# SLURM for the tests that submit to a real cluster, Chromium for those that look at a report, 70,000 images for the jobs. As root on
# Debian or Ubuntu it is installed; elsewhere it is listed.
CLUSTER_PACKAGES := slurm-wlm munge slurmdbd mariadb-server libpmix-dev iproute2
PACKAGES := $(CLUSTER_PACKAGES) shellcheck chromium charliecloud dataset-fashion-mnist
# $(call packages,names,what needs them)
define packages
@missing=""; for package in $(1); do dpkg -s $$package >/dev/null 2>&1 || missing="$$missing $$package"; done; \
if [ -z "$$missing" ]; then exit 0; fi; \
if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
  echo "==> System packages:$$missing (1 min)"; \
  apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
else \
  echo "$(2) these system packages; install them, then type it again:$$missing"; exit 1; \
fi
endef
system-packages:
	$(call packages,$(PACKAGES),The tests need)

cluster-packages:
	$(call packages,$(CLUSTER_PACKAGES),A test cluster needs)

# A cluster for trying out: make cluster-up LINK=1gbit NAME=hvd. Ready in about 6 s; it needs neither PyTorch nor Horovod, jobs do.
NAME ?= hvd
LINK ?=
cluster-up: cluster-packages | $(BIN)/python
	@$(BIN)/python -m hvdtrain.testcluster up --name $(NAME) --accounting $(if $(LINK),--link $(LINK))

cluster-down: | $(BIN)/python
	@$(BIN)/python -m hvdtrain.testcluster down --name $(NAME)

clean:
	rm -rf $(VENV)

, := ,
