# The whole of it: `make demo` shows what specc does, `make test` that it does it right.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: wheel-check gpu-check demo test scale parity parity-full parity-real parity-table answers readers browser pages providers fuzz lint measure waivers bench tables docs clean python

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

# data sets through Ray, which is half a gigabyte
scale: $(VENV)/dev
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[ray,dev,image]' 'tritonclient[grpc]'
	$(BIN)/python -m pytest -m scale -n 0

# tiny models: more than one thread per worker costs more than it gives
test parity parity-full parity-table: export OMP_NUM_THREADS := 1

parity: $(VENV)/parity
	$(BIN)/python -m pytest -m parity -n 2

parity-full: $(VENV)/parity
	$(BIN)/python -m pytest -m "parity or slow" -n 2

# checkpoints of your own, compared with transformers: SPECC_CHECKPOINTS=DIR make parity-real
parity-real: $(VENV)/parity
	@PYTHONPATH=tests:. $(BIN)/python -m support.checkpoint_comparison

# docs/parity.md: what the whole parity suite compares, and how far apart it is
parity-table: $(VENV)/parity
	rm -f .parity.jsonl
	SPECC_PARITY_RECORD=.parity.jsonl $(BIN)/python -m pytest -m "parity or slow" tests/parity -n 2
	$(BIN)/python docs/parity_table.py .parity.jsonl

# tests/kept/hf_outputs.npz: what transformers answers for a tiny checkpoint a family, which `make test` compares with
answers: $(VENV)/parity
	@PYTHONPATH=tests:. $(BIN)/python -m support.hf_output_recorder

# the programs that read our packages, each in a place of its own: Optimum needs an older transformers
readers: | python
	$(PYTHON) -m venv .readers/genai
	.readers/genai/bin/pip install -q onnxruntime-genai==0.18.0 torch==2.13.0 "transformers>=5,<6" onnx onnx_ir
	$(PYTHON) -m venv .readers/optimum
	.readers/optimum/bin/pip install -q "optimum-onnx[onnxruntime]==0.1.0" "transformers<4.58" torch==2.13.0
	npm install --silent --ignore-scripts --prefix .readers/node onnxruntime-web@1.30.0 @huggingface/transformers@4.3.1 playwright@1.65.1 \
	  vscode-textmate@9.3.2 vscode-oniguruma@2.0.1 yaml-language-server@2.0.0
	npm install --silent --ignore-scripts --no-package-lock --prefix editors/vscode
	$(PYTHON) -m venv .readers/openvino
	.readers/openvino/bin/pip install -q openvino==2026.4.1 numpy
	$(PYTHON) -m venv .readers/tract
	.readers/tract/bin/pip install -q tract==0.23.9 numpy
	$(PYTHON) -m venv .readers/mobius
	.readers/mobius/bin/pip install -q mobius-onnx==0.1.0 torch==2.13.0 "transformers>=5,<6" onnxruntime
	$(PYTHON) -m venv .readers/browser
	.readers/browser/bin/pip install -q playwright==1.65.2

# the page that runs models in a browser: static files in out/browser
browser: $(BIN)/specc
	npm install --silent --ignore-scripts --prefix .readers/node onnxruntime-web@1.30.0
	@sh docs/demos/browser/build.sh $(BIN)/specc .readers/node out/browser

# docs/providers.md: every shipped spec on each runtime that `make readers` has put there
providers: $(VENV)/dev
	@PYTHONPATH=tests:. $(BIN)/python -m support.provider_report

# pages in headless Chromium, which the system has or SPECC_CHROMIUM names; after `make readers`
pages: $(VENV)/dev
	$(BIN)/python -m pytest -m slow tests/drawing/test_pages_in_browser.py -n 0 -rs

# the wheel by itself, on the lowest versions of what it needs, and its page on the index
wheel-check: | python
	$(PYTHON) -m venv .wheel/tools
	.wheel/tools/bin/pip install -q --disable-pip-version-check build twine
	rm -rf .wheel/dist .wheel/lowest
	.wheel/tools/bin/python -m build -q --outdir .wheel/dist .
	.wheel/tools/bin/twine check --strict .wheel/dist/*
	$(PYTHON) -m venv .wheel/lowest
	.wheel/lowest/bin/pip install -q --disable-pip-version-check .wheel/dist/*.whl $$($(PYTHON) tests/support/lowest_versions.py)
	cd .wheel && sh ../tests/support/wheel.sh lowest/bin/specc

# random examples, other ones in each run; `make test` takes fixed ones
fuzz: $(VENV)/dev
	$(BIN)/python -m pytest -m slow --hypothesis-profile=random tests/fuzz tests/properties -n 2
	$(BIN)/python -m pytest -m "hypothesis and not slow and not parity" --hypothesis-profile=random -n 2

# every built-in spec on an NVIDIA GPU, and its speed, written to docs/gpu-report.md. WHEELS=DIR
# installs packages from a directory if there is no package index.
gpu-check: | python
	@command -v nvidia-smi >/dev/null || { echo "no NVIDIA GPU was found, so nothing was run"; exit 0; }; \
	  test -x .gpu/bin/python || $(PYTHON) -m venv --system-site-packages .gpu; \
	  .gpu/bin/pip install -q --disable-pip-version-check $(if $(WHEELS),--no-index --find-links $(WHEELS)) \
	    "onnxruntime-gpu[cuda,cudnn]>=1.24" pyyaml lark ml_dtypes onnx numpy hatchling && \
	  .gpu/bin/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e . && \
	  .gpu/bin/python benchmarks/gpu_check.py $(ARGS)

lint: $(VENV)/parity
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# sizes, density, complexity and imports of everything but tests; nothing is installed for it
measure: | python
	@$(PYTHON) tests/support/measure.py

# waivers of the fences that nothing needs any more are taken out of the list
waivers: | python
	@PYTHONPATH=tests $(PYTHON) -m support.lint_rules

# benchmarks/results.md, beside the programs that `make readers` has put there:
# make bench ONLY=families,lowbits QUICK=1
bench: $(VENV)/parity
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[bench,parity,dev,image]'
	for peer in ctranslate2 onnxruntime-genai openvino-genai llama-cpp-python; do \
	  $(BIN)/python -m pip install -q --disable-pip-version-check $$peer || echo "$$peer is left out"; done
	$(BIN)/python benchmarks/run.py $(if $(ONLY),--only $(ONLY)) $(if $(QUICK),--quick)

# the documentation as a site, in build/site
docs: $(VENV)/dev
	test -x .site/bin/zensical || { $(PYTHON) -m venv .site && .site/bin/pip install -q --disable-pip-version-check zensical==0.0.73; }
	@PYTHONPATH=tests:. $(BIN)/python docs/build_site.py --zensical $(abspath .site/bin/zensical)

tables: $(VENV)/dev
	$(BIN)/python -m docs.generators.lalr_table
	$(BIN)/python -m specc.library.std_library specs
	$(BIN)/python docs/tables.py
	$(BIN)/python docs/notebooks.py

clean:
	rm -rf $(VENV) .wheel .readers build dist out
