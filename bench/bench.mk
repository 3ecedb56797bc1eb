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
$(BENCH)/gather $(BENCH)/counted: $(BENCH)/%: bench/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  BENCH   $<'
	$(Q)$(BENCH_CC) -o $@ $<
$(BENCH)/nothing.so: bench/nothing.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  BENCH   $<'
	$(Q)$(BENCH_CC) -fPIC -shared -o $@ $<

# The pin cache's benches call the API. UCX's libraries intercept mapping calls: they are in pin-ucx alone.
BENCH_UCX := $(shell $(PKG_CONFIG) --exists ucx-ucs 2>/dev/null && echo $(BENCH)/pin-ucx)
BENCH_PIN = $(BENCH_CC) -Iinclude -pthread $(LINK_DIRS) -o $@ $(filter %.c,$^) -lhugepin -luring
BENCH_PIN_ON := bench/common.h bench/pin_kernel.h bench/rcache.h $(HEADERS) $(BUILD)/libhugepin.so $(BUILD)/flags
$(BENCH)/pin: bench/pin.c bench/pin_kernel.c $(BENCH_PIN_ON)
	@mkdir -p $(@D)
	@echo '  BENCH   $<'
	$(Q)$(BENCH_PIN)
$(BENCH)/pin-ucx: bench/pin.c bench/pin_kernel.c bench/rcache.c $(BENCH_PIN_ON)
	@mkdir -p $(@D)
	@echo '  BENCH   bench/rcache.c'
	$(Q)$(BENCH_PIN) $$($(PKG_CONFIG) --cflags --libs ucx-ucs)

# Traces in virtual time: the library's own policies, which are hidden names of it.
$(BENCH)/replay $(BENCH)/paging: $(BENCH)/%: bench/%.c bench/numbers.h bench/trace.c bench/trace.h $(LIB_OBJ) $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  BENCH   $<'
	$(Q)$(CC) $(FLAGS) $(LDFLAGS) -o $@ $(filter %.c %.o,$^) $(LIB_LIBS) -lz
$(BENCH)/shapes: bench/shapes.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  BENCH   $<'
	$(Q)$(BENCH_CC) -o $@ $< -lm
tests: $(if $(SAN),,$(BENCH)/replay $(BENCH)/paging $(BENCH)/shapes)

# Messages on io_uring, through the public API.
$(BENCH)/uring: bench/uring.c $(HEADERS) $(EXTRA_HEADERS) $(BUILD)/libhugepin-uring.so $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  BENCH   $<'
	$(Q)$(BENCH_CC) -Iinclude $(EXTRA_INCLUDE) $(LINK_DIRS) -o $@ $< -lhugepin-uring -lhugepin -luring
tests: $(if $(SAN),,$(BENCH)/uring)

# Lent keys in virtual time: the size of buckets is a hidden name.
$(BENCH)/lend: bench/lend.c bench/trace.c bench/trace.h $(LIB_OBJ) $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  BENCH   $<'
	$(Q)$(CC) $(FLAGS) $(LDFLAGS) -o $@ $(filter %.c %.o,$^) $(LIB_LIBS) -lz
tests: $(if $(SAN),,$(BENCH)/lend)

# What the helper's plan costs: also of hidden names.
$(BENCH)/helper: bench/helper.c $(LIB_OBJ) $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  BENCH   $<'
	$(Q)$(CC) $(FLAGS) -MMD -MP $(LDFLAGS) -o $@ $< $(LIB_OBJ) $(LIB_LIBS)
$(BENCH)/borrow: bench/borrow.c bench/common.h $(HEADERS) $(BUILD)/libhugepin.so $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  BENCH   $<'
	$(Q)$(BENCH_PIN)
$(BENCH)/hot: bench/hot.c bench/common.h $(BUILD)/libhugepin.so $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  BENCH   $<'
	$(Q)$(BENCH_PIN)

# Packing: thresholds are measured as over a device, by a hidden name.
$(BENCH)/sg: bench/sg.c bench/common.h bench/wqe.h $(BUILD)/sge/measure.o $(BUILD)/base/base.o $(BUILD)/base/clock.o $(BUILD)/base/sys.o $(BUILD)/libhugepin.so $(BUILD)/libhugepin-verbs.so $(BUILD)/flags
	@mkdir -p $(@D)
	@echo '  BENCH   $<'
	$(Q)$(BENCH_CC) -Iinclude -I. $(LINK_DIRS) -o $@ $< $(BUILD)/sge/measure.o $(BUILD)/base/base.o $(BUILD)/base/clock.o $(BUILD)/base/sys.o -lhugepin-verbs -lhugepin -libverbs

tests: $(if $(SAN),,$(BENCH)/sg)

tests: $(if $(SAN),,$(BENCH)/gather $(BENCH)/counted)
bench: $(BENCH)/alloc $(BENCH)/nothing.so $(BENCH)/borrow $(BENCH_PAPI)

# The second make sees what setup has installed.
bench-alloc: ## measure against other allocators; ARGS are bench/run-alloc's
	$(Q)tools/setup build bench
	$(Q)$(MAKE) all bench
	$(Q)BUILD='$(BUILD)' bench/run-alloc $(ARGS)

bench-targets: ## what the last runs of bench-alloc, bench-programs and bench-pin measured beside what is to be reached
	$(Q)BUILD='$(BUILD)' bench/verdict $(ARGS)

