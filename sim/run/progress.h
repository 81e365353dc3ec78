// One line on a terminal that shows how much is done and how long the rest takes.
#ifndef RAILSD_SIM_RUN_PROGRESS_H_
#define RAILSD_SIM_RUN_PROGRESS_H_

#include <chrono>
#include <cstdio>
#include <string>

namespace railsd::sim {

// "[######------] 50 %, 12.0 s left". `share` is 0 to 1.
std::string ProgressLine(double share, double elapsed_seconds);

// Writes nothing unless the stream is a terminal. Not for several threads at once.
class Progress {
 public:
  explicit Progress(FILE* stream);
  ~Progress() { Clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Show(double share);
  void Clear();  // removes the line

 private:
  using Clock = std::chrono::steady_clock;
  FILE* const stream_;
  const bool terminal_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_;
  bool any_ = false;
};

}  // namespace railsd::sim

#endif  // RAILSD_SIM_RUN_PROGRESS_H_
