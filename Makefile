# The one entry to the project: every recipe below is a command that you could type yourself.
#
#   make demo    three servers at work on real text: the leader is killed, nothing is lost (FILE=… for your own)
#   make examples        every example on real text; the same view in every language, all with the same tables at the end
#   make test    all tests that a change must pass: about 20 minutes on two cores from nothing
#   make check   format, lints, licences, each file's own tests, a hundred simulated clusters; make lint without the tests
#   make nightly all that takes hours: many seeds, loom, planted bugs, the model, mutants, long fuzzing, attacks on a server,
#                a soak of three, the release wheel
#   make model   every state that a cluster of three to five can reach, within bounds; SIZE=3 one size alone
#   make sim     simulated clusters: SEED=7 shows one run, SEEDS=0..2000 runs many and prints figures
#   make wheel   the Python wheel, into target/wheels/;  make wheel-dev   one for this machine alone, built faster, into
#                target/wheels-test/;  make sdist   its sources;  make test-python   its tests alone;
#                make test-wheel, test-sdist   before a release
#   make install-server  the server below PREFIX=/usr/local; its configuration is /etc/chiplog/chiplog.toml, below DESTDIR if that is set
#   make lib     the C library, into target/c/;  make install-lib   below PREFIX=;  make install   the C library and the server
#   make deb     the server as a Debian package, into target/deb/;  make static   as one static program, into target/static/
#   make bench   measures this machine's disk and the log on it;  make bars   the bars of docs/performance.md

CARGO ?= cargo
# Seconds each fuzz target runs in `make fuzz`; `make test` gives each three.
SECONDS_EACH ?= 60
TOOLS := $(CURDIR)/target/tools
# The commit that `--version` shows; empty in sources that are no checkout. Only builds for users and measurements get it: in tests
# each commit would compile the server again.
CHIPLOG_COMMIT ?= $(if $(wildcard .git),$(shell git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null))
demo demo-tiered bench bars-core bench-python attacks soak deb static: export CHIPLOG_COMMIT := $(CHIPLOG_COMMIT)

# Below target/: the tools that build the Python wheel, and a fresh environment in which it is installed.
PYTHON ?= python3
BUILD_VENV := $(CURDIR)/target/venv-build
TEST_VENV := $(CURDIR)/target/venv-test
# An environment with nothing except a wheel.
EMPTY_VENV := $(CURDIR)/target/venv-empty
MATURIN := $(BUILD_VENV)/bin/maturin
# Tests use the development profile, whose dependencies `make unit` has built; the release wheel uses another.
WHEEL_PROFILE ?= dev

.PHONY: help all lib install install-lib install-server deb static wheel wheel-dev sdist test-sdist test-wheel test-python check-free-threaded third-party bench-c bench-python bars-core demo demo-tiered examples test unit sim sim-bugs sim-porcupine check-alerts model mutants attacks soak nightly nightly-bugs nightly-sim nightly-crash nightly-fuzz bench bars pictures check lint fmt deny fuzz fuzz-short loom loom-short miri doc clean

help: ## this list
	@sed -n '/^#   /s/^#   //p' $(firstword $(MAKEFILE_LIST))

all: lint test

demo: ## three servers, the leader killed in mid-append. FILE=path uses another text, DIR=path keeps their data there
	@echo "building the release binaries; the first time this takes 15 minutes of processor time or so, half of it for the last crate, chiplog-server"
	@$(CARGO) build --release --package chiplog-server --package chiplog-example-cluster
	@$(or $(CARGO_TARGET_DIR),target)/release/chiplog-example-cluster \
	  $(if $(DIR),"$(DIR)") $(if $(FILE),--file "$(FILE)") $(DEMO_FLAGS)

demo-tiered: ## older records in a bucket; all servers and their disks are lost, and the log comes back. FILE=, DIR= as for demo
	@echo "building the release binaries; the first time this takes 15 minutes of processor time or so, after make demo 11; half of it is for the last crate, chiplog-server"
	@$(CARGO) build --release --package chiplog-server --package chiplog-example-tiered
	@$(or $(CARGO_TARGET_DIR),target)/release/chiplog-example-tiered \
	  $(if $(DIR),"$(DIR)") $(if $(FILE),--file "$(FILE)") $(DEMO_FLAGS)

