# Measurements: plain C programs of their own, which know the allocators only by LD_PRELOAD.
BENCH := $(BUILD)/bench
BENCH_CC = $(CC) -std=gnu11 -D_GNU_SOURCE -O2 -g -fno-builtin $(WARNINGS)
BENCH_PAPI := $(shell $(PKG_CONFIG) --exists papi 2>/dev/null && echo $(BENCH)/alloc-counters)

$(BENCH)/alloc: bench/alloc.c bench/counters.h $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  BENCH   $<'
	$(Q)$(BENCH_CC) -pthread -o $@ $< -lm
$(BENCH)/alloc-counters: bench/alloc.c bench/counters.c bench/counters.h $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  BENCH   bench/counters.c'
	$(Q)$(BENCH_CC) -pthread -o $@ bench/alloc.c bench/counters.c -lm $$($(PKG_CONFIG) --cflags --libs papi)
$(BENCH)/nothing.so: bench/nothing.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  BENCH   $<'
	$(Q)$(BENCH_CC) -fPIC -shared -o $@ $<

bench: $(BENCH)/alloc $(BENCH)/nothing.so $(BENCH_PAPI)

# The second make sees what setup has installed.
bench-alloc: ## measure against other allocators; ARGS are bench/run-alloc's
	$(Q)tools/setup build bench
	$(Q)$(MAKE) all bench
	$(Q)BUILD='$(BUILD)' bench/run-alloc $(ARGS)

bench-programs: ## whole programs against other allocators; ARGS are bench/run-programs'
	$(Q)tools/setup build bench
	$(Q)tests/judges/install.sh bench
	$(Q)$(MAKE) all bench
	$(Q)BUILD='$(BUILD)' bench/run-programs $(ARGS)

.PHONY: bench bench-alloc bench-programs
