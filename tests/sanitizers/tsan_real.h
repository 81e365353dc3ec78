// For functions that come before those of a shared library and call them.
#ifndef RAILSD_TESTS_SANITIZERS_TSAN_REAL_H_
#define RAILSD_TESTS_SANITIZERS_TSAN_REAL_H_

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace railsd {

// The function of that symbol in the libraries behind the program.
template <typename Function>
Function* Real(const char* symbol) {
  void* const found = dlsym(RTLD_NEXT, symbol);
  if (found == nullptr) {
    std::fprintf(stderr, "no %s in any shared library, which ThreadSanitizer builds need\n", symbol);
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}

}  // namespace railsd

#endif  // RAILSD_TESTS_SANITIZERS_TSAN_REAL_H_