# Built in the same way as the tests, so that the results of `make test` are reused. Views in languages whose tools are missing
# are skipped, and the output says so; the list of views is examples/run/src/views.rs.
EXAMPLES := embedded tenants cluster run
examples: ## every example on real text, one after the other. RUN_FLAGS="--records 1000000 --views rust,go" for the views
	@echo "building the examples; the first time this takes some minutes"
	@$(CARGO) build --quiet --package chiplog-server --package chiplog-example-view $(EXAMPLES:%=--package chiplog-example-%)
	@$(CARGO) build --quiet --package chiplog-net --example client
	@set -e; dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; cd "$$dir"; "$(CURDIR)/target/debug/chiplog-example-embedded"; \
	  "$(CURDIR)/target/debug/chiplog-example-tenants"
	@target/debug/chiplog-example-cluster $(if $(FILE),--file "$(FILE)")
	@PYTHON=$(PYTHON) MAKE=$(MAKE) examples/small.sh target/debug
	@PYTHON=$(PYTHON) target/debug/chiplog-example-run $(if $(FILE),--file "$(FILE)") $(RUN_FLAGS)

# Each part beside the test programs leaves a processor idle at times. The wheel comes first: several parts need it.
BESIDE := test-python sim-bugs fuzz-short loom-short
test: wheel-dev ## all tests
	CARGO=$(CARGO) MAKE=$(MAKE) $(PYTHON) tools/run_tests.py $(BESIDE:%=--beside %) $(TESTED)

TESTED := --workspace --features chiplog/testing
unit: ## the tests in Rust, C, Go and Java alone, without the wheel's
	CARGO=$(CARGO) $(PYTHON) tools/run_tests.py $(TESTED)

# Programs as `make unit` builds them. A package by itself has fewer features, and cargo would compile third-party crates once
# more. The one test is named because tests enable features, too.
DEBUG := $(or $(CARGO_TARGET_DIR),target)/debug
BUILT := $(CARGO) build --quiet $(TESTED) --test architecture --bin

$(MATURIN):
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: PYTHON=path")'
	$(PYTHON) -m venv $(BUILD_VENV)
	$(BUILD_VENV)/bin/pip install --quiet --disable-pip-version-check 'maturin==1.16.0' 'ziglang==0.15.2'

wheel: $(MATURIN) ## the Python wheel, for any Linux of this kind with Python 3.11 or newer: target/wheels/
	@echo "building the release wheel; the first time this takes 9 minutes of processor time or so"
	cd python && PATH=$(BUILD_VENV)/bin:$$PATH $(MATURIN) build --release --zig --compatibility manylinux2014 --out ../target/wheels

sdist: $(MATURIN) ## the sources as a package, of which pip makes a wheel if Rust is installed: target/wheels/
	cd python && $(MATURIN) sdist --out ../target/wheels

# Third-party crates are taken from those that are built already; pip itself fetches what builds the wheel. The package's files
# have old modification times, for which cargo would reuse the build of an earlier package: -m sets the current time.
SDIST_VENV := $(CURDIR)/target/venv-sdist
SDIST_FILES := $(CURDIR)/target/sdist
test-sdist: sdist ## builds a wheel of the package, installs it into an empty environment, and uses it there
	rm -rf $(SDIST_VENV) $(SDIST_FILES) && $(PYTHON) -m venv $(SDIST_VENV) && mkdir $(SDIST_FILES)
	tar -xmzf "$$(ls -t target/wheels/chiplog-*.tar.gz | head -n 1)" -C $(SDIST_FILES) --strip-components=1
	CARGO_TARGET_DIR=$(CURDIR)/target MATURIN_PEP517_ARGS="--profile $(WHEEL_PROFILE)" \
	  $(SDIST_VENV)/bin/pip install --quiet --disable-pip-version-check --no-cache-dir $(SDIST_FILES)
	cd target && $(SDIST_VENV)/bin/python -c 'import chiplog, tempfile; \
	  log = chiplog.Log(tempfile.mkdtemp()); assert log.append(b"x") == 1; log.close(); print(chiplog.__version__, chiplog.__file__)'

