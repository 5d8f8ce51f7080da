# The few commands a person needs; CMake does the work. `make demo` and `make check` do all the set-up on a fresh Debian 12.
# `make bench SECTIONS="shm tcp" ROUNDS=5` measures the collectives beside Open MPI, MPICH and Gloo; without SECTIONS all.
# `make bench-train SECTIONS="alone two" ROUNDS=5` trains beside PyTorch.
.PHONY: all setup demo demo-gpt check bench bench-train install debug asan tsan format clean
.DEFAULT_GOAL := all

all: build/build.ninja
	cmake --build build

build/build.ninja: CMakeLists.txt CMakePresets.json
	cmake --preset release

setup:
	tools/setup

demo: setup all
	tools/demo

demo-gpt: setup all
	tools/setup demo-gpt
	tools/demo-gpt

check:
	tools/setup check
	tools/check

ROUNDS = 3
bench: setup all
	tools/setup bench
	bench/collectives/run $(SECTIONS) --rounds $(ROUNDS)

bench-train: setup all
	tools/setup bench
	bench/train/run $(SECTIONS) --rounds $(ROUNDS)

install: all
	cmake --install build

debug asan tsan:
	cmake --preset $@
	cmake --build --preset $@

format:
	tools/format --fix

clean:
	rm -rf build build-*
