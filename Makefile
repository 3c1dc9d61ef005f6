# Two commands matter: `make up` and `make test`. `make help` explains the rest.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

TARGET := target/x86_64-unknown-linux-gnu/debug
TESTBED := $(TARGET)/testbed
CARGO_DENY_VERSION := 0.20.2
CARGO_MACHETE_VERSION := 0.9.2
TYPOS_VERSION := 1.52.0
MDBOOK_VERSION := 0.5.4
ACTIONLINT_VERSION := v1.7.12
# Independent tests run in parallel. They wait for the cluster most of the time, so more threads than cores are useful.
E2E_THREADS ?= 6
# Each of these tests starts a Slurm cluster.
OPERATOR_THREADS ?= 6
# Each of these tests needs its own cluster; there are this many (TEST_CLUSTERS of testbed).
ALONE_THREADS ?= 4
# Durations of the steps of `make test`.
TIMINGS := $(CURDIR)/target/timings
# Tests that passed only when they were repeated.
SECOND_TRIES := $(CURDIR)/target/second-tries

.PHONY: help up down env test test-unit test-charts test-e2e test-docs test-slurm test-chaos chaos simulate crash-points replay defects
.PHONY: bench lint lint-workflows chart-readmes docs images build operator valgrind release-test

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):[^#]*## /\1\t/' | awk -F'\t' '{printf "  %-14s %s\n", $$1, $$2}'

up: ## Bring up a Kubernetes cluster on this machine, install the operator and Slurm on it, run a job
	@hack/step 'build our programs (about ten minutes the first time)' $(MAKE) --no-print-directory build operator
	@hack/step 'Kubernetes, images and three nodes (about 15 minutes the first time)' $(TESTBED) up
	@eval "$$($(TESTBED) env)"; hack/step 'install the operator and Slurm, run a job (about half a minute)' hack/demo
	@echo 'look around: eval "$$(make -s env)" && kubectl get pods -A'

down: build ## Remove the cluster of `make up` and its state
	$(TESTBED) down

env: ## Print shell commands that give kubectl and helm access to the cluster: eval "$(make -s env)"
	@$(TESTBED) env

# Cargo prints what it compiles, and one line when nothing changed.
build:
	@cargo build --workspace --bins --examples

operator:
	@cargo build --profile image --package slurm-operator --package slurm-agent

test: ## Everything CI runs: lint, unit tests, then the real cluster (needs root; an hour on a fresh machine, 40 minutes on a warm one)
	@mkdir -p target && rm -f $(TIMINGS) $(SECOND_TRIES)
	@export TESTBED_TIMINGS=$(TIMINGS) TESTBED_SECOND_TRIES=$(SECOND_TRIES); \
	hack/step 'build' $(MAKE) --no-print-directory build; \
	hack/step 'lint' $(MAKE) --no-print-directory lint; \
	hack/step 'valgrind' $(MAKE) --no-print-directory valgrind; \
	hack/step 'unit tests' $(MAKE) --no-print-directory test-unit; \
	hack/step 'images and Kubernetes' $(TESTBED) build; \
	hack/step 'build the operator for its image' $(MAKE) --no-print-directory operator; \
	hack/step 'chart tests' $(MAKE) --no-print-directory test-charts; \
	hack/step 'end-to-end tests' $(MAKE) --no-print-directory test-e2e; \
	hack/step 'one minute of chaos' $(MAKE) --no-print-directory test-chaos; \
	$(TESTBED) slowest $(TIMINGS); \
	if [ -s $(SECOND_TRIES) ]; then echo 'passed only when repeated, each shows a defect to find:'; cat $(SECOND_TRIES); fi

# Property tests use the same cases in every run, so that a failure is due to the change.
test-unit: export PROPTEST_RNG_SEED ?= 1
test-unit: ## Tests that need no cluster and no root (a minute)
	cargo test --package testbed --quiet --lib --bins
	cargo test --workspace --quiet --exclude testbed --tests
	cargo test --workspace --quiet --exclude testbed --bench reconcile

test-charts: build ## Helm's own checks, our unit tests of the charts, our definitions on Kubernetes 1.29 (seconds)
	@export PATH="$$($(TESTBED) tools):$$PATH"; \
	helm lint --quiet --strict charts/slurm-operator-crds charts/slurm charts/slurm-operator; \
	helm-unittest --strict charts/slurm charts/slurm-operator; \
	hack/install-yaml
	@# Go does not notice that the definitions have changed, and would repeat an old result.
	@cd hack/apiextensions-1.29 && go test -count=1 ./...

test-e2e: build operator ## Tests on a cluster of their own; T=filter runs some of them
	@trap '$(TESTBED) down-tests' EXIT; \
	$(TESTBED) rights --forget; \
	hack/suite e2e $(E2E_THREADS) $(T); \
	hack/suite operator $(OPERATOR_THREADS) $(T); \
	hack/suite alone $(ALONE_THREADS) $(T); \
	[ -n "$(T)" ] || $(TESTBED) rights

test-docs: build operator ## Run the commands of the documentation on a cluster, as a reader would (docs/testing.md); P='login jobs' runs some pages
	@trap '$(TESTBED) down-tests' EXIT; \
	PAGES='$(P)' cargo test --quiet --package testbed --test operator -- --exact pages::every_page_works_as_written --include-ignored --nocapture

# Installation, jobs, scaling under a job, live and other changes of the configuration, restarts, standbys and accounting.
SLURM_TESTS := chart:: partitions_live::partitions_change scaling::a_scale_in_continues restarts::a_ standbys:: accounting::
# Clusters of another release must not be up; their images are built once.
test-slurm: build operator ## A part of the tests with another release of Slurm: VERSION=24.11 (docs/versioning.md)
	@export TESTBED_SLURM=$(or $(VERSION),24.11); \
	trap '$(TESTBED) down-tests' EXIT; $(TESTBED) down-tests; \
	hack/suite operator 3 $(SLURM_TESTS)

# As in hack/suite, a failure is repeated once and listed.
test-chaos: ## A sample of `make chaos`: one minute of faults
	@$(MAKE) --no-print-directory chaos SEED=2 MINUTES=1 || \
	{ echo chaos >> $(SECOND_TRIES); $(MAKE) --no-print-directory chaos SEED=2 MINUTES=1; }

chaos: build operator ## Random faults and orders on a real cluster under jobs (docs/testing.md); SEED= repeats a run, MINUTES= of faults
	@trap '$(TESTBED) down-tests' EXIT; \
	CHAOS_SEED=$${SEED:-$$(date +%s)} CHAOS_MINUTES=$${MINUTES:-10} \
	cargo test --quiet --package testbed --test alone -- --exact chaos::every_job_ends_once_and_every_order_stands_whatever_fails --include-ignored --nocapture

simulate: ## Play random histories with faults against operators and agents in a simulated world: MINUTES=1 (docs/testing.md)
	cargo run --quiet --profile simulation --package simulation -- simulate --minutes $(or $(MINUTES),1)

crash-points: ## Let operators and agents die after every effect of every scenario in a simulated world (docs/testing.md)
	cargo run --quiet --profile simulation --package simulation -- crash-points

replay: ## Play the history of one seed and tell its story: SEED=
	cargo run --quiet --profile simulation --package simulation -- replay --seed $(SEED)

defects: ## Show that the simulation finds defects that are put back on purpose: SEEDS=200 D='name name' (docs/testing.md)
	@hack/defects $(D)

bench: build operator valgrind ## Measure against baselines (docs/benchmarks.md); B=scale measures one subject on the cluster
	cargo bench --quiet --profile image --package slurm-operator --bench reconcile
	cargo bench --quiet --profile dev --package testbed --bench cluster -- $(B)

valgrind:
	@command -v valgrind >/dev/null || { apt-get update -qq && apt-get install -qq --yes valgrind >/dev/null; }

lint: lint-workflows ## Format, clippy, spelling, links, workflows, READMEs of charts, one version, dependencies: licences, sources, unused
	@hack/check-version >/dev/null
	@hack/chart-readmes --check
	@hack/check-links
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- --deny warnings
	PATH="$$(hack/tools cargo-deny $(CARGO_DENY_VERSION)):$$PATH" cargo-deny --all-features check bans licenses sources
	PATH="$$(hack/tools cargo-machete $(CARGO_MACHETE_VERSION)):$$PATH" cargo-machete --with-metadata crates
	PATH="$$(hack/tools typos-cli $(TYPOS_VERSION)):$$PATH" typos --hidden
	@test -z "$$(gofmt -l hack)" || { gofmt -d hack; exit 1; }

# Without shellcheck and pyflakes, which would make the result depend on the machine.
lint-workflows: ## Check the workflows of GitHub Actions (.github/workflows) with actionlint
	@PATH="$$(hack/go-tool github.com/rhysd/actionlint/cmd/actionlint $(ACTIONLINT_VERSION)):$$PATH" actionlint -shellcheck= -pyflakes=

chart-readmes: ## Generate the READMEs of the charts from the comments in their values.yaml
	@hack/chart-readmes

# Without mdbook's server and its watch of files, which need many more dependencies.
docs: ## Build the documentation as a site in target/site and check its links
	@PATH="$$(hack/tools mdbook $(MDBOOK_VERSION) --no-default-features --features search):$$PATH" hack/docs

images: build ## Build Kubernetes and the container images without starting anything
	$(TESTBED) build

release-test: build operator ## Rehearse a release: images and charts in a registry, signed, installed from there (docs/releasing.md)
	@TESTBED=$(TESTBED) hack/step 'rehearse a release' hack/release-test