# Moved when it is complete: another test can be installing it.
wheel-dev: $(MATURIN) ## a wheel for tests, on this machine only: target/wheels-test/
	cd python && $(MATURIN) build --quiet --profile $(WHEEL_PROFILE) --compatibility linux --out ../target/wheels-test/new.$$$$ && \
	  mv ../target/wheels-test/new.$$$$/*.whl ../target/wheels-test/ && rmdir ../target/wheels-test/new.$$$$

# Installs the newest wheel of a directory, and nothing else, into an environment of its own, and runs the READMEs' lines there.
run-alone = rm -rf $(EMPTY_VENV) && $(PYTHON) -m venv $(EMPTY_VENV) && \
  $(EMPTY_VENV)/bin/pip install --quiet --disable-pip-version-check --no-index "$$(ls -t $(1)/chiplog-*.whl | head -n 1)" && \
  $(EMPTY_VENV)/bin/python python/tests/readme.py

# In `make nightly`: the release build takes some minutes.
test-wheel: wheel ## builds the release wheel, installs it without an index into an empty environment, and uses it there
	$(call run-alone,target/wheels)

# There may be no such interpreter here: a file describes one to PyO3. All other crates are those that `make lint` has checked.
check-free-threaded: ## the package compiles for an interpreter without a global lock
	PYO3_CONFIG_FILE=$(CURDIR)/python/free-threaded.pyo3 $(CLIPPY)

test-python: wheel-dev ## builds the wheel, installs it into fresh environments, and checks its tests, types and stubs there
	$(call run-alone,target/wheels-test)
	rm -rf $(TEST_VENV) && $(PYTHON) -m venv $(TEST_VENV)
	$(TEST_VENV)/bin/pip install --quiet --disable-pip-version-check -r python/tests/requirements.txt \
	  "$$(ls -t target/wheels-test/chiplog-*.whl | head -n 1)"
	$(BUILT) chiplog
	cd python && CHIPLOG=$(CURDIR)/target/debug/chiplog $(TEST_VENV)/bin/pytest -q -p no:cacheprovider $(PYTEST_FLAGS)
	cd python && MYPYPATH=examples $(TEST_VENV)/bin/mypy --strict --cache-dir ../target/mypy examples tests bench
	cd target && $(TEST_VENV)/bin/python -m mypy.stubtest chiplog

bench-python: wheel ## the bars of the Python package, with a release build: text, and target/bars-python.json
	rm -rf $(TEST_VENV) && $(PYTHON) -m venv $(TEST_VENV)
	$(TEST_VENV)/bin/pip install --quiet --disable-pip-version-check -r python/tests/requirements.txt \
	  "$$(ls -t target/wheels/chiplog-*.whl | head -n 1)"
	$(CARGO) build --quiet --release --package chiplog-server --package chiplog-bench
	CHIPLOG=$(CURDIR)/target/release/chiplog $(TEST_VENV)/bin/python python/bench/bench.py --json-file target/bars-python.json

SEEDS ?= 0..1000
HISTORIES ?= 0..100
SIM := $(CARGO) run --quiet --release --package chiplog-sim --
sim: ## simulated clusters: SEED=n shows the story of one run (SIM_FLAGS="--steps --log" for all of it), SEEDS=a..b runs many and prints figures (SIM_FLAGS=--json)
	$(if $(SEED),$(SIM) run $(SEED) $(SIM_FLAGS),$(SIM) range $(SEEDS) $(SIM_FLAGS))

sim-bugs: ## plants one bug after the other into the log: the simulator must find each
	$(BUILT) chiplog-sim
	RUST_BACKTRACE=0 $(DEBUG)/chiplog-sim bugs $(SEEDS) $(BUGS_FLAGS)

# Exhaustive within its bounds. MODEL_FLAGS instead of SIZE sets other bounds: MODEL_FLAGS="--voters 2 --without word".
SIZE ?= all
model: ## a model of introductions, membership and removal, every state checked: SIZE=3, 4, 5 or all
	$(CARGO) run --quiet --package chiplog-model -- $(or $(MODEL_FLAGS),--size $(SIZE))

# The histories of runs, checked by a program that shares no code with this project.
sim-porcupine: ## needs go
	@if command -v go >/dev/null; then set -e; \
	  rm -rf target/histories; $(CARGO) run --quiet --package chiplog-sim -- export $(HISTORIES) target/histories; \
	  (cd tools/porcupine && go test ./... && go build -o $(CURDIR)/target/porcupine .); \
	  find target/histories -name '*.jsonl' | sort | xargs target/porcupine; \
	else echo "no go here: the histories were NOT checked by porcupine"; fi

# promtool is part of Prometheus; Debian has it in the package prometheus.
check-alerts: ## the rules of docs/monitoring/alerts.yml against histories of clusters; needs promtool
	@if command -v promtool >/dev/null; then \
	  promtool check rules docs/monitoring/alerts.yml && promtool test rules docs/monitoring/alerts.test.yml; \
	else echo "no promtool here: the alert rules were NOT checked"; fi

# Both run real servers, with release builds, below target/load.
LOAD = $(CARGO) build --quiet --release --package chiplog-server --package chiplog-load && \
  $(or $(CARGO_TARGET_DIR),target)/release/chiplog-load
attacks: ## what well-behaved clients get beside each attack, compared with what they get alone: text, and target/attacks.json. ATTACKS_FLAGS="garbage --secs 10"
	$(LOAD) attacks --json-file target/attacks.json $(ATTACKS_FLAGS)

MINUTES ?= 30
soak: ## three servers under load and faults: nothing lost, memory and descriptors flat: text, and target/soak.json. MINUTES=, SOAK_FLAGS="--objects --durability object --seed 7"
	$(LOAD) soak --minutes $(MINUTES) --json-file target/soak.json $(SOAK_FLAGS)

# Continues where it stopped; known results are in tools/mutants.json.
MUTANTS ?= 300
MUTANTS_SEED ?= 1
mutants: export PATH := $(TOOLS)/bin:$(PATH)
mutants: ## small changes of the consensus state machine, one at a time: a test must fail. A sample of MUTANTS= by MUTANTS_SEED=, MUTANTS_FLAGS=--survivors
	@command -v cargo-mutants >/dev/null || \
	  $(CARGO) install --locked --debug --quiet --root $(TOOLS) --target-dir $(TOOLS)/build cargo-mutants
	CARGO=$(CARGO) nice -n 15 $(PYTHON) tools/mutants.py --count $(MUTANTS) --seed $(MUTANTS_SEED) $(MUTANTS_FLAGS)

# Each part runs even if another one fails.
NIGHTLY := deny loom nightly-bugs check-alerts model nightly-sim nightly-crash nightly-fuzz mutants attacks soak test-wheel
nightly: ## all that takes too long for `make test`, one after the other
	@failed=; for part in $(NIGHTLY); do echo "== $$part"; \
	  $(MAKE) --no-print-directory $$part || failed="$$failed $$part"; done; \
	  if [ -n "$$failed" ]; then echo "FAILED:$$failed"; exit 1; fi; echo "all of it is well: $(NIGHTLY)"

nightly-bugs:
	@$(MAKE) --no-print-directory sim-bugs BUGS_FLAGS=--in-order

nightly-sim:
	@$(MAKE) --no-print-directory sim SEED= SEEDS=0..10000

nightly-crash:
	CHIPLOG_CRASH_STATES=1000000 $(CARGO) test $(TESTED) --test crash -- --nocapture

nightly-fuzz:
	@$(MAKE) --no-print-directory fuzz SECONDS_EACH=600

bench: ## workloads beside the machine's own limits, on a directory below target/ (DIR=path for another disk)
	$(CARGO) run --quiet --release --package chiplog-bench -- $(if $(DIR),--dir "$(DIR)") \
	  --json-file target/bench.json $(BENCH_FLAGS)

# The network bars start the server's program. Select bars by name: BARS_FLAGS="net_alone idle".
bars: bars-core $(if $(BARS_FLAGS),,bench-c bench-python) ## figures beside the machine's own limits, each measured in the same run

bars-core:
	$(CARGO) build --quiet --release --package chiplog-server --package chiplog-bench
	$(RELEASE)/chiplog-bench bars --json-file target/bars.json $(BARS_FLAGS)

bench-c: ## the bars of the C library: text, and target/bars-c.json
	$(CARGO) bench --quiet --package chiplog-ffi -- --dir $(CURDIR)/target --json-file $(CURDIR)/target/bars-c.json

PLOT_VENV := $(CURDIR)/target/venv-plot
pictures: ## draws the results of `make bench` and `make bars`: target/appends.svg, bars.svg and network.svg
	$(PYTHON) -m venv $(PLOT_VENV) && $(PLOT_VENV)/bin/pip install --quiet --disable-pip-version-check matplotlib
	$(PLOT_VENV)/bin/python tools/plot.py run target/bench.json target/appends.svg
	$(PLOT_VENV)/bin/python tools/plot.py bars target/bars.json target/bars.svg
	$(PLOT_VENV)/bin/python tools/plot.py connections target/bars.json target/network.svg

# The C library. Its version, for file names and the pkg-config file.
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
PREFIX ?= /usr/local
# `dev` for tests of programs in C: then it is what `make unit` has built already.
LIB_PROFILE ?= release
ifneq ($(LIB_PROFILE),dev)
install-server: export CHIPLOG_COMMIT := $(CHIPLOG_COMMIT)
endif
BUILD_LIB = $(if $(filter dev,$(LIB_PROFILE)),$(CARGO) build --quiet $(TESTED) --test architecture --lib,$(CARGO) build --profile $(LIB_PROFILE) --package chiplog-ffi $(LIB_FEATURES))
LIB_ARCHIVE = $(or $(CARGO_TARGET_DIR),target)/$(patsubst dev,debug,$(LIB_PROFILE))/libchiplog_ffi.a
lib: ## libchiplog.so and libchiplog.a, stripped, with header, pkg-config file and CMake package, below target/c; debug information in lib/.debug
	$(BUILD_LIB)
	ffi/install.sh $(LIB_ARCHIVE) $(abspath $(or $(CARGO_TARGET_DIR),target))/c $(VERSION)

install: install-lib install-server ## the C library and the server below PREFIX (DESTDIR= for packagers)

install-lib: ## the C library alone, as `make lib` makes it
	$(BUILD_LIB)
	ffi/install.sh $(LIB_ARCHIVE) $(PREFIX) $(VERSION) $(DESTDIR)

install-server: ## the server alone: program, manual pages, completions, unit, configuration, alert rules
	$(CARGO) build --profile $(LIB_PROFILE) --package chiplog-server
	server/install.sh $(dir $(LIB_ARCHIVE))chiplog $(PREFIX) $(DESTDIR)

# cargo-deb makes the archive of the files that server/package.sh puts together. It finds out what the program depends on by
# dpkg-shlibdeps (dpkg-dev): at least the C library of the machine that builds. The debug information stays beside the package.
CARGO_DEB := 3.8.0
RELEASE = $(or $(CARGO_TARGET_DIR),target)/release
deb: export PATH := $(TOOLS)/bin:$(PATH)
deb: ## the server as a Debian package, for this release of Debian and later ones: target/deb/
	@[ "$$(cargo-deb --version 2>/dev/null)" = "cargo-deb $(CARGO_DEB)" ] || \
	  $(CARGO) install --locked --debug --quiet --root $(TOOLS) --target-dir $(TOOLS)/build cargo-deb@$(CARGO_DEB)
	$(CARGO) build --release --package chiplog-server
	server/package.sh $(RELEASE)/chiplog target/deb
	$(CARGO) deb --quiet --package chiplog-server --no-build --no-strip --output target/deb/

# rustc's own target with glibc (2.34 or newer) inside. A musl target has to be downloaded by rustup. zig, which links the
# wheel, brings musl but no Rust standard library for it, and its glibc cannot be linked statically. musl's allocator is slower,
# too. The flags hold for the last crate alone: all others are those of any release build.
static: ## the server as one static program, for any Linux of this processor: target/static/chiplog
	mkdir -p target/static
	$(CC) -Wall -Wextra -Werror -O2 -fPIE -c server/dist/static.c -o target/static/static.o
	$(CARGO) rustc --release --package chiplog-server --bin chiplog -- \
	  -C target-feature=+crt-static -C link-arg=$(CURDIR)/target/static/static.o
	server/strip.sh $(RELEASE)/chiplog target/static/chiplog.new target/static/chiplog.debug
	mv target/static/chiplog.new target/static/chiplog
	cp LICENSE THIRD-PARTY.txt target/static/

CLIPPY := $(CARGO) clippy --workspace --all-targets --features chiplog/testing -- -D warnings
lint: ## format, lints, licences
	$(CARGO) fmt --all --check
	$(CLIPPY)
	$(CARGO) clippy --quiet --package chiplog -- -D warnings # as programs that embed it build it
	$(MAKE) --no-print-directory check-free-threaded
	CARGO=$(CARGO) $(PYTHON) tools/third_party.py --check

check: lint ## while you work: lints, each file's own tests, a hundred simulated clusters
	$(CARGO) test --quiet $(TESTED) --lib --bins
	CHIPLOG_SIM_SEEDS=100 $(CARGO) test --quiet $(TESTED) --test sim no_violation

third-party: ## writes THIRD-PARTY.txt, after dependencies have changed
	CARGO=$(CARGO) $(PYTHON) tools/third_party.py

fmt:
	$(CARGO) fmt --all

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --features chiplog/testing

# Licences, sources and duplicates of all dependencies, and known advisories if their list can be fetched. The last line records what has
# passed: the gate builds cargo-deny only if a dependency has changed since.
deny: export PATH := $(TOOLS)/bin:$(PATH)
deny:
	command -v cargo-deny >/dev/null || \
	  $(CARGO) install --locked --debug --quiet --root $(TOOLS) --target-dir $(TOOLS)/build cargo-deny
	$(CARGO) deny check --hide-inclusion-graph bans licenses sources
	if $(CARGO) deny fetch db 2>/dev/null; then $(CARGO) deny check --disable-fetch advisories; \
	  else echo "advisories NOT checked: their list cannot be fetched from here"; fi
	sha256sum Cargo.lock deny.toml >tools/deny.sum

# libFuzzer is guided by coverage and needs nightly and cargo-fuzz. Without them the same targets run under a seeded mutator on
# stable Rust.
FUZZ_TARGETS := batch block segment sessions command follow wire peer authority recovery ffi
fuzz:
	@if $(CARGO) +nightly fuzz --version >/dev/null 2>&1; then \
	  set -e; for t in $(FUZZ_TARGETS); do \
	    $(CARGO) +nightly fuzz run --features libfuzzer $$t fuzz/work/$$t fuzz/corpus/$$t -- -max_total_time=$(SECONDS_EACH); done; \
	else \
	  echo "no nightly Rust with cargo-fuzz here: running the targets under the built-in mutator"; \
	  $(CARGO) run --quiet --release --package chiplog-fuzz -- --seconds $(SECONDS_EACH); fi

fuzz-short:
	$(BUILT) chiplog-fuzz
	$(DEBUG)/chiplog-fuzz --seconds 3

# Every interleaving where callers, the writer and readers meet: the queue, a block's completion, the positions. Only the log's own
# crate is compiled with cfg(loom), so that nearly all third-party crates are those of all tests.
loom: ## every interleaving: minutes of processor time
	program=$$($(CARGO) rustc --package chiplog --features testing --lib --profile test --message-format json-render-diagnostics \
	  -- --cfg loom | sed -n 's/.*"name":"chiplog".*"executable":"\([^"]*\)".*/\1/p') && \
	  [ -n "$$program" ] && cd core && "$$program" loom_

# Up to five preemptions in each run; nearly all races need no more than two. Models with a bound of their own keep it.
loom-short: export LOOM_MAX_PREEMPTIONS := 5
loom-short: loom

# The codecs, under an interpreter that detects undefined behaviour. It does not support mappings and futexes.
MIRI_TESTS ?= store::format replica::state::session_table::tests types
miri:
	@if $(CARGO) +nightly miri --version >/dev/null 2>&1; then \
	  MIRIFLAGS="-Zmiri-disable-isolation" $(CARGO) +nightly miri test --package chiplog --lib --target-dir target/miri -- $(MIRI_TESTS); \
	else echo "no nightly Rust with Miri here: nothing run"; fi

clean:
	$(CARGO) clean
