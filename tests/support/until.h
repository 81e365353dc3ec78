// Waiting in tests: for a condition, never for a time.
#ifndef RAILSD_TESTS_SUPPORT_UNTIL_H_
#define RAILSD_TESTS_SUPPORT_UNTIL_H_

#include <chrono>
#include <thread>

namespace railsd::testing {

// Repeats `step` until `done()`; false when it is not after a minute, which no slow machine needs.
template <typename Condition, typename Step>
bool Until(const Condition& done, const Step& step) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    step();
  }
  return true;
}

// The same for what other threads do.
template <typename Condition>
bool Until(const Condition& done) {
  return Until(done, [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
}

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_SUPPORT_UNTIL_H_
