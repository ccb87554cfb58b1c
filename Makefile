# `make`, `make test` and `make demo` are all a user needs. B is the build folder, CMAKE_FLAGS are passed on.
B ?= build
CONFIGURE = cmake -S . -B $(B) -G Ninja $(CMAKE_FLAGS)
SANITIZED = cmake -G Ninja -S . -DFSDP_SANITIZE

all: packages
	@$(CONFIGURE) >/dev/null && cmake --build $(B) --target fsdp fsdp_shared fsdp_static

test: packages
	@$(CONFIGURE) >/dev/null && cmake --build $(B) && tools/run_tests.sh $(B)

demo: all
	@tools/demo.sh

check: packages-check
	@tools/check_format.sh
	@tools/check_headers.sh
	@python3 tools/check_layers.py
	@python3 tools/check_style.py
	@$(CONFIGURE) >/dev/null && cmake --build $(B) --target fsdp fsdp_shared fsdp_static fsdp_check_objects && tools/check_symbols.sh $(B)
	@tools/check_hardening.sh $(B)
	@python3 tools/check_files.py $(B)

asan: asan-build
	@tools/run_tests.sh build-asan

asan-build: packages
	@$(SANITIZED)=address,undefined -B build-asan $(CMAKE_FLAGS) >/dev/null && cmake --build build-asan

tsan: tsan-build
	@tools/run_tests.sh build-tsan

tsan-build: packages
	@CC=clang $(SANITIZED)=thread -DFSDP_OPENMP=OFF -B build-tsan $(CMAKE_FLAGS) >/dev/null
	@cmake --build build-tsan

test-long: packages-check
	@TEST_LONG=1 FSDP_SIM_SEED=$${FSDP_SIM_SEED:-$$(date +%s)} $(MAKE) --no-print-directory test asan tsan CMAKE_FLAGS="-DFSDP_FUZZ_RUNS=200000 -DFSDP_TEST_TIMEOUT=7200 -DFSDP_TEST_LONG=ON"
	@tools/fuzz.sh build-fuzz 3600
	@tools/story.sh $(B)

# The real packages: transformers and PyTorch.
test-interop: packages
	@$(CONFIGURE) >/dev/null && cmake --build $(B) --target program_interop && tools/interop.sh $(B)

install: all
	@cmake --install $(B)

format:
	@tools/check_format.sh --fix

clean:
	rm -rf build build-asan build-tsan build-fuzz

packages:
	@tools/install_packages.sh
packages-check:
	@tools/install_packages.sh --check

.PHONY: all test demo check asan asan-build tsan tsan-build test-long test-interop install format clean packages packages-check
