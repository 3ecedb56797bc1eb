// The containers of hugepin_pmr.hpp on real memory. Prints TAP. tests/live/pmr.sh compiles and runs it.
#include <hugepin_pmr.hpp>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t LARGE = HUGEPIN_LARGE_MIN;
int number, failed;

void result(const char *name, const char *skipped = nullptr)
{
	std::printf("%sok %d - %s%s%s\n", failed ? "not " : "", ++number, name, skipped ? " # SKIP " : "", skipped ? skipped : "");
	failed = 0;
}

void expect(bool ok, const char *what, int line)
{
	if (!ok) {
		std::printf("# tests/live/pmr.cpp:%d: %s\n", line, what);
		failed++;
	}
}
#define EXPECT(condition) expect(condition, #condition, __LINE__)

bool in_heap(const void *p)
{
	struct hugepin_extent e;

	return hugepin_extent(p, &e, sizeof e) > 0;
}

bool has_hugepages(const void *p)
{
	struct hugepin_extent e;

	return hugepin_extent(p, &e, sizeof e) > 0 && e.kind != HUGEPIN_KIND_BASE;
}

bool is_aligned(const void *p, std::size_t to)
{
	return reinterpret_cast<std::uintptr_t>(p) % to == 0;
}

template <class T> using vector = std::vector<T, hugepin::allocator<T>>;

// Lives until after main: freed by the destructors of static objects.
std::pmr::vector<char> lasting(hugepin::resource());

void large_buffers_lie_in_the_heap_and_small_ones_do_not()
{
	vector<char> small(LARGE - 1), large(LARGE);
	std::pmr::vector<char> small_too(LARGE - 1, hugepin::resource()), large_too(LARGE, hugepin::resource());

	EXPECT(!in_heap(small.data()) && in_heap(large.data()));
	EXPECT(!in_heap(small_too.data()) && in_heap(large_too.data()));
	EXPECT(std::all_of(large.begin(), large.end(), [](char c) { return !c; }));
	result(__func__);
}

template <class Vector> void grow(Vector v)
{
	int wrong = 0;

	for (int i = 0; i < 3000000; i++)
		v.push_back(i);
	EXPECT(in_heap(v.data()) && v.size() == 3000000);
	for (int i = 0; i < 3000000; i++)
		wrong += v[static_cast<std::size_t>(i)] != i;
	EXPECT(wrong == 0);
	v.resize(100);
	v.shrink_to_fit();
	EXPECT(!in_heap(v.data()) && v[99] == 99);
}

void a_vector_grows_into_the_heap_and_shrinks_out_of_it()
{
	grow(vector<int>());
	grow(std::pmr::vector<int>(hugepin::resource()));
	result(__func__);
}

void other_containers_work()
{
	std::basic_string<char, std::char_traits<char>, hugepin::allocator<char>> line(1 << 20, 'x');
	std::map<int, vector<int>, std::less<>, hugepin::allocator<std::pair<const int, vector<int>>>> map;
	std::list<std::array<char, LARGE>, hugepin::allocator<std::array<char, LARGE>>> list(3);
	std::pmr::unordered_map<std::pmr::string, std::pmr::vector<int>> table(hugepin::resource());

	line += "yz";
	EXPECT(in_heap(line.data()) && line.size() == (1 << 20) + 2 && line.back() == 'z');
	for (int i = 0; i < 100; i++)
		map[i].assign(20000, i);
	EXPECT(in_heap(map[7].data()) && !in_heap(&map[7]) && map[99].back() == 99);
	EXPECT(in_heap(&list.back()));
	for (int i = 0; i < 50; i++)
		table[std::pmr::string(40000, static_cast<char>('0' + i))].resize(10000);
	EXPECT(table.size() == 50 && in_heap(table.begin()->first.data()) && in_heap(table.begin()->second.data()));
	result(__func__);
}

template <std::size_t Align> struct alignas(Align) block {
	char bytes[Align];
};

