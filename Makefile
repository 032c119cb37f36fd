# Development tasks: `make demo` shows what specc does, and `make test` runs the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: wheel-check gpu-check demo test scale parity parity-full parity-real parity-table reference-outputs other-runtimes browser pages providers fuzz lint measure waivers bench tables docs clean python

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "specc needs Python 3.11 or newer; this is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }

$(BIN)/specc: pyproject.toml | python
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[image]'
	@touch $@

$(VENV)/dev: $(BIN)/specc
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev,image]'
	@touch $@

$(VENV)/parity: $(VENV)/dev
	@$(BIN)/python -m pip install -q --disable-pip-version-check torch==2.13.0
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[parity,dev,image]'
	@touch $@

demo: $(BIN)/specc
	@sh docs/demos/demo.sh $(BIN)/specc

test: $(VENV)/dev
	$(BIN)/python -m pytest -n 2

# batch inference with Ray, a package of half a gigabyte
scale: $(VENV)/dev
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[ray,dev,image]' 'tritonclient[grpc]'
	$(BIN)/python -m pytest -m scale -n 0

# one thread per test worker, because more threads are slower for small models
test parity parity-full parity-table: export OMP_NUM_THREADS := 1

parity: $(VENV)/parity
	$(BIN)/python -m pytest -m parity -n 2

parity-full: $(VENV)/parity
	$(BIN)/python -m pytest -m "parity or slow" -n 2

# compare your own checkpoints with transformers: SPECC_CHECKPOINTS=DIR make parity-real
parity-real: $(VENV)/parity
	@PYTHONPATH=tests:. $(BIN)/python -m support.checkpoint_comparison

# docs/parity.md: the models that the parity tests compare, and the largest differences
parity-table: $(VENV)/parity
	rm -f .parity.jsonl
	SPECC_PARITY_RECORD=.parity.jsonl $(BIN)/python -m pytest -m "parity or slow" tests/parity -n 2
	$(BIN)/python docs/parity_table.py .parity.jsonl

# tests/kept/hf_outputs.npz: recorded outputs of transformers, for one small checkpoint per model family. `make test`
# compares specc with these outputs.
reference-outputs: $(VENV)/parity
	@PYTHONPATH=tests:. $(BIN)/python -m support.hf_output_recorder

# install the runtimes and exporters that the tests and benchmarks compare with, in separate environments, because
# Optimum needs an older version of transformers
other-runtimes: | python
	$(PYTHON) -m venv .other-runtimes/genai
	.other-runtimes/genai/bin/pip install -q onnxruntime-genai==0.18.0 torch==2.13.0 "transformers>=5,<6" onnx onnx_ir
	$(PYTHON) -m venv .other-runtimes/optimum
	.other-runtimes/optimum/bin/pip install -q "optimum-onnx[onnxruntime]==0.1.0" "transformers<4.58" torch==2.13.0
	npm install --silent --ignore-scripts --prefix .other-runtimes/node onnxruntime-web@1.30.0 @huggingface/transformers@4.3.1 playwright@1.65.1 \
	  vscode-textmate@9.3.2 vscode-oniguruma@2.0.1 yaml-language-server@2.0.0
	npm install --silent --ignore-scripts --no-package-lock --prefix editors/vscode
	$(PYTHON) -m venv .other-runtimes/openvino
	.other-runtimes/openvino/bin/pip install -q openvino==2026.4.1 numpy
	$(PYTHON) -m venv .other-runtimes/tract
	.other-runtimes/tract/bin/pip install -q tract==0.23.9 numpy
	$(PYTHON) -m venv .other-runtimes/mobius
	.other-runtimes/mobius/bin/pip install -q mobius-onnx==0.1.0 torch==2.13.0 "transformers>=5,<6" onnxruntime
	$(PYTHON) -m venv .other-runtimes/browser
	.other-runtimes/browser/bin/pip install -q playwright==1.65.2

# build the web page that runs models in a browser: static files in out/browser
browser: $(BIN)/specc
	npm install --silent --ignore-scripts --prefix .other-runtimes/node onnxruntime-web@1.30.0
	@sh docs/demos/browser/build.sh $(BIN)/specc .other-runtimes/node out/browser

