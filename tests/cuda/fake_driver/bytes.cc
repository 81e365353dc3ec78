#include "bytes.h"

#include <cstring>
#include <initializer_list>

#if defined(__SANITIZE_THREAD__)
#define FAKE_CUDA_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FAKE_CUDA_TSAN 1
#endif
#endif

#define FAKE_CUDA_UNSEEN __attribute__((noinline, no_sanitize("thread", "address")))

namespace fake_cuda {
namespace {

// Word accesses are volatile, so that the compiler does not make calls of memcpy and memset out of their loops, which
// sanitizers intercept.
using Word [[gnu::may_alias, gnu::aligned(1)]] = uint64_t;

#ifdef FAKE_CUDA_TSAN
FAKE_CUDA_UNSEEN unsigned char LoadUnseen(const unsigned char* from) {
  return *static_cast<const volatile unsigned char*>(from);
}

FAKE_CUDA_UNSEEN void StoreUnseen(unsigned char* to, unsigned char value) {
  *static_cast<volatile unsigned char*>(to) = value;
}

FAKE_CUDA_UNSEEN void CopyUnseen(unsigned char* to, const unsigned char* from, size_t bytes) {
  size_t i = 0;
  for (; i + sizeof(Word) <= bytes; i += sizeof(Word)) {
    *reinterpret_cast<volatile Word*>(to + i) = *reinterpret_cast<const volatile Word*>(from + i);
  }
  for (; i < bytes; ++i) StoreUnseen(to + i, LoadUnseen(from + i));
}

// One visible byte of each 8 is enough to report a host thread that reads or writes more than single bytes. The
// accesses are atomic, so that ThreadSanitizer does not report two operations that race.
void ShowHostRead(const unsigned char* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 8) (void)__atomic_load_n(from + i, __ATOMIC_RELAXED);
  if (bytes > 0) (void)__atomic_load_n(from + bytes - 1, __ATOMIC_RELAXED);
}

void ShowHostWrite(unsigned char* to, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 8) __atomic_store_n(to + i, LoadUnseen(to + i), __ATOMIC_RELAXED);
  if (bytes > 0) __atomic_store_n(to + bytes - 1, LoadUnseen(to + bytes - 1), __ATOMIC_RELAXED);
}
#endif

}  // namespace

void CopyBytes(unsigned char* to, bool to_host, const unsigned char* from, bool from_host, size_t bytes) {
#ifdef FAKE_CUDA_TSAN
  if (from_host) ShowHostRead(from, bytes);
  CopyUnseen(to, from, bytes);
  if (to_host) ShowHostWrite(to, bytes);
#else
  (void)to_host, (void)from_host;
  std::memcpy(to, from, bytes);
#endif
}

void SetBytes(unsigned char* to, bool to_host, unsigned char value, size_t bytes) {
#ifdef FAKE_CUDA_TSAN
  for (size_t i = 0; i < bytes; ++i) StoreUnseen(to + i, value);
  if (to_host) ShowHostWrite(to, bytes);
#else
  (void)to_host;
  std::memset(to, value, bytes);
#endif
}

FAKE_CUDA_UNSEEN uint64_t HashBytes(const unsigned char* from, size_t bytes) {
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;
  uint64_t hash = bytes * kFactor;
  size_t i = 0;
  for (; i + sizeof(Word) <= bytes; i += sizeof(Word)) {
    hash = (hash ^ *reinterpret_cast<const volatile Word*>(from + i)) * kFactor;
    hash ^= hash >> 29;
  }
  for (; i < bytes; ++i) hash = (hash ^ *static_cast<const volatile unsigned char*>(from + i)) * kFactor;
  return hash ^ (hash >> 32);
}

uint32_t LoadValue(const unsigned char* from) {
  return __atomic_load_n(reinterpret_cast<const uint32_t*>(from), __ATOMIC_ACQUIRE);
}

uint64_t Mix(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
  uint64_t hash = seed;
  for (uint64_t part : {a, b, c}) {
    hash += part + 0x9e3779b97f4a7c15;
    hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9;
    hash = (hash ^ (hash >> 27)) * 0x94d049bb133111eb;
    hash ^= hash >> 31;
  }
  return hash;
}

}  // namespace fake_cuda
