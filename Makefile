# `make demo` and `make test` are the two commands: from a fresh clone on Debian 12 each sets up everything it needs.
.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-vllm test-deepspeed docs wheel bench crash faults soak hostile fuzz mutation coverage
.PHONY: sbom format lint clean

PYTHON_BIN := .venv/bin/python
FUZZ_SECONDS ?= 600

help:
	@echo 'make demo     set up, build, then save and load a model: progress, verification, a table and a chart'
	@echo 'make test     set up, then run every test: C++ (release, ASan+UBSan, TSan), fuzz targets, Python,'
	@echo '              real checkpoints (downloads 330 MB once; skipped without a network), checks'
	@echo '              STAGES="release python" runs some of them'
	@echo
	@echo 'make test-vllm'
	@echo '              vLLM and SGLang with weights that penstock reads, in .venv-vllm (made here, 3.5 GB)'
	@echo 'make test-deepspeed'
	@echo '              trainings by DeepSpeed that are killed and resumed, in .venv-deepspeed (made here, 1 GB);'
	@echo '              from then on `make test` has these tests too'
	@echo
	@echo 'make setup    Debian packages and the Python environment .venv'
	@echo 'make build    the Python package and the penstock command, installed in .venv'
	@echo 'make docs     the site of docs/ in build/site, every link checked'
	@echo 'make wheel    a manylinux wheel for the Python of .venv and a source distribution, tested, in dist/'
	@echo 'make bench    the measured race against other loaders: an hour and a half; BENCH="--quick" takes two minutes'
	@echo '              BENCH="--races engine,shapes --rounds 9" and other arguments are passed on, see bench/README.md'
	@echo
	@echo 'make crash    saves that are killed at every step, filesystems whose power is cut: docs/reliability.md'
	@echo 'make faults   loads and saves in which every single call fails once; full disks, limits, dead servers'
	@echo 'make soak     an hour of loads, saves, cancels and forks at once, with faults'
	@echo 'make hostile  files made to attack whoever reads them'
	@echo 'make fuzz     every fuzz target for FUZZ_SECONDS ($(FUZZ_SECONDS))'
	@echo 'make mutation breaks the code, an operator at a time, and counts what the tests notice'
	@echo 'make coverage lines and branches that the tests reach, in build/coverage'
	@echo '              these take arguments: CRASH="--help", FAULTS=, SOAK=, HOSTILE=, MUTATION=, COVERAGE='
	@echo 'make sbom     what penstock is made of, with licences, as CycloneDX in dist/'
	@echo 'make format   formats C++ and Python'
	@echo 'make lint     format check, ruff, mypy, clang-tidy'
	@echo 'make clean    removes what was built, keeps the environments'

setup:
	@scripts/setup.sh

build:
	@scripts/setup.sh build
	@scripts/install_package.sh

demo: build
	@$(PYTHON_BIN) scripts/demo.py $(DEMO)

test: setup
	@$(PYTHON_BIN) scripts/test.py $(STAGES)

test-vllm test-deepspeed: test-%: setup
	@scripts/setup.sh $*
	@$(PYTHON_BIN) scripts/test.py $*

docs: build
	@scripts/setup.sh docs
	@.venv-docs/bin/python scripts/docs/build.py

wheel: setup
	@$(PYTHON_BIN) scripts/wheel.py

bench: build
	@scripts/setup.sh bench
	@scripts/build_native.sh release
	@$(PYTHON_BIN) bench/race.py $(BENCH)

fuzz: setup
	@$(PYTHON_BIN) scripts/fuzz.py --seconds $(FUZZ_SECONDS)

crash: build
	@$(PYTHON_BIN) proof/kills.py $(CRASH)
	@$(PYTHON_BIN) proof/power.py $(CRASH)

faults: build
	@$(PYTHON_BIN) proof/faults.py $(FAULTS)

soak: build
	@$(PYTHON_BIN) proof/soak.py $(SOAK)

hostile: build
	@$(PYTHON_BIN) proof/hostile.py $(HOSTILE)

mutation: setup
	@$(PYTHON_BIN) proof/mutation.py $(MUTATION)

coverage: setup
	@$(PYTHON_BIN) proof/coverage.py $(COVERAGE)

sbom: setup
	@$(PYTHON_BIN) scripts/sbom.py

format: setup
	@scripts/format.sh

lint: setup
	@scripts/build_native.sh release
	@$(PYTHON_BIN) scripts/test.py lint
	@scripts/tidy.sh

clean:
	rm -rf build demo results dist
