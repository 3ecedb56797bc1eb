# hugepin. `make` builds into build/ without privilege and without network; `make help` lists the targets.
#
# Variables: BUILD DESTDIR PREFIX LIBDIR RUNPATH CC MPICC PYTHON CFLAGS LDFLAGS PKG_CONFIG JEMALLOC, V=1 (show commands), WERROR=1,
#   DEBUG=1 (assertions), COV=1 (tools/coverage) and SAN=thread|address|undefined, which build in directories of their own.
# Empty, they leave out what is built or compiled in where its compiler or headers are: MPICC= (libhugepin-mpi.so), HOOKS_LIB=
#   (libhugepin-hooks.so), PROBES= (the probes). For packagers: docs/PACKAGING.md.

DEBUG ?=
SAN ?=
COV ?=
BUILD ?= build$(if $(SAN),/$(SAN))$(if $(COV),/cov,$(if $(DEBUG),/debug))
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
$(foreach v,PREFIX LIBDIR,$(if $(word 2,$($v)),$(error $v has a space, which make takes for the end of a path: $($v))))
# Relative to here: what is installed names these paths, and no process may look for a library below its working directory.
override PREFIX := $(abspath $(PREFIX))
override LIBDIR := $(abspath $(LIBDIR))
# Where an installed library of ours looks for the others first. Nothing, if the loader searches LIBDIR, and in a package
# (DESTDIR), whose LIBDIR the loader searches. Else LIBDIR: whoever may write there may replace our libraries themselves, so the
# path gives nobody anything new. The path is absolute, since a copy of a library, in a directory of others, must not look there
# ($$ORIGIN). In build/ they look beside themselves.
# The loader is asked once, and only if the path is wanted.
RUNPATH ?= $(eval RUNPATH := $$(if $$(DESTDIR),,$$(shell tools/install-tree searched '$(LIBDIR)' || echo '$(LIBDIR)')))$(RUNPATH)
PKG_CONFIG ?= pkgconf
# CC=aarch64-linux-gnu-gcc: the other tools are that machine's, too, and what a wrapper of this one compiles (MPICC) is left out.
# Variables that are given go before.
CROSS := $(patsubst %-gcc,%-,$(filter %-linux-gnu-gcc,$(CC)))
CROSS := $(if $(filter-out $(shell uname -m)-linux-gnu-,$(CROSS)),$(CROSS))
OBJCOPY ?= $(CROSS)objcopy
ifneq ($(CROSS),)
ifeq ($(origin AR) $(origin LD),default default)
AR := $(CROSS)ar
LD := $(CROSS)ld
endif
endif
# A compiler of Open MPI or MPICH, for libhugepin-mpi.so; none: that library is left out.
MPICC ?= $(if $(CROSS),,$(shell command -v mpicc.openmpi || command -v mpicc || command -v mpicc.mpich))
# The probes (base/probe.h), where <sys/sdt.h> is; PROBES=: none.
PROBES ?= 1
# Debian's Python, which has Debian's NumPy, for extra/numpy.
PYTHON ?= $(firstword $(wildcard /usr/bin/python3) python3)
CFLAGS ?= $(if $(DEBUG)$(SAN)$(COV),-O1,-O2) -g
# jemalloc as position-independent objects: small requests of libhugepin-malloc.so.
JEMALLOC ?= $(shell $(CC) -print-file-name=libjemalloc_pic.a)
Q := $(if $(V),,@)
# WHAT FILE: what a rule does, and the folder of what it makes.
say = @mkdir -p $(@D) && printf '  %-7s %s\n' $(1) '$(2)'

WARNINGS := -Wall -Wextra -Wundef -Wconversion $(if $(WERROR),-Werror)
comma := ,
# clang lacks gcc's macros for its sanitizers. As with gcc their runtime is a shared library, so that the functions of the C library
# that a test replaces are the test's.
CLANG_SAN = -D__SANITIZE_$(if $(findstring thread,$(SAN)),THREAD,ADDRESS)__=1 \
	$(if $(findstring address,$(SAN)),-Wno-unused-command-line-argument -shared-libasan -Wl$(comma)-rpath$(comma)$(shell $(CC) -print-runtime-dir))
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all $(if $(findstring clang,$(CC)),$(CLANG_SAN))) \
	$(if $(COV),--coverage -fprofile-update=atomic)
