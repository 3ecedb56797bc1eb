// hugepin for C++17 containers: a standard allocator and a std::pmr::memory_resource. The guide is hugepin_pmr(3).
//
// Large requests, of HUGEPIN_LARGE_MIN bytes and more, go to the heap of hugepin.h. Smaller ones go where they would go
// without hugepin: operator new, or the resource's upstream. Which way a buffer went follows from its size alone, which
// containers hand back. So no buffer has a header, and a small request costs one compare more.
//
// Any thread may call. Buffers and containers may be handed between threads. Memory that cannot be had is
// std::bad_alloc; without exceptions (-fno-exceptions) it is std::abort(), as in the standard library.
#ifndef HUGEPIN_PMR_HPP
#define HUGEPIN_PMR_HPP

#if __cplusplus < 201703L
#error "hugepin_pmr.hpp needs C++17"
#else // to the end: no further errors

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory_resource>
#include <new>
#include <type_traits>

#include "hugepin.h"

namespace hugepin {

namespace detail {

template <class Error> [[noreturn]] inline void fail()
{
#ifdef __cpp_exceptions
	throw Error();
#else
	std::abort();
#endif
}

constexpr bool is_large(std::size_t bytes) noexcept
{
	return bytes >= HUGEPIN_LARGE_MIN;
}

inline void *allocate_large(std::size_t bytes, std::size_t align)
{
	// If the heap has no room, a large buffer is the C library's, which aligns as for max_align_t.
	void *p = align <= alignof(std::max_align_t) ? hugepin_malloc(bytes) : hugepin_aligned_alloc(align, bytes);

	if (!p)
		fail<std::bad_alloc>();
	return p;
}

} // namespace detail

// The allocator of containers: std::vector<double, hugepin::allocator<double>>. All of its objects are equal, so
// containers are moved and swapped without copying elements. It constructs elements as std::allocator does.
template <class T> class allocator {
public:
	using value_type = T;
	using size_type = std::size_t;
	using difference_type = std::ptrdiff_t;
	using propagate_on_container_move_assignment = std::true_type;
	using is_always_equal = std::true_type;

	constexpr allocator() noexcept = default;
	template <class U> constexpr allocator(const allocator<U> &) noexcept {}

	static constexpr size_type max_size() noexcept { return PTRDIFF_MAX / sizeof(T); }

	// Room for `count` elements. std::bad_array_new_length for more than max_size(), else std::bad_alloc.
	[[nodiscard]] T *allocate(size_type count)
	{
		if (count > max_size())
			detail::fail<std::bad_array_new_length>();

		const size_type bytes = count * sizeof(T);

		if (detail::is_large(bytes))
			return static_cast<T *>(detail::allocate_large(bytes, alignof(T)));
		if constexpr (is_over_aligned)
			return static_cast<T *>(::operator new(bytes, std::align_val_t(alignof(T))));
		else
			return static_cast<T *>(::operator new(bytes));
	}

	// `count` is what allocate() was called with.
	void deallocate(T *p, size_type count) noexcept
	{
		if (detail::is_large(count * sizeof(T)))
			hugepin_free(p);
		else if constexpr (is_over_aligned)
			::operator delete(p, std::align_val_t(alignof(T)));
		else
			::operator delete(p);
	}

	template <class U> friend constexpr bool operator==(const allocator &, const allocator<U> &) noexcept { return true; }
	template <class U> friend constexpr bool operator!=(const allocator &, const allocator<U> &) noexcept { return false; }

private:
	static constexpr bool is_over_aligned = alignof(T) > __STDCPP_DEFAULT_NEW_ALIGNMENT__;
};

// The resource of std::pmr containers. Small requests go to `upstream`, which must outlive the resource.
class memory_resource final : public std::pmr::memory_resource {
public:
	explicit memory_resource(std::pmr::memory_resource *upstream = std::pmr::new_delete_resource()) noexcept
		: upstream_(upstream)
	{
	}
	memory_resource(const memory_resource &) = delete;
	memory_resource &operator=(const memory_resource &) = delete;

	std::pmr::memory_resource *upstream_resource() const noexcept { return upstream_; }

private:
	void *do_allocate(std::size_t bytes, std::size_t align) override
	{
		return detail::is_large(bytes) ? detail::allocate_large(bytes, align) : upstream_->allocate(bytes, align);
	}

	void do_deallocate(void *p, std::size_t bytes, std::size_t align) override
	{
		if (detail::is_large(bytes))
			hugepin_free(p);
		else
			upstream_->deallocate(p, bytes, align);
	}

	// There is one heap. So resources are equal if their upstreams are, those of two shared libraries, too.
	bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override
	{
#ifdef __cpp_rtti
		const auto *same = dynamic_cast<const memory_resource *>(&other);

		return same && *same->upstream_ == *upstream_;
#else
		return this == &other;
#endif
	}

	std::pmr::memory_resource *upstream_;
};

// The program's resource, whose upstream is std::pmr::new_delete_resource(). Never destroyed: objects with static
// storage may use it in their destructors.
inline std::pmr::memory_resource *resource() noexcept
{
	alignas(memory_resource) static std::byte place[sizeof(memory_resource)];
	static std::pmr::memory_resource *const it = ::new (static_cast<void *>(place)) memory_resource;

	return it;
}

} // namespace hugepin

#endif

#endif
