# sinkless.h is one header and needs no build. This makes the programs around it; `make` alone lists the targets.
#
# CC, CFLAGS and LDLIBS are yours to set: make all CC=clang CFLAGS="-O3 -g". No -m flags are needed, kernels are chosen
# at run time. Everything that is made lies in BUILD.

CC ?= cc
HOSTCC ?= $(CC)
CFLAGS ?= -O2
LDLIBS ?= -lm -lpthread
BUILD = build
PREFIX ?= /usr/local
MODEL ?= examples/models/tiny-chat.gguf
FUZZ_CC ?= clang
FUZZ_SECONDS ?= 60

# Scalar kernels: compilers need many minutes for the SIMD ones with both sanitizers.
SANITIZE = -O1 -g -DSINKLESS_NO_SIMD -fno-omit-frame-pointer -fsanitize=address,undefined \
	-fno-sanitize-recover=undefined
HEADERS = sinkless.h $(wildcard examples/*.h tests/*.h tests/fuzz/*.h bench/*.h)
PROGRAMS = $(basename $(notdir $(wildcard $(addprefix examples/,minimal.c eval.c chat.c quantize.c) bench/bench.c)))
TESTS = $(patsubst tests/%.c,$(BUILD)/%,$(wildcard tests/test_*.c))
FUZZERS = $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))

help:
	@echo "make all        every program, into $(BUILD)/"
	@echo "make minimal    the smallest useful program"
	@echo "make chat       conversations, with a small model built in"
	@echo "make eval       logits, hashes, perplexity"
	@echo "make quantize   converts weights"
	@echo "make bench      measures limits, kernels, models"
	@echo "make test       builds and runs the tests"
	@echo "make check-all  every compiler, option and instruction set there is here; takes a while"
	@echo "make sanitize   the tests with sanitizers (scalar kernels)"
	@echo "make cross      other instruction sets under emulation, with what cross compilers there are"
	@echo "make fuzz       fuzz targets, FUZZ_SECONDS=60 each; needs clang"
	@echo "make install    the header and the programs, to PREFIX=$(PREFIX)"
	@echo "make clean      removes $(BUILD)/"

all: $(PROGRAMS)
minimal: $(BUILD)/minimal
eval: $(BUILD)/eval
chat: $(BUILD)/chat
quantize: $(BUILD)/quantize
bench: $(BUILD)/bench

$(BUILD)/%: examples/%.c $(HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CPPFLAGS) $< -o $@ $(LDFLAGS) $(LDLIBS)

$(BUILD)/bench: bench/bench.c $(HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CPPFLAGS) $< -o $@ $(LDFLAGS) $(LDLIBS)

# The default model becomes a source file, then an object, and part of chat.
$(BUILD)/embed: examples/embed.c
	@mkdir -p $(@D)
	$(HOSTCC) $< -o $@

$(BUILD)/model.c: $(BUILD)/embed $(MODEL)
	$(BUILD)/embed $(MODEL) $@

$(BUILD)/model.o: $(BUILD)/model.c
	$(CC) $(CFLAGS) $(CPPFLAGS) -w -c $< -o $@

$(BUILD)/chat: examples/chat.c $(BUILD)/model.o $(HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CPPFLAGS) -DCHAT_EMBEDDED $< $(BUILD)/model.o -o $@ $(LDFLAGS) $(LDLIBS)

$(BUILD)/test_%: tests/test_%.c $(HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CPPFLAGS) -I. $< -o $@ $(LDFLAGS) $(LDLIBS)

# Most test programs compile the whole header: several at a time, unless make was told how many.
test:
	@$(MAKE) --no-print-directory $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j4) test-programs
	@BUILD=$(BUILD) sh tests/run.sh $(TESTS)

test-programs: $(PROGRAMS) $(TESTS)

check-all:
	sh tests/check_all.sh

cross:
	sh tests/check_all.sh cross

# Instrumented SIMD kernels take minutes to compile; check-all does it once.
sanitize:
	$(MAKE) test BUILD=$(BUILD)/sanitize CFLAGS="$(SANITIZE)"

$(BUILD)/fuzz/%: tests/fuzz/%.c $(HEADERS)
	@mkdir -p $(@D)
	$(FUZZ_CC) $(SANITIZE) -fsanitize=fuzzer $(CPPFLAGS) -I. $< -o $@ $(LDFLAGS) $(LDLIBS)

# Seeds are the golden models, and tests/fuzz/NAME if there is such a folder. What the fuzzer finds is kept in BUILD.
fuzz: $(FUZZERS)
	@mkdir -p $(BUILD)/fuzz/seeds
	@for model in tests/golden/*/model.gguf; do cp $$model $(BUILD)/fuzz/seeds/`basename $${model%/*}`.gguf; done
	@for program in $(FUZZERS); do \
		name=`basename $$program`; seeds=tests/fuzz/$$name; \
		[ -d $$seeds ] || seeds=; \
		mkdir -p $(BUILD)/fuzz/corpus/$$name; \
		echo "$$name, $(FUZZ_SECONDS) seconds"; \
		$$program -max_total_time=$(FUZZ_SECONDS) -timeout=20 -verbosity=0 -artifact_prefix=$(BUILD)/fuzz/ \
			$(BUILD)/fuzz/corpus/$$name $(BUILD)/fuzz/seeds $$seeds || exit 1; \
	done

install: all
	mkdir -p $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/bin
	cp sinkless.h $(DESTDIR)$(PREFIX)/include/
	for program in $(filter-out minimal,$(PROGRAMS)); do \
		cp $(BUILD)/$$program $(DESTDIR)$(PREFIX)/bin/sinkless-$$program || exit 1; \
	done

clean:
	rm -rf $(BUILD)

.PHONY: help all minimal eval chat quantize bench test test-programs check-all cross sanitize fuzz install clean
