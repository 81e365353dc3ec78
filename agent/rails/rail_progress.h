// The progress of rails, which other rails and the engine read while they work.
#ifndef RAILSD_AGENT_RAILS_RAIL_PROGRESS_H_
#define RAILSD_AGENT_RAILS_RAIL_PROGRESS_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/time/time.h"

namespace railsd {

// State of one rail. Written by its thread only, read by any thread (relaxed): good enough to decide which rail lags,
// and exact when nothing moves.
struct RailProgress {
  using Value = std::atomic<uint64_t>;
  Value unposted_bytes{0}, in_flight_bytes{0};
  Value done_bytes{0};        // of all that the engine has assigned: carried, lost, or returned; never falls
  Value returned_chunks{0};   // chunks whose connection broke
  Value rate_bytes_per_s{0};  // in the present stretch of work; 0: too short to tell
  // Set before the thread starts.
  double speed_bytes_per_s = 0;
  uint64_t window_bytes = 0;
  uint64_t movable_bytes = 0;  // moving less to another rail is not worth while

  // The rate that is expected of it, in bytes per second; more than 0.
  double Rate() const {
    const uint64_t rate = rate_bytes_per_s.load(std::memory_order_relaxed);
    return rate > 0 ? static_cast<double>(rate) : std::max(1.0, speed_bytes_per_s);
  }
  // How long the rail needs for bytes that it has not posted.
  absl::Duration Left() const {
    return absl::Seconds(static_cast<double>(unposted_bytes.load(std::memory_order_relaxed)) / Rate());
  }
  // How long the rail needs for its posted bytes.
  absl::Duration Posted() const {
    return absl::Seconds(static_cast<double>(in_flight_bytes.load(std::memory_order_relaxed)) / Rate());
  }
  // Whether this rail ends later than `dry`, a rail that has posted everything, would end if it took movable_bytes.
  // `dry` counts by its nominal speed, because its measured rate falls when its last peer was slow or silent.
  bool EndsAfter(const RailProgress& dry) const {
    const uint64_t bytes = dry.in_flight_bytes.load(std::memory_order_relaxed) + dry.movable_bytes;
    return Left() + Posted() > absl::Seconds(static_cast<double>(bytes) / dry.speed_bytes_per_s);
  }
  // Whether moving a part of the unposted bytes would pay. A move costs two messages between threads, and makes the
  // plan less even.
  bool Lags() const {
    constexpr uint64_t kMovable = 3;
    constexpr absl::Duration kMessages = absl::Microseconds(200), kEnough = absl::Milliseconds(10);
    const auto movable = static_cast<double>(kMovable * movable_bytes);
    const auto unposted = static_cast<double>(unposted_bytes.load(std::memory_order_relaxed));
    if (unposted <= movable * std::min(1.0, Rate() / speed_bytes_per_s)) return false;
    return Left() > std::min(kEnough, absl::Seconds(movable / speed_bytes_per_s) + kMessages);
  }
};

// Late binding's choices, of the daemon and of the simulator alike. `at(rail)` is the progress of a rail.

// The rail that would end last among the rails that lag, end after the dry one and satisfy may(rail); `dry` if there is
// none.
template <typename At, typename May>
size_t RailToRelieve(size_t rails, size_t dry, At at, May may) {
  size_t worst = dry;
  for (size_t r = 0; r < rails; ++r) {
    if (r == dry || !may(r) || !at(r).Lags() || !at(r).EndsAfter(at(dry))) continue;
    if (worst == dry || at(r).Left() > at(worst).Left()) worst = r;
  }
  return worst;
}

// The unposted bytes of `from` that should go to `to`: the part of `to` by rate, among these two and the rails that
// will soon be dry, for which takes(rail) is true.
template <typename At, typename Takes>
uint64_t BytesToMove(size_t rails, size_t from, size_t to, At at, Takes takes) {
  double sum = 0;
  for (size_t r = 0; r < rails; ++r) {
    if (r == from || r == to || takes(r)) sum += at(r).Rate();
  }
  const auto left = static_cast<double>(at(from).unposted_bytes.load(std::memory_order_relaxed));
  const uint64_t piece = at(to).movable_bytes;
  return std::max(piece, static_cast<uint64_t>(left * at(to).Rate() / std::max(sum, 1.0)) / piece * piece);
}

// The board that the rails of a node share with each other and the engine. Built before the rails' threads, outlives
// them.
class RailBoard {
 public:
  explicit RailBoard(size_t rails) : rails_(rails), received_(1 << 16) {}

  RailProgress& operator[](size_t rail) { return rails_[rail]; }
  const RailProgress& operator[](size_t rail) const { return rails_[rail]; }
  bool AnyLags() const {
    return std::any_of(rails_.begin(), rails_.end(), [](const RailProgress& rail) { return rail.Lags(); });
  }

  // Weights of fences in the engine's queues, by exchange. The rail that completes the whole weight wakes the engine.
  // The weights are hints, because numbers of sent exchanges repeat; the engine counts by itself.
  using Weight = std::atomic<uint32_t>;
  static constexpr uint16_t kSent = 4096;
  // A number for an exchange. The engine's thread.
  uint16_t TakeNumber() { return next_number_++; }
  Weight& sent(uint16_t number) { return sent_[number % kSent]; }
  Weight& received(uint16_t slot) { return received_[slot]; }

 private:
  std::deque<RailProgress> rails_;
  uint16_t next_number_ = 0;
  std::array<Weight, kSent> sent_{};
  std::vector<Weight> received_;  // by slot of the zone
};

}  // namespace railsd

#endif  // RAILSD_AGENT_RAILS_RAIL_PROGRESS_H_
