# make lab    install what is missing, open JupyterLab on the first chapter
# make test   install what is missing, run every check and test
# The rest is for those who write the course: `make help`.
# Without the network: make triton-legs LEGS=--allow-offline
# If python3 is too old or not the one you want: make lab PYTHON=/path/to/python3.13

PYTHON ?= python3
BIN := .venv/bin
PY := $(BIN)/python
# JupyterLab refuses to run as root unless told; containers have no other user.
LAB_FLAGS ?= $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: help lab test triton-legs notebooks fix html slides bench doctor zip clean
.DEFAULT_GOAL := help

help:
	@echo "make lab        install what is missing and open JupyterLab on the first chapter"
	@echo "make test       install what is missing and run every check and test"
	@echo "make triton-legs  the Triton tests on the other supported versions of Triton: fetches 3 GB"
	@echo "make notebooks  run every notebook from top to bottom, with times"
	@echo "make bench      time and memory of naive, tiled and SDPA attention on this CPU"
	@echo "make doctor     versions, chip, and what each chapter will do on this machine"
	@echo "make fix        bring notebooks, code and README into their one form"
	@echo "make html       the course as web pages, with results, in build/html"
	@echo "make slides     the lectures, in build/slides, for a browser without a network"
	@echo "make zip        flash-course.zip, to upload to Colab"
	@echo "make clean      remove .venv and everything built"

.venv/.ok: pyproject.toml constraints.txt tools/install.py
	@$(PYTHON) tools/install.py

# The settings in tools/lab: no question about news or updates covers the first cell.
lab: .venv/.ok
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb --LabApp.app_settings_dir=tools/lab $(LAB_FLAGS)

test: .venv/.ok
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PY) -m pytest

# The Triton tests on the oldest and the newest Triton, and the inner loops on the one their limits are for. Each is
# fetched once, 1 GB in build/. Some only: make triton-legs LEGS="3.6.0"
triton-legs: .venv/.ok
	$(PY) -m tools.triton_legs $(LEGS)

# Some only: make notebooks ONLY="03 04"
notebooks: .venv/.ok
	$(PY) -m tools.run_notebooks $(ONLY)

fix: .venv/.ok
	$(PY) -m tools.normal_form fix
	$(PY) -m tools.exercises
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(PY) -m tools.normal_form fix

html: .venv/.ok
	$(PY) -m tools.build_html

# Some only: make slides ONLY="03 04"
slides: .venv/.ok
	$(PY) -m tools.build_slides $(ONLY)

bench: .venv/.ok
	$(PY) -m flashlib bench --cpu

doctor: .venv/.ok
	$(PY) -m flashlib doctor

zip:
	git archive --format=zip --prefix=flash-course/ -o flash-course.zip HEAD
	@echo "flash-course.zip holds the last commit; upload it to /content on Colab"

clean:
	rm -rf .venv .venv-colab build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis flash-course.zip