template <std::size_t Align> void align()
{
	for (std::size_t count : { std::size_t(1), LARGE / Align + 1 }) {
		vector<char> between(LARGE + 1); // the next free place is not aligned by luck
		vector<block<Align>> v(count);
		std::pmr::vector<block<Align>> w(count, hugepin::resource());

		EXPECT(is_aligned(v.data(), Align) && is_aligned(w.data(), Align));
		EXPECT(in_heap(v.data()) == (count * Align >= LARGE));
		std::memset(static_cast<void *>(v.data()), 1, count * Align);
		std::memset(static_cast<void *>(w.data()), 2, count * Align);
	}
}

void types_are_aligned_as_they_ask()
{
	align<16>();
	align<64>();
	align<4096>();
	align<65536>();
	align<std::size_t(2) << 20>();

	void *p = hugepin::resource()->allocate(100, 1 << 20);

	EXPECT(is_aligned(p, 1 << 20));
	hugepin::resource()->deallocate(p, 100, 1 << 20);
	result(__func__);
}

// Counts what goes through it.
class counting : public std::pmr::memory_resource {
public:
	std::size_t out = 0, largest = 0, calls = 0;

private:
	void *do_allocate(std::size_t bytes, std::size_t align) override
	{
		calls++;
		out += bytes;
		largest = std::max(largest, bytes);
		return std::pmr::new_delete_resource()->allocate(bytes, align);
	}
	void do_deallocate(void *p, std::size_t bytes, std::size_t align) override
	{
		out -= bytes;
		std::pmr::new_delete_resource()->deallocate(p, bytes, align);
	}
	bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override { return this == &other; }
};

void the_upstream_serves_small_requests_alone()
{
	counting upstream;
	hugepin::memory_resource resource(&upstream);

	EXPECT(resource.upstream_resource() == &upstream);
	{
		std::pmr::list<std::pmr::vector<char>> list(&resource);

		for (std::size_t bytes = 1; bytes < 4 * LARGE; bytes += 4000)
			list.emplace_back(bytes);
		EXPECT(upstream.calls > 40 && upstream.largest < LARGE && upstream.out > 0);
	}
	EXPECT(upstream.out == 0);
	{
		std::pmr::unsynchronized_pool_resource pool(hugepin::resource());
		std::pmr::vector<std::pmr::string> lines(10000, std::pmr::string(200, 'x', &pool), &pool);
		auto in = std::count_if(lines.begin(), lines.end(), [](auto &line) { return in_heap(line.data()); });

		EXPECT(in > 5000); // the pool takes larger and larger chunks
	}
	result(__func__);
}

void equal_allocators_hand_buffers_over()
{
	hugepin::memory_resource one, other;
	counting upstream;
	hugepin::memory_resource third(&upstream);
	vector<int> a(100000, 7), b;
	std::pmr::vector<int> c(100000, 7, &one), d(&other);
	const int *at = a.data(), *at_too = c.data();

	static_assert(std::allocator_traits<hugepin::allocator<int>>::is_always_equal::value);
	static_assert(std::is_empty_v<hugepin::allocator<int>> && sizeof a == sizeof(std::vector<int>));
	EXPECT(hugepin::allocator<int>() == hugepin::allocator<long>() && !(hugepin::allocator<int>() != hugepin::allocator<int>()));
	b = std::move(a);
	d = std::move(c);
	EXPECT(b.data() == at && d.data() == at_too);
	EXPECT(one == other && *hugepin::resource() == one && one != third && one != *std::pmr::new_delete_resource());
	result(__func__);
}

template <class Error, class Call> bool throws(Call call)
{
	try {
		call();
	} catch (const Error &) {
		return true;
	}
	return false;
}

void memory_that_cannot_be_had_is_an_exception()
{
	hugepin::allocator<double> a;
	volatile std::size_t most = PTRDIFF_MAX / sizeof(double);

	EXPECT(a.max_size() == most);
	EXPECT((throws<std::bad_array_new_length>([&] { (void)a.allocate(most + 1); })));
	EXPECT((throws<std::bad_array_new_length>([&] { (void)a.allocate(SIZE_MAX); })));
	EXPECT((throws<std::bad_alloc>([&] { (void)a.allocate(most); })));
	EXPECT((throws<std::bad_alloc>([&] { (void)hugepin::resource()->allocate(std::size_t(PTRDIFF_MAX) / 2, 64); })));
	EXPECT((throws<std::length_error>([&] { vector<double> v(most + 1); })));
	result(__func__);
}