# docs/providers.md: every built-in spec on each runtime that `make other-runtimes` has installed
providers: $(VENV)/dev
	@PYTHONPATH=tests:. $(BIN)/python -m support.provider_report

# test the HTML pages in headless Chromium (an installed Chromium, or SPECC_CHROMIUM=PATH); needs `make other-runtimes`
pages: $(VENV)/dev
	$(BIN)/python -m pytest -m slow tests/drawing/test_pages_in_browser.py -n 0 -rs

# test the wheel with the lowest supported versions of its dependencies, and check its metadata with twine
wheel-check: | python
	$(PYTHON) -m venv .wheel/tools
	.wheel/tools/bin/pip install -q --disable-pip-version-check build twine
	rm -rf .wheel/dist .wheel/lowest
	.wheel/tools/bin/python -m build -q --outdir .wheel/dist .
	.wheel/tools/bin/twine check --strict .wheel/dist/*
	$(PYTHON) -m venv .wheel/lowest
	.wheel/lowest/bin/pip install -q --disable-pip-version-check .wheel/dist/*.whl $$($(PYTHON) tests/support/lowest_versions.py)
	cd .wheel && sh ../tests/support/wheel.sh lowest/bin/specc

# property tests with new random examples in each run; `make test` uses fixed examples
fuzz: $(VENV)/dev
	$(BIN)/python -m pytest -m slow --hypothesis-profile=random tests/fuzz tests/properties -n 2
	$(BIN)/python -m pytest -m "hypothesis and not slow and not parity" --hypothesis-profile=random -n 2

# check and time every built-in spec on an NVIDIA GPU, and write docs/gpu-report.md. WHEELS=DIR installs packages from a
# directory if there is no package index.
gpu-check: | python
	@command -v nvidia-smi >/dev/null || { echo "no NVIDIA GPU found, so no check was run"; exit 0; }; \
	  test -x .gpu/bin/python || $(PYTHON) -m venv --system-site-packages .gpu; \
	  .gpu/bin/pip install -q --disable-pip-version-check $(if $(WHEELS),--no-index --find-links $(WHEELS)) \
	    "onnxruntime-gpu[cuda,cudnn]>=1.24" pyyaml lark ml_dtypes onnx numpy hatchling && \
	  .gpu/bin/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e . && \
	  .gpu/bin/python benchmarks/gpu_check.py $(ARGS)

lint: $(VENV)/parity
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# measure size, density, complexity and imports of the product code; needs no packages
measure: | python
	@$(PYTHON) tests/support/measure.py

# remove the waivers of lint rules that no code needs any more from tests/waivers.txt
waivers: | python
	@PYTHONPATH=tests $(PYTHON) -m support.lint_rules

# run the benchmarks and write benchmarks/results.md; also measures the runtimes that `make other-runtimes` has
# installed. Example: make bench ONLY=families,lowbits QUICK=1
bench: $(VENV)/parity
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[bench,parity,dev,image]'
	for peer in ctranslate2 onnxruntime-genai openvino-genai llama-cpp-python; do \
	  $(BIN)/python -m pip install -q --disable-pip-version-check $$peer || echo "$$peer is not available and is not measured"; done
	$(BIN)/python benchmarks/run.py $(if $(ONLY),--only $(ONLY)) $(if $(QUICK),--quick)

# build the documentation site in build/site
docs: $(VENV)/dev
	test -x .site/bin/zensical || { $(PYTHON) -m venv .site && .site/bin/pip install -q --disable-pip-version-check zensical==0.0.73; }
	@PYTHONPATH=tests:. $(BIN)/python docs/build_site.py --zensical $(abspath .site/bin/zensical)

tables: $(VENV)/dev
	$(BIN)/python -m docs.generators.lalr_table
	$(BIN)/python -m specc.library.std_library specs
	$(BIN)/python docs/tables.py
	$(BIN)/python docs/notebooks.py

clean:
	rm -rf $(VENV) .wheel .other-runtimes build dist out
