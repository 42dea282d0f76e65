#pragma once

namespace tutti::test {

// GCC defines macros, Clang has features.
#if !defined(__has_feature)
#define TUTTI_HAS_FEATURE(name) 0
#else
#define TUTTI_HAS_FEATURE(name) __has_feature(name)
#endif

// A test that breaks the rules of streams on purpose is a data race for ThreadSanitizer.
#if defined(__SANITIZE_THREAD__) || TUTTI_HAS_FEATURE(thread_sanitizer)
inline constexpr bool thread_sanitizer = true;
#else
inline constexpr bool thread_sanitizer = false;
#endif

#if defined(__SANITIZE_ADDRESS__) || TUTTI_HAS_FEATURE(address_sanitizer)
inline constexpr bool address_sanitizer = true;
#else
inline constexpr bool address_sanitizer = false;
#endif

#undef TUTTI_HAS_FEATURE

}  // namespace tutti::test