bench-compare: ## bench-alloc of this tree beside that of another commit, in turn: BASE=COMMIT; ARGS are bench/run-alloc's
	$(Q)tools/setup build bench
	$(Q)$(MAKE) all bench
	$(Q)BUILD='$(BUILD)' bench/compare '$(BASE)' $(ARGS)

bench-programs: ## whole programs against other allocators; ARGS are bench/run-programs'
	$(Q)tools/setup build bench
	$(Q)tests/judges/install.sh bench
	$(Q)$(MAKE) all bench
	$(Q)BUILD='$(BUILD)' bench/run-programs $(ARGS)

bench-pin: ## the pin cache against UCX's, hugepages against base pages; ARGS are bench/run-pin's
	$(Q)tools/setup build bench
	$(Q)$(MAKE) all bench-pin-programs
	$(Q)BUILD='$(BUILD)' bench/run-pin $(ARGS)

bench-helper: ## what predicting costs: the helper for each event, and threads for each pin
	$(Q)tools/setup build check
	$(Q)$(MAKE) $(BENCH)/helper $(BENCH)/hot
	$(Q)$(BENCH)/helper
	$(Q)$(BENCH)/hot

bench-sg: ## small pieces as one message: gathered, packed, inline, as planned; ARGS are bench/sg's
	$(Q)tools/setup build check
	$(Q)$(MAKE) $(BENCH)/sg
	$(Q)$(BENCH)/sg $(ARGS) >$(BENCH)/sg.csv
	$(Q)awk -f bench/median.awk -f bench/sg.awk $(BENCH)/sg.csv | tee $(BENCH)/sg.txt

bench-uring: ## messages of many pieces on io_uring, to and from files; ARGS are bench/uring's
	$(Q)tools/setup build check
	$(Q)$(MAKE) $(BENCH)/uring
	$(Q)$(BENCH)/uring $(ARGS) >$(BENCH)/uring.csv
	$(Q)awk -f bench/median.awk -f bench/uring.awk $(BENCH)/uring.csv | tee $(BENCH)/uring.txt

bench-lend: ## keys lent to peers, by patterns of puts in virtual time; ARGS are bench/lend's
	$(Q)tools/setup build check
	$(Q)$(MAKE) $(BENCH)/lend
	$(Q)$(BENCH)/lend $(ARGS) >$(BENCH)/lend.txt
	$(Q)awk -f bench/lend.awk $(BENCH)/lend.txt

bench-pin-programs: $(BENCH)/pin $(BENCH_UCX) $(BENCH)/alloc # alloc warms memory up

bench-replay: ## policies of the pin cache on communication traces; ARGS are bench/run-replay's
	$(Q)tools/setup build check
	$(Q)$(MAKE) $(BENCH)/replay $(BENCH)/shapes
	$(Q)BUILD='$(BUILD)' bench/run-replay $(ARGS)

bench-paging: ## on-demand paging on communication traces; ARGS are bench/run-paging's
	$(Q)tools/setup build check
	$(Q)$(MAKE) $(BENCH)/paging $(BENCH)/shapes
	$(Q)BUILD='$(BUILD)' bench/run-paging $(ARGS)

bench-mpi: ## an MPI program by policies of the pin cache; ARGS are bench/run-mpi's
	$(Q)tools/setup build check
	$(Q)$(MAKE) all
	$(Q)BUILD='$(BUILD)' bench/run-mpi $(ARGS)

bench-kernels: ## kernels of MPI on two ranks, with and without the drop-in, and their share in MPI; ARGS are bench/run-kernels'
	$(Q)tools/setup build check
	$(Q)$(MAKE) all bench
	$(Q)BUILD='$(BUILD)' bench/run-kernels $(ARGS)

# All of them, those for which something is missing too: they say so in the page.
report: ## every bench beside its peers, as one page: build/report/index.html; ARGS are bench/report's
	$(Q)tools/setup build check bench guest
	$(Q)$(MAKE) all bench bench-pin-programs $(addprefix $(BENCH)/,replay shapes paging helper hot sg uring lend)
	$(Q)BUILD='$(BUILD)' bench/report $(ARGS)

papers: ## the papers' numbers beside this machine's: build/papers/papers.txt and papers.html; ARGS are bench/report's
	$(Q)tools/setup build check bench guest
	$(Q)$(MAKE) all bench bench-pin-programs $(addprefix $(BENCH)/,replay shapes paging helper hot sg uring lend)
	$(Q)rm -f '$(BUILD)/papers/papers.txt'
	$(Q)status=0; BUILD='$(BUILD)' REPORT='$(BUILD)/papers' bench/report --papers $(ARGS) || status=$$?; \
		cat '$(BUILD)/papers/papers.txt'; exit $$status

bench-image: ## static memory in hugepages; ARGS are bench/run-image's
	$(Q)tools/setup build bench
	$(Q)$(MAKE) all $(BENCH)/counted
	$(Q)BUILD='$(BUILD)' bench/run-image $(ARGS)

.PHONY: report papers bench bench-image bench-kernels bench-helper bench-alloc bench-compare bench-targets bench-programs bench-pin bench-pin-programs bench-replay bench-paging bench-mpi bench-sg bench-uring bench-lend