# But for what CPPFLAGS and CFLAGS say already, as those of a distribution do. FORTIFY needs optimisation, and the sanitizers have
# checks of their own; CET is x86's. Two builds in two directories are the same.
HARDENING := $(filter-out $(CPPFLAGS) $(CFLAGS),-fstack-protector-strong \
	$(if $(filter x86_64-%,$(shell $(CC) -dumpmachine)),-fcf-protection) $(if $(COV),,-ffile-prefix-map=$(CURDIR)=.) \
	$(if $(SAN)$(findstring _FORTIFY_SOURCE,$(CPPFLAGS) $(CFLAGS)),,$(if $(filter-out -O0,$(lastword $(filter -O%,$(CFLAGS)))),\
		-D_FORTIFY_SOURCE=2)))
FLAGS = -std=gnu11 -D_GNU_SOURCE -Iinclude -I. -fPIC $(WARNINGS) $(SANFLAGS) \
	$(if $(DEBUG),-DHP_DEBUG)$(if $(PROBES),, -DHP_NO_PROBES) $(HARDENING) $(CPPFLAGS) $(CFLAGS)
# Calls within a library and to the next one are direct or one jump: nothing is looked up lazily inside malloc.
FLAGS_base := -fvisibility=hidden -fno-semantic-interposition -fno-plt -ftls-model=initial-exec
FLAGS_alloc := $(FLAGS_base)
FLAGS_dropin := $(FLAGS_base)
FLAGS_reg := $(FLAGS_base)
# Probes lie below these (base/probe.h), and a call site above: the kernel finds it by frame pointers. None is on a path of hits,
# which end in jumps to these unless the compiler is told to optimise less.
$(addprefix $(BUILD)/,$(patsubst %,reg/%.o,admit cover domain domains evict gone helper hybrid miss region register retire track) \
	dropin/unmap.o $(if $(filter -O2 -O3,$(CFLAGS)),,reg/pin.o)): FLAGS += -fno-omit-frame-pointer
FLAGS_sge := $(FLAGS_base)
FLAGS_extra = $(FLAGS_base) $(EXTRA_INCLUDE)
FLAGS_lend := $(FLAGS_base)
# Where `hugepin run` looks at last, if the drop-in is not beside the command, as in build/. One object is compiled anew for
# `make install`, so that LIBDIR changes no other.
FLAGS_cmd := -DHP_LIBDIR='"/usr/local/lib"'
# What the program may not write after start: the tables of addresses, all found then.
RELRO := $(filter-out $(LDFLAGS),-Wl,-z,relro -Wl,-z,now)
# A malloc cannot be unloaded. Sanitizers leave their runtime's names to the program.
LIB_LDFLAGS = -shared $(RELRO) -Wl,-z,nodelete $(if $(SAN),,-Wl,-z,defs) $(SANFLAGS) $(LDFLAGS)
# Of the libraries that need libhugepin.so: each is linked for where it is built, and once more, for `make install`.
RUN_LDFLAGS = -Wl,--enable-new-dtags,-rpath,'$$ORIGIN'
$(BUILD)/installed/%: RUN_LDFLAGS = $(if $(RUNPATH),-Wl$(comma)--enable-new-dtags$(comma)-rpath$(comma)'$(RUNPATH)')

