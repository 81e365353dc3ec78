// A transport whose device is broken in ways that are drawn from a seed: it wraps another one and keeps to the seam's
// contract, which is what makes its faults fair. For tests that are driven by one thread.
#ifndef RAILSD_TESTS_SUPPORT_FAKE_FAULTY_TRANSPORT_H_
#define RAILSD_TESTS_SUPPORT_FAKE_FAULTY_TRANSPORT_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/transport/transport.h"

namespace railsd {

// How often each fault happens: chances in 1000.
struct FaultRates {
  // A Post() takes only some of its orders, or none. Stands for a send queue that is full, a kernel short of memory.
  uint32_t part_of_post = 0;
  // An order is taken, never leaves, and its connection breaks. Stands for a post that the device refuses (its queue
  // pair goes into error), a socket that the kernel has closed meanwhile.
  uint32_t failed_post = 0;
  // A connection to one peer breaks in a Poll(). Stands for a reset, retries exceeded, a port that flaps.
  uint32_t broken = 0;
  // A completion is told up to `late_polls` later. Stands for moderated interrupts, a thread that did not run.
  uint32_t late = 0;
  uint32_t late_polls = 12;
  // Completions come in any order that the contract leaves open: queue pairs have none among each other, nor have
  // sockets; what a connection carried is still told before its end.
  bool shuffled = false;
  // A completion is never told, though its work is done. Stands for an overrun completion queue, a lost interrupt of a
  // device that has no other work. Posted orders come back when the endpoint is torn down or flushed (StopSends(),
  // RemovePeer(), the end of the connection), as the contract demands; arrivals are never told.
  uint32_t lost_sends = 0;
  uint32_t lost_arrivals = 0;
  // An arrival is told twice. Stands for a peer, or something between, that sends a fence again. A device that
  // completes a work request twice is found by its transport, which knows them; the contract has one end for each.
  uint32_t repeated_arrivals = 0;
};

struct FaultCounts {
  uint64_t parts_of_posts = 0, failed_posts = 0, broken = 0, late = 0, lost_sends = 0, lost_arrivals = 0;
  uint64_t repeated_arrivals = 0;
  FaultCounts& operator+=(const FaultCounts& other) {
    parts_of_posts += other.parts_of_posts;
    failed_posts += other.failed_posts;
    broken += other.broken;
    late += other.late;
    lost_sends += other.lost_sends;
    lost_arrivals += other.lost_arrivals;
    repeated_arrivals += other.repeated_arrivals;
    return *this;
  }
};

class FaultyTransport final : public RailTransport {
 public:
  // `break_link` breaks the connection to a peer, at both ends and with what is under way over it, but not for ever.
  FaultyTransport(std::unique_ptr<RailTransport> inner, uint64_t seed, const FaultRates& rates,
                  std::function<void(PeerIndex)> break_link);

  // From now on. The order that is the `nth` from now (0: the next) to be posted fails, whatever the rates are.
  void SetRates(const FaultRates& rates) { rates_ = rates; }
  void FailPost(uint64_t nth) { fail_post_ = nth; }
  const FaultCounts& counts() const { return counts_; }
  // Completions that are kept back, not counting those that are lost.
  size_t held() const { return held_.size(); }

  TransportInfo Info() override { return inner_->Info(); }
  void SetPeer(const RailPeer& peer) override;
  void RemovePeer(PeerIndex peer) override;
  size_t Post(absl::Span<const SendOrder> orders) override;
  void StopSends(JobTag job) override;
  size_t Poll(absl::Duration max_wait, absl::Span<RailEvent> out) override;
  void Wake() override { inner_->Wake(); }

 private:
  static constexpr uint64_t kNever = UINT64_MAX;
  struct Held {
    RailEvent event;
    uint64_t due_poll = 0;
  };
  bool Draw(uint32_t per_thousand);
  void FailOrder(const SendOrder& order);
  void Take(const RailEvent& event);
  // Ends the lost orders that `which` picks: the endpoint that knows of them is torn down.
  void EndLost(const std::function<bool(const RailEvent&)>& which, SendResult result);
  bool MustPrecede(const RailEvent& earlier, const RailEvent& later) const;
  bool MayBeTold(size_t index) const;

  const std::unique_ptr<RailTransport> inner_;
  std::mt19937_64 random_;
  FaultRates rates_;
  const std::function<void(PeerIndex)> break_link_;
  std::set<PeerIndex> peers_;
  std::deque<Held> held_;        // not told yet, in the order in which they happened
  std::vector<RailEvent> lost_;  // told when their endpoint ends
  std::vector<RailEvent> fresh_;
  uint64_t polls_ = 0;
  size_t ends_ = 0;  // of connections, among `held_`
  uint64_t fail_post_ = kNever;
  FaultCounts counts_;
};

}  // namespace railsd

#endif  // RAILSD_TESTS_SUPPORT_FAKE_FAULTY_TRANSPORT_H_