long faults()
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return u.ru_minflt;
}

template <class Vector> long faults_of_forty()
{
	const long before = faults();
	double sum = 0;

	for (int i = 0; i < 40; i++) {
		Vector v((8 << 20) / sizeof(double), i);

		sum += std::accumulate(v.begin(), v.end(), 0.0);
	}
	EXPECT(sum == (8 << 20) / sizeof(double) * 780.0);
	return faults() - before;
}

// A vector of 8 MiB has 2048 base pages. glibc maps and faults them 40 times at worst, once at best.
void forty_vectors_fault_a_tenth_as_often()
{
	vector<char> probe(8 << 20, 1);

	if (!has_hugepages(probe.data())) {
		result(__func__, "no pool and no THP");
		return;
	}
	probe = {};

	const long plain = faults_of_forty<std::vector<double>>(), huge = faults_of_forty<vector<double>>();

	EXPECT(plain >= 2048 && huge * 10 < plain);
	std::printf("# page faults: std::allocator %ld, hugepin::allocator %ld\n", plain, huge);
	result(__func__);
}

// Each thread leaves the vectors that it filled in one of a few places, and frees those that it finds there.
void threads_hand_vectors_on()
{
	struct place {
		std::mutex mutex;
		vector<int> plain;
		std::pmr::vector<int> pmr{ hugepin::resource() };
	};
	std::array<place, 3> places;
	std::atomic<int> wrong = 0, received = 0;
	std::vector<std::thread> threads;
	const auto is_whole = [](const auto &v) { return std::count(v.begin(), v.end(), static_cast<int>(v.size())) == int(v.size()); };

	for (int thread = 0; thread < 4; thread++)
		threads.emplace_back([&, thread] {
			for (int round = 0; round < 500; round++) {
				const int size = 9000 + 3001 * thread + round;
				vector<int> plain(static_cast<std::size_t>(size), size);
				std::pmr::vector<int> pmr(static_cast<std::size_t>(size), size, hugepin::resource());
				place &at = places[static_cast<std::size_t>(thread + round) % places.size()];
				{
					const std::lock_guard lock(at.mutex);

					at.plain.swap(plain);
					at.pmr.swap(pmr);
				}
				wrong += !is_whole(plain) || !is_whole(pmr);
				received += !plain.empty() && in_heap(plain.data()) && in_heap(pmr.data());
			}
		});
	for (auto &t : threads)
		t.join();
	EXPECT(wrong == 0 && received == 4 * 500 - 3);
	result(__func__);
}

void a_child_has_its_own_copy()
{
	vector<int> v(1 << 20, 1);
	std::pmr::vector<int> w(1 << 20, 2, hugepin::resource());
	int status = -1;
	const pid_t child = fork();

	if (child == 0) {
		bool ok = v.front() == 1 && v.back() == 1 && w.front() == 2 && w.back() == 2;

		std::fill(v.begin(), v.end(), 3);
		w.clear();
		w.shrink_to_fit();
		vector<int> fresh(1 << 20, 4);
		ok = ok && in_heap(fresh.data()) && v.back() == 3 && fresh.back() == 4;
		_exit(ok ? 0 : 1);
	}
	EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	EXPECT(std::count(v.begin(), v.end(), 1) == 1 << 20 && std::count(w.begin(), w.end(), 2) == 1 << 20);
	result(__func__);
}

} // namespace

int main()
{
	std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
	lasting.resize(1 << 20, 'x');
	large_buffers_lie_in_the_heap_and_small_ones_do_not();
	a_vector_grows_into_the_heap_and_shrinks_out_of_it();
	other_containers_work();
	types_are_aligned_as_they_ask();
	the_upstream_serves_small_requests_alone();
	equal_allocators_hand_buffers_over();
	memory_that_cannot_be_had_is_an_exception();
	forty_vectors_fault_a_tenth_as_often();
	threads_hand_vectors_on();
	a_child_has_its_own_copy();
	std::printf("1..%d\n", number);
	return 0;
}