VERSION := $(shell awk '/^.define HUGEPIN_VERSION_M/ { v = v "." $$3 } END { print substr(v, 2) }' include/hugepin.h)
HEADERS := $(wildcard include/*.h)
SO := $(firstword $(subst ., ,$(VERSION)))

# What needs libibverbs. Of ours that needs the public API, and the clock.
VERBS_BACKEND := $(addprefix reg/backend/,device_paging.c dump.c results.c terms.c verbs.c)
# The drop-in's part of libhugepin.so, where the settings and the statistics are.
IMAGE_SRC := dropin/image.c dropin/image_plan.c
LIB_SRC := $(filter-out $(VERBS_BACKEND),$(sort $(IMAGE_SRC) $(wildcard base/*.c alloc/*.c reg/*.c reg/*/*.c lend/*.c sge/map.c sge/frame.c)))
LIB_LIBS :=
VERBS_LIBS := -libverbs -lmnl
VERBS_SRC := $(VERBS_BACKEND) $(filter-out sge/map.c sge/frame.c,$(sort $(wildcard sge/*.c)))
CMD_SRC := $(sort $(wildcard cmd/*.c))
UNIT_SRC := $(wildcard tests/unit/*.c)
LIVE_SRC := $(wildcard tests/live/*.c tests/guest/*.c tests/soak/*.c extra/*/tests/*.c)
EXAMPLE_SRC := $(filter-out $(if $(MPICC),,examples/mpi_%),$(wildcard examples/*.c))
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o)
VERBS_OBJ := $(VERBS_SRC:%.c=$(BUILD)/%.o)
CMD_OBJ := $(CMD_SRC:%.c=$(BUILD)/%.o) $(addprefix $(BUILD)/base/,base.o clock.o sys.o config.o proc.o rank.o text.o) $(addprefix $(BUILD)/,reg/backend/results.o reg/backend/terms.o sge/model.o)
# The libraries of extra/, which no other part knows: libhugepin-NAME.so of extra/NAME/*.c, hugepin-NAME.map and what LINKS_NAME names.
# The folder also has hugepin-NAME.pc.in, the headers (include/), the pages and the tests. LACKS_NAME: it is left out, for want of that.
LACKS_mpi := $(if $(SAN),build with sanitizers,$(if $(MPICC),,mpicc))
LINKS_mpi := -Wl,-z,undefs
# The hooks need the headers of libfabric and UCX, and are linked with neither.
HOOKS_LIB := $(shell printf '#include <rdma/fi_ext.h>\n#include <ucm/api/ucm.h>\n' | $(CC) -E - >/dev/null 2>&1 && echo yes)
LACKS_hooks := $(if $(HOOKS_LIB),,headers of libfabric and UCX)
LINKS_uring := -luring
EXTRA_ALL := $(patsubst extra/%/,%,$(sort $(dir $(wildcard extra/*/hugepin-*.map))))
EXTRA := $(foreach name,$(EXTRA_ALL),$(if $(LACKS_$(name)),,$(name)))
EXTRA_LIB := $(EXTRA:%=$(BUILD)/libhugepin-%.so)
EXTRA_INCLUDE := $(addprefix -I,$(wildcard extra/*/include))
EXTRA_HEADERS := $(wildcard $(EXTRA:%=extra/%/include/*.h))
UNIT := $(UNIT_SRC:%.c=$(BUILD)/%)
LIVE := $(LIVE_SRC:%.c=$(BUILD)/%)
EXAMPLES := $(EXAMPLE_SRC:%.c=$(BUILD)/%)
TEST_LIBS := $(patsubst tests/live/lib/%.c,$(BUILD)/tests/live/%.so,$(wildcard tests/live/lib/*.c)) \
	$(patsubst %.c,$(BUILD)/%.so,$(wildcard extra/*/tests/lib/*.c))
# The sanitizers bring a malloc of their own: of the live tests, those that call the API are built.
ifdef SAN
LIVE := $(patsubst %.c,$(BUILD)/%,$(shell grep -l '^/\* link: hugepin[^m]*\*/' $(LIVE_SRC) | xargs grep -L '^/\* link:.*preload'))
endif
# Of the thread sanitizer's tests run those with threads: tests/run.
ifeq ($(SAN),thread)
UNIT :=
EXAMPLES :=
endif

all: $(BUILD)/libhugepin.so $(BUILD)/libhugepin.a $(if $(SAN),,$(BUILD)/libhugepin-malloc.so) \
	$(BUILD)/libhugepin-verbs.so $(EXTRA_LIB) $(BUILD)/hugepin ## build the libraries and the command
	@$(foreach name,$(filter-out $(EXTRA),$(EXTRA_ALL)),echo '  SKIP    libhugepin-$(name).so: no $(LACKS_$(name))';):

-include bench/bench.mk
-include $(wildcard $(patsubst %,$(BUILD)/%/*.d,base alloc reg reg/backend reg/policy lend dropin sge $(EXTRA_ALL:%=extra/%) $(EXTRA_ALL:%=extra/%/tests) cmd examples installed $(addprefix tests/,unit live guest soak)))

# What objects were compiled with; changes only when that does.
COMMAND = $(CC) $(FLAGS) $(FLAGS_reg) $(FLAGS_sge) $(FLAGS_cmd)
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(subst ','\'',$(COMMAND))' | cmp -s - $@ || echo '$(subst ','\'',$(COMMAND))' >$@

# The same for what `make install` links: it has paths.
INSTALLED = $(LIBDIR) $(RUNPATH)
$(BUILD)/installed/paths: FORCE
	@mkdir -p $(@D) 2>/dev/null && test -w $(@D) || { echo '$(@D): no permission to write. `make install` links once more in $(BUILD)/;' \
		'in a clone of somebody else: BUILD=DIRECTORY, one of your own' >&2; exit 1; }
	@echo '$(INSTALLED)' | cmp -s - $@ || echo '$(INSTALLED)' >$@

$(BUILD)/installed/run.o: cmd/run.c $(BUILD)/flags $(BUILD)/installed/paths
	@echo '  CC      $<'
	$(Q)$(CC) $(FLAGS) -DHP_LIBDIR='"$(LIBDIR)"' -MMD -MP -c -o $@ $<

$(BUILD)/%.o: %.c $(BUILD)/flags
	$(call say,CC,$<)
	$(Q)$(CC) $(FLAGS) $(FLAGS_$(firstword $(subst /, ,$<))) -MMD -MP -c -o $@ $<

# OPTIONS LIBRARIES: a library of the objects, archives and list of names that its rule has. It finds libhugepin.so, if that is there.
define link
$(call say,LD,$@)
$(Q)$(CC) $(LIB_LDFLAGS) -Wl,-soname,$(@F).$(SO) -Wl,--version-script=$(filter %.map,$^) $(1) \
	$(if $(filter %/libhugepin.so,$^),$(RUN_LDFLAGS)) -o $@ $(filter %.o %.a %/libhugepin.so,$^) $(2)
$(Q)ln -sf $(@F) $@.$(SO)
endef
$(BUILD)/libhugepin.so $(BUILD)/installed/libhugepin.so: $(LIB_OBJ) packaging/hugepin.map
	$(call link,,$(LIB_LIBS))
$(BUILD)/libhugepin-verbs.so $(BUILD)/installed/libhugepin-verbs.so: $(VERBS_OBJ) $(addprefix $(BUILD)/base/,base.o clock.o sys.o memlock.o) $(BUILD)/libhugepin.so packaging/hugepin-verbs.map
	$(call link,,$(VERBS_LIBS))
define extra_library
$(BUILD)/libhugepin-$(1).so $(BUILD)/installed/libhugepin-$(1).so: $$(patsubst %.c,$(BUILD)/%.o,$$(sort $$(wildcard extra/$(1)/*.c))) \
		$(BUILD)/libhugepin.so extra/$(1)/hugepin-$(1).map
	$$(call link,,$$(LINKS_$(1)))
endef
$(foreach name,$(EXTRA),$(eval $(call extra_library,$(name))))

# The layer under MPI programs. The compiler is ours, the headers are MPI's; call sites are told apart by frame pointers.
MPI_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(sort $(wildcard extra/mpi/*.c)))
$(BUILD)/mpicc: FORCE
	@mkdir -p $(@D)
	@echo '$(MPICC)' | cmp -s - $@ || echo '$(MPICC)' >$@
$(MPI_OBJ): $(BUILD)/%.o: %.c $(BUILD)/flags $(BUILD)/mpicc
	$(call say,MPICC,$<)
	$(Q)OMPI_CC='$(CC)' MPICH_CC='$(CC)' $(MPICC) $(FLAGS) -fno-omit-frame-pointer -MMD -MP -c -o $@ $<

# The module for NumPy. Its setup.py finds libhugepin by pkgconf, here in $(BUILD).
# A cross build has this machine's interpreter and the other's configuration, of libpython3-dev.
NUMPY_PYTHON = $(if $(CROSS),_PYTHON_SYSCONFIGDATA_NAME=_sysconfigdata__$(CROSS:-=)) $(PYTHON)
NUMPY_FOUND = $(shell $(NUMPY_PYTHON) -c 'import os, numpy, setuptools, sysconfig; \
	print(os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null)
NUMPY_DIR = $(abspath $(BUILD))/numpy
$(BUILD)/numpy/built: $(wildcard extra/numpy/*.c extra/numpy/*.toml extra/numpy/setup.py) packaging/hugepin.pc.in $(HEADERS) \
		| $(BUILD)/libhugepin.so
	@mkdir -p $(@D)
	$(Q)sed 's|@PREFIX@|$(CURDIR)|; s|@LIBDIR@|$(abspath $(BUILD))|; s|@VERSION@|$(VERSION)|; s| @RUNPATH@||' packaging/hugepin.pc.in \
		>$(@D)/hugepin.pc
	$(Q)if [ '$(NUMPY_FOUND)' != True ]; then echo '  SKIP    hugepin_numpy: no NumPy, setuptools or Python.h'; else \
		echo '  PYTHON  $(@D)' && cd extra/numpy && PKG_CONFIG='$(PKG_CONFIG)' PKG_CONFIG_PATH='$(NUMPY_DIR)' CC='$(CC)' \
		CFLAGS='$(filter-out -Wconversion,$(WARNINGS)) $(CFLAGS)' $(NUMPY_PYTHON) setup.py -q egg_info --egg-base '$(NUMPY_DIR)' \
		build_ext --force --build-lib '$(NUMPY_DIR)' --build-temp '$(NUMPY_DIR)/temp' && touch '$(NUMPY_DIR)/built'; fi
numpy: $(BUILD)/numpy/built ## build the module for NumPy, extra/numpy, in $(BUILD)/numpy

# The plug-in of nbdkit, which has the functions that it calls.
NBDKIT := $(if $(shell printf '#include <nbdkit-plugin.h>\n' | $(CC) -E - >/dev/null 2>&1 && echo yes),$(BUILD)/nbdkit-hugepin-plugin.so)
$(BUILD)/nbdkit-hugepin-plugin.so: extra/nbdkit/plugin.c $(HEADERS) $(BUILD)/flags $(BUILD)/libhugepin.so
	$(call say,LD,$@)
	$(Q)$(CC) $(FLAGS) -shared $(RELRO) $(LDFLAGS) $(RUN_LDFLAGS) -o $@ $< $(BUILD)/libhugepin.so -luring
nbdkit: $(NBDKIT) ## build the plug-in of nbdkit, extra/nbdkit, as $(BUILD)/nbdkit-hugepin-plugin.so
	@$(if $(NBDKIT),:,echo '  SKIP    nbdkit-hugepin-plugin.so: no nbdkit-plugin.h')

# One object in which only hugepin_* is global, so that no name of ours can meet one of the program's. The weak name to which
# probes refer has to stay global: a program with probes of its own has one such section in all.
# Of -flto -ffat-lto-objects its machine code alone stays: the other half has names that objcopy does not hide.
$(BUILD)/libhugepin.a: $(LIB_OBJ) Makefile
	@echo '  AR      $@'
	$(Q)$(LD) -r -o $(BUILD)/libhugepin.o $(LIB_OBJ)
	$(Q)$(OBJCOPY) --wildcard --keep-global-symbol='hugepin_*' --keep-global-symbol=_.stapsdt.base \
		--remove-section='.gnu.lto_*' --remove-section='.gnu.debuglto_*' $(BUILD)/libhugepin.o
	$(Q)$(OBJCOPY:objcopy=nm) $(BUILD)/libhugepin.o | grep -q 'T hugepin_malloc$$' || \
		{ echo '$@: no machine code in its objects: -flto needs -ffat-lto-objects' >&2; exit 1; }
	$(Q)rm -f $@ && $(AR) rcsD $@ $(BUILD)/libhugepin.o

# Which archive that is, by path and checksum; changes only when that does, and fails without it.
$(BUILD)/jemalloc.from: FORCE
	@mkdir -p $(@D)
	@test -f '$(JEMALLOC)' || { printf '%s\n' '$(JEMALLOC): no such file. It is jemalloc as a static archive of position-independent objects.' \
		'On Debian: tools/setup build. Elsewhere docs/DEPLOY.md, "A jemalloc to link with", has the commands that build one;' \
		'then: make JEMALLOC=PATH/lib/libjemalloc_pic.a' >&2; exit 1; }
	@from=$$(cksum '$(JEMALLOC)') && { echo "$$from" | cmp -s - $@ || echo "$$from" >$@; }

# jemalloc with its public names and its ways to the kernel renamed, malloc to hpje_malloc; operators new and delete stay
# libstdc++'s. Without its constructor, jemalloc starts at the first small request, and not in processes that make none.
JEMALLOC_RENAMED := malloc calloc realloc free posix_memalign aligned_alloc memalign valloc pvalloc free_sized free_aligned_sized \
	malloc_usable_size mallocx rallocx xallocx sallocx dallocx sdallocx nallocx pthread_atfork pthread_key_create \
	$(addprefix pthread_mutex_,init lock trylock unlock) $(addprefix pthread_cond_,init signal wait timedwait) \
	mmap munmap madvise mprotect sbrk syscall sched_yield secure_getenv sysconf getpid clock_gettime gettimeofday \
	open creat close readlink log exp round
$(BUILD)/jemalloc.a: Makefile $(BUILD)/flags $(BUILD)/jemalloc.from
	@echo '  OBJCOPY $@'
	$(Q)$(OBJCOPY) -D $(foreach name,$(JEMALLOC_RENAMED),--redefine-sym $(name)=hpje_$(name)) \
		--remove-section=.init_array --remove-section=.rela.init_array '$(JEMALLOC)' $@
	$(Q)$(AR) dD $@ $$($(AR) t $@ | grep '^jemalloc_cpp')

# jemalloc's profiler unwinds: the static unwinder keeps libgcc_s.so out of every preloaded program. Assertions bring their
# messages and lock ranks along.
# In 5.3.0, and in no other version, a function of jemalloc's is replaced by dropin/jemalloc.c's.
JEMALLOC_5_3_0 = $(shell grep -q '5\.3\.0-0-g' '$(JEMALLOC)' && echo yes)
# Settings of older versions are others; those would complain of ours.
$(BUILD)/dropin/jemalloc.o: private FLAGS += $(shell grep -q narenas_ratio '$(JEMALLOC)' && echo -DHP_JEMALLOC_5_3) \
	$(if $(JEMALLOC_5_3_0),-DHP_JEMALLOC_5_3_0)
$(BUILD)/dropin/jemalloc.o: $(BUILD)/jemalloc.from
DROPIN_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(filter-out $(IMAGE_SRC),$(sort $(wildcard dropin/*.c)))) $(addprefix $(BUILD)/base/,sys.o lock.o clock.o $(if $(DEBUG),base.o))
$(BUILD)/libhugepin-malloc.so $(BUILD)/installed/libhugepin-malloc.so: $(DROPIN_OBJ) $(BUILD)/jemalloc.a $(BUILD)/libhugepin.so packaging/hugepin-malloc.map
	$(call link,-static-libgcc $(if $(JEMALLOC_5_3_0),-Wl$(comma)--wrap=je_tsd_tcache_enabled_data_init))

$(BUILD)/hugepin: $(CMD_OBJ) | $(BUILD)/hugepin-plot.py
$(BUILD)/installed/hugepin: $(CMD_OBJ:$(BUILD)/cmd/run.o=$(BUILD)/installed/run.o)
$(BUILD)/hugepin $(BUILD)/installed/hugepin:
	@echo '  LD      $@'
	$(Q)$(CC) -pie $(RELRO) $(SANFLAGS) $(LDFLAGS) -o $@ $^ -lhugetlbfs -ljansson -lm

$(BUILD)/hugepin-plot.py: cmd/plot.py
	$(Q)install -D -m 644 $< $@

# Unit tests see the library's hidden names. A live test, and an example, says in its first lines what it is linked with:
# libraries of ours (hugepin, hugepin-verbs) and others (uring, ibverbs).
# They look behind the ends of buffers on purpose, and stand in for functions of the C library.
TEST_FLAGS = -Itests -fno-builtin -U_FORTIFY_SOURCE
LINK_LINE = $$(sed -n 's|^/\* link: \(.*\) \*/$$|\1|p;4q' $< | xargs -n1 | sed -n 's/^hugepin.*\|^uring\|^ibverbs/-l&/p' | xargs)
LINK_DIRS = -L$(BUILD) $(addprefix -Xlinker ,-rpath $(abspath $(BUILD)) -rpath-link $(BUILD))
UNIT_OBJ := $(LIB_OBJ) $(VERBS_OBJ) $(addprefix $(BUILD)/cmd/,against.o elf.o environment.o judge.o look.o machine.o target.o text.o)
FLAGS_tests = $(TEST_FLAGS) -DT_UNIT
$(UNIT): %: %.o $(UNIT_OBJ)
	@echo '  TEST    $@'
	$(Q)$(CC) $(FLAGS) $(LDFLAGS) -o $@ $(filter-out $(STANDS_IN_FOR),$(filter %.o,$^)) $(LIB_LIBS) $(VERBS_LIBS) -luring -lm
# What a test has in place of these.
$(BUILD)/tests/unit/helper_plan_%: STANDS_IN_FOR := $(BUILD)/reg/policy/plan.o $(BUILD)/reg/share.o
$(BUILD)/tests/unit/verbs: STANDS_IN_FOR := $(BUILD)/reg/backend/verbs.o
$(BUILD)/tests/unit/math: $(BUILD)/dropin/math.o
VERBSCACHE_UNIT := $(patsubst %,$(BUILD)/tests/unit/%,verbscache verbscache_ahead verbscache_demand verbscache_random)
$(VERBSCACHE_UNIT): $(addprefix $(BUILD)/extra/verbscache/,cache.o calls.o domain.o shape.o site.o)
$(VERBSCACHE_UNIT): STANDS_IN_FOR := $(BUILD)/base/memlock.o
$(BUILD)/tests/unit/lendq: STANDS_IN_FOR := $(patsubst %.c,$(BUILD)/%.o,$(wildcard lend/*.c))
$(LIVE): $(BUILD)/%: %.c $(BUILD)/libhugepin.so $(BUILD)/libhugepin-verbs.so $(EXTRA_LIB) $(BUILD)/flags
	$(call say,TEST,$<)
	$(Q)$(CC) $(FLAGS) $(EXTRA_INCLUDE) $(TEST_FLAGS) -MMD -MP $(LDFLAGS) -o $@ $< $(LINK_DIRS) $(LINK_LINE)
$(EXAMPLES): $(BUILD)/%: %.c $(BUILD)/libhugepin.so $(BUILD)/libhugepin-verbs.so $(EXTRA_LIB) $(BUILD)/flags
	$(call say,EXAMPLE,$<)
	$(Q)$(if $(filter examples/mpi_%,$<),OMPI_CC='$(CC)' MPICH_CC='$(CC)' $(MPICC),$(CC)) $(FLAGS) $(EXTRA_INCLUDE) -MMD -MP $(LDFLAGS) -o $@ $< $(LINK_DIRS) $(LINK_LINE)
define test_library
	$(call say,TEST,$<)
	$(Q)$(CC) $(FLAGS) -fno-builtin -shared -Wl,-rpath,'$$ORIGIN' $(LDFLAGS) -o $@ $<
endef
$(BUILD)/tests/live/%.so: tests/live/lib/%.c $(BUILD)/flags
	$(test_library)
$(BUILD)/extra/%.so: extra/%.c $(BUILD)/flags
	$(test_library)

tests: all $(UNIT) $(LIVE) $(EXAMPLES) $(if $(SAN),,$(TEST_LIBS) numpy nbdkit) ## build the tests

# As root, so many hugepages are reserved for the tests, and given back: see tests/run. POOL=: the pool is as it is.
POOL ?= 600
# The command that repeats a failed test, but for its name: with the variables that were set.
check: export REPEAT = $(strip make check $(foreach v,BUILD CC CFLAGS SAN DEBUG WERROR CI GUESTS JOBS POOL TEST_LIMIT,$(if $(filter command environment,\
	$(firstword $(origin $(v)))),$(v)='$($(v))')))
check: ## install what is missing, build, run the tests; as root with a hugetlb pool of their own
	$(Q)tools/setup build check
	$(Q)$(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc)) tests
	$(Q)BUILD='$(abspath $(BUILD))' SAN='$(SAN)' POOL='$(POOL)' tests/run $(TESTS)

# As root the pool is resized meanwhile, which is not for a machine where others use it: ARGS= then.
SECONDS ?= 1200
soak: ARGS ?= $(if $(filter 0,$(shell id -u)),-p 0$(comma)600)
SOAK = timeout -k 10 $$(($(SECONDS) + 300)) $(1) $(BUILD)/tests/soak/soak -t $$(($(SECONDS) / $(if $(SAN),1,2))) $(ARGS)
soak: tests ## random programs for SECONDS (1200), half of them under the drop-in; ARGS are tests/soak/soak.c's
	$(SOAK)
	$(if $(SAN),,$(call SOAK,env LD_PRELOAD=$(abspath $(BUILD))/libhugepin-malloc.so))

demo: ## install what is missing, build, show three programs without hugepin, with glibc's tunable and with hugepin: who gains here, and why
	$(Q)tools/setup build
	$(Q)$(MAKE) --no-print-directory all $(BENCH)/gather $(BENCH)/counted
	$(Q)BUILD='$(abspath $(BUILD))' tools/demo

lint: all ## check layers, exported names, pages, scripts
	tools/check-includes
	BUILD='$(BUILD)' tools/check-calls
	tools/check-atomics
	BUILD='$(BUILD)' tools/check-exports
	$(MAKE) --no-print-directory man-check
	tools/check-docs
	shellcheck -x -P SCRIPTDIR packaging/completions/hugepin \
		$$(grep -lrE --exclude-dir=corpus '^#!/bin/(ba)?sh' .ci bench debian extra tests tools)

man-check: ## check the man pages against mandoc and the tables they repeat
	tools/check-man

INSTALL_LIBS = libhugepin libhugepin-malloc libhugepin-verbs $(basename $(notdir $(EXTRA_LIB)))
INSTALL_LINKED = $(INSTALL_LIBS:%=$(BUILD)/installed/%.so)
$(INSTALL_LINKED): $(BUILD)/installed/paths
CMAKE_DIR := $(LIBDIR)/cmake/hugepin
# Other names under which people look for the libraries: libhugepin.pc beside hugepin.pc.
PACKAGES_IN = $(wildcard packaging/*.pc.in $(EXTRA:%=extra/%/*.pc.in))
PACKAGES = $(patsubst %.pc.in,%,$(notdir $(PACKAGES_IN)))
# Pages, with their further names, of libraries that are not built.
NO_PAGES = $(notdir $(foreach name,$(filter-out $(EXTRA),$(EXTRA_ALL)),$(wildcard extra/$(name)/*.[1-8])))
# What is installed, as it will lie below $(DESTDIR)/.
TREE := $(abspath $(BUILD)/installed/tree)
install: all $(INSTALL_LINKED) $(BUILD)/installed/hugepin ## install under $(DESTDIR)$(PREFIX)
	$(Q)rm -rf $(TREE)
	$(Q)install -d $(addprefix $(TREE),$(PREFIX)/bin $(PREFIX)/include $(LIBDIR)/pkgconfig $(CMAKE_DIR) $(PREFIX)/share/man \
		$(PREFIX)/share/bash-completion/completions $(PREFIX)/share/hugepin/bpftrace $(PREFIX)/share/doc/hugepin)
	$(Q)install -m 755 $(BUILD)/installed/hugepin $(TREE)$(PREFIX)/bin
	$(Q)install -m 644 $(filter-out $(NO_HEADERS),$(HEADERS)) include/*.hpp $(EXTRA_HEADERS) $(TREE)$(PREFIX)/include
	$(Q)install -m 644 $(BUILD)/libhugepin.a $(TREE)$(LIBDIR)
	$(Q)for l in $(INSTALL_LIBS); do \
		install -m 755 $(BUILD)/installed/$$l.so $(TREE)$(LIBDIR)/$$l.so.$(VERSION) && \
		ln -sf $$l.so.$(VERSION) $(TREE)$(LIBDIR)/$$l.so.$(SO) && \
		ln -sf $$l.so.$(SO) $(TREE)$(LIBDIR)/$$l.so || exit 1; done
	$(Q)for f in $(PACKAGES_IN) packaging/cmake/*.in; do \
		case $$f in *.pc.in) to=$(LIBDIR)/pkgconfig ;; *) to=$(CMAKE_DIR) ;; esac; f=$${f%.in} && \
		sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(LIBDIR))|' \
			-e 's|@VERSION@|$(VERSION)|g' -e 's|@SO@|$(SO)|' \
			-e "s|@INCLUDE@|$$(realpath -ms --relative-to=$(CMAKE_DIR) $(PREFIX)/include)|" \
			-e 's| @RUNPATH@|$(if $(RUNPATH), -Wl$(comma)-rpath$(comma)$(patsubst $(LIBDIR),$${libdir},$(RUNPATH)))|' \
			$$f.in >$(TREE)$$to/$${f##*/} || exit 1; done
	$(Q)for p in $(PACKAGES); do ln -sf $$p.pc $(TREE)$(LIBDIR)/pkgconfig/lib$$p.pc || exit 1; done
	$(Q)install -m 644 packaging/completions/hugepin $(TREE)$(PREFIX)/share/bash-completion/completions
	$(Q)install -m 644 $(BUILD)/hugepin-plot.py $(TREE)$(PREFIX)/share/hugepin
	$(Q)install -m 644 extra/bpftrace/*.bt $(TREE)$(PREFIX)/share/hugepin/bpftrace
	$(Q)install -m 644 LICENSE packaging/COPYING.jemalloc $(TREE)$(PREFIX)/share/doc/hugepin
	$(Q)tools/install-tree man $(TREE)$(PREFIX)/share/man $(NO_PAGES)
	$(Q)tools/install-tree install $(TREE) '$(DESTDIR)' '$(PREFIX)'
	$(Q)rm -rf $(TREE)
	$(if $(DESTDIR),,$(Q)tools/install-tree say '$(PREFIX)' '$(LIBDIR)' '$(SO)')

uninstall: ## remove what `make install` has put under $(PREFIX)
	$(Q)tools/install-tree uninstall '$(DESTDIR)' '$(PREFIX)'

clean: ## remove what was built
	rm -rf build $(BUILD)

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

FORCE:
.DELETE_ON_ERROR:
.PHONY: all numpy nbdkit tests check soak demo lint man-check install uninstall clean help FORCE
