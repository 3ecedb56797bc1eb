# Measurements: plain C programs of their own, which know the allocators only by LD_PRELOAD. BENCH_CC and LINKED of a program are
# what compiles it and what it is linked with.
BENCH := $(BUILD)/bench
BENCH_CC = $(CC) -std=gnu11 -D_GNU_SOURCE -O2 -g -fno-builtin $(WARNINGS)
define bench_program
$(call say,BENCH,$@)
$(Q)$(BENCH_CC) -MMD -MP -o $@ $(filter %.c %.o,$^) $(LINKED)
endef
-include $(wildcard $(BENCH)/*.d)
$(BENCH)/%: bench/%.c $(BUILD)/flags
	$(bench_program)
BENCH_PAPI := $(shell $(PKG_CONFIG) --exists papi 2>/dev/null && echo $(BENCH)/access-counters)
$(BENCH)/alloc $(BENCH)/shapes $(BENCH)/fork: LINKED = -pthread -lm
$(BENCH)/version: LINKED = -ldl
$(addprefix $(BENCH)/,access gather counted warm): LINKED = -lm
$(BENCH)/accuracy: LINKED = -lm -lz
$(BENCH)/access-counters: LINKED = -lm $$($(PKG_CONFIG) --cflags --libs papi)
$(BENCH)/access-counters: bench/access.c bench/counters.c bench/counters.h $(BUILD)/flags
	$(bench_program)
$(BENCH)/nothing.so: LINKED = -fPIC -shared
$(BENCH)/nothing.so: bench/nothing.c $(BUILD)/flags
	$(bench_program)

# What single steps of a lock cost, for the simulation.
$(BENCH)/costs: LINKED = -Iinclude -I. -pthread
$(BENCH)/costs: $(addprefix $(BUILD)/base/,sys.o base.o)

# The pin cache's benches call the API. UCX's libraries intercept mapping calls: they are in pin-ucx alone.
BENCH_UCX := $(shell $(PKG_CONFIG) --exists ucx-ucs 2>/dev/null && echo $(BENCH)/pin-ucx)
BENCH_API = -Iinclude -I. $(EXTRA_INCLUDE) -pthread $(LINK_DIRS)
BENCH_PIN := bench/pin.c bench/pin_kernel.c bench/common.h bench/pin_kernel.h bench/rcache.h $(HEADERS)
$(addprefix $(BENCH)/,pin pin-ucx borrow hot uring sg): $(BUILD)/libhugepin.so
$(addprefix $(BENCH)/,pin borrow hot): LINKED = $(BENCH_API) -lhugepin -luring
$(BENCH)/pin: $(BENCH_PIN)
$(BENCH)/pin-ucx: LINKED = $(BENCH_API) -lhugepin -luring $$($(PKG_CONFIG) --cflags --libs ucx-ucs | sed 's/-I/-isystem /g')
$(BENCH)/pin-ucx: $(BENCH_PIN) bench/rcache.c $(BUILD)/flags
	$(bench_program)
# Messages on io_uring, through the public API.
$(BENCH)/uring: LINKED = $(BENCH_API) -lhugepin-uring -lhugepin -luring
$(BENCH)/uring: $(BUILD)/libhugepin-uring.so
# Packing: thresholds are measured as over a device, by a hidden name.
$(BENCH)/sg: LINKED = $(if $(COV),--coverage) $(BENCH_API) -lhugepin-verbs -lhugepin -libverbs
$(BENCH)/sg: $(addprefix $(BUILD)/,sge/measure.o base/base.o base/clock.o base/sys.o libhugepin-verbs.so)

# In virtual time, and what the helper's plan costs: the library's own policies, and other names that it hides.
BENCH_HIDDEN := $(addprefix $(BENCH)/,replay paging lend helper fork-parts)
$(BENCH_HIDDEN): BENCH_CC = $(CC) $(FLAGS) $(LDFLAGS)
$(BENCH_HIDDEN): LINKED = $(LIB_LIBS) -lz
$(BENCH_HIDDEN): $(LIB_OBJ)
$(BENCH)/fork-parts: LINKED = -DPARTS $(LIB_LIBS)
$(BENCH)/fork-parts: bench/fork.c $(BUILD)/flags
	$(bench_program)
$(addprefix $(BENCH)/,replay paging lend accuracy): bench/trace.c bench/trace.h bench/numbers.h
$(BENCH)/lend: bench/lendnodes.c bench/lendpaper.c bench/lendpatterns.c bench/lend.h

tests: $(if $(SAN),,$(addprefix $(BENCH)/,replay paging accuracy shapes uring lend sg gather counted version))
bench: $(addprefix $(BENCH)/,alloc access version warm nothing.so borrow fork fork-parts) $(BENCH_PAPI)
bench-pin-programs: $(BENCH)/pin $(BENCH_UCX) $(BENCH)/warm

# GROUPS TARGETS: what tools/setup installs, and what is built: the second make sees what setup has installed. Its + ends the lines
# that may be in one call: make -n would run those behind.
define prepare
$(Q)tools/setup build $(1)
+$(Q)$(MAKE) $(2)
endef

bench-alloc: ## measure against other allocators; ARGS are bench/run-alloc's; PEERS='NAME=FILE ...': and against these libraries
	$(call prepare,bench,all bench)
	$(Q)BUILD='$(BUILD)' bench/run-alloc $(ARGS)

bench-simulate: ## what the heap would do with 16 and 64 processors, by what is measured here; ARGS are bench/simulate's
	$(call prepare,bench,all $(addprefix $(BENCH)/,alloc nothing.so costs))
	$(Q)BUILD='$(BUILD)' bench/simulate $(ARGS)

bench-targets: ## what the last runs of bench-alloc, bench-programs and bench-pin measured beside what is to be reached
	$(Q)BUILD='$(BUILD)' bench/verdict $(ARGS)

bench-compare: ## bench-alloc of this tree beside that of another commit, in turn: BASE=COMMIT; ARGS are bench/run-alloc's
	$(call prepare,bench,all bench)
	$(Q)BUILD='$(BUILD)' bench/compare '$(BASE)' $(ARGS)

bench-programs: ## whole programs against other allocators; ARGS are bench/run-programs'
	$(call prepare,bench,all bench)
	$(Q)tests/judges/install.sh bench
	$(Q)BUILD='$(BUILD)' bench/run-programs $(ARGS)

bench-pin: ## the pin cache against UCX's, hugepages against base pages; ARGS are bench/run-pin's; PEERS='ucx-NAME=DIRECTORY ...': further UCXs
	$(call prepare,bench,all bench-pin-programs)
	$(Q)BUILD='$(BUILD)' bench/run-pin $(ARGS)

bench-helper: ## what predicting costs: the helper for each event, and threads for each pin
	$(call prepare,check,$(BENCH)/helper $(BENCH)/hot)
	$(Q)$(BENCH)/helper
	$(Q)$(BENCH)/hot

bench-sg: ## small pieces as one message: gathered, packed, inline, as planned; ARGS are bench/sg's
bench-uring: ## messages of many pieces on io_uring, to and from files; ARGS are bench/uring's
bench-sg bench-uring: bench-%:
	$(call prepare,check,$(BENCH)/$*)
	$(Q)$(BENCH)/$* $(ARGS) >$(BENCH)/$*.csv
	$(Q)awk -f bench/median.awk -f bench/$*.awk $(BENCH)/$*.csv | tee $(BENCH)/$*.txt

bench-lend: ## keys lent to peers, by patterns of puts in virtual time; ARGS are bench/lend's
	$(call prepare,check,$(BENCH)/lend)
	$(Q)$(BENCH)/lend $(ARGS) >$(BENCH)/lend.txt
	$(Q)awk -f bench/lend.awk $(BENCH)/lend.txt

bench-replay: ## policies of the pin cache on communication traces; ARGS are bench/run-replay's
	$(call prepare,check,$(BENCH)/replay $(BENCH)/shapes)
	$(Q)BUILD='$(BUILD)' bench/run-replay $(ARGS)

bench-paging: ## on-demand paging on communication traces; ARGS are bench/run-paging's
	$(call prepare,check,$(BENCH)/paging $(BENCH)/shapes)
	$(Q)BUILD='$(BUILD)' bench/run-paging $(ARGS) >$(BENCH)/paging.out || status=$$?; \
		sed '/^figure /d' $(BENCH)/paging.out; exit $${status:-0}

bench-mpi: ## an MPI program by policies of the pin cache; ARGS are bench/run-mpi's
	$(call prepare,check,all)
	$(Q)BUILD='$(BUILD)' bench/run-mpi $(ARGS)

bench-kernels: ## kernels of MPI on two ranks, arrays of malloc or static, with and without the drop-in, and their share in MPI; ARGS are bench/run-kernels'
	$(call prepare,check,all bench)
	$(Q)BUILD='$(BUILD)' bench/run-kernels $(ARGS)

bench-image: ## static memory in hugepages; ARGS are bench/run-image's
	$(call prepare,bench,all $(BENCH)/counted)
	$(Q)BUILD='$(BUILD)' bench/run-image $(ARGS)

# All of them, those for which something is missing too: they say so in the page.
BENCH_ALL := all bench bench-pin-programs $(addprefix $(BENCH)/,replay shapes paging accuracy helper hot sg uring lend)
report: ## every bench beside its peers, as one page: build/report/index.html; ARGS are bench/report's
	$(call prepare,check bench guest,$(BENCH_ALL))
	$(Q)BUILD='$(BUILD)' bench/report $(ARGS)

papers: ## the papers' figures and tables beside this machine's: build/papers/papers.txt and papers.html; ARGS are bench/report's
	$(Q)rm -f '$(BUILD)/papers/papers.txt'
	$(call prepare,check bench guest,$(BENCH_ALL))
	$(Q)BUILD='$(BUILD)' REPORT='$(BUILD)/papers' bench/report --papers $(ARGS) || status=$$?; \
		cat '$(BUILD)/papers/papers.txt'; exit $${status:-0}

.PHONY: report papers bench bench-image bench-kernels bench-helper bench-alloc bench-compare bench-simulate bench-targets bench-programs bench-pin bench-pin-programs bench-replay bench-paging bench-mpi bench-sg bench-uring bench-lend
