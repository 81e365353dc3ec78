// One rail with its thread: a RailTransport and a RailSender driven by commands from the engine, answering by events.
#ifndef RAILSD_AGENT_RAILS_RAIL_H_
#define RAILSD_AGENT_RAILS_RAIL_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/types/span.h"
#include "agent/base/ids.h"
#include "agent/base/wake_event.h"
#include "agent/rails/rail_sender.h"
#include "agent/transport/transport.h"

namespace railsd {

// A message of the peer's end of the rail to this one.
struct PeerSignal {
  PeerIndex peer;
  std::string bytes;
};

// A command of the engine to a rail.
struct RailCommand {
  enum class Kind : uint8_t {
    kGive,
    kRelease,
    kDrop,
    kStopSends,
    kOpenZone,
    kCloseZone,
    kSetPeer,
    kRemovePeer,
    kSignal,
    kShares,
    kExpect
  };
  Kind kind = Kind::kGive;
  Assignment give = {};                           // kGive; kRelease and kDrop use its stream
  uint64_t release_bytes = 0;                     // kRelease
  JobTag job = {};                                // kStopSends
  std::shared_ptr<const ReceiveZone> zone = {};   // kOpenZone
  ZoneRef ref = {};                               // kCloseZone
  bool writers_stopped = true;                    // kCloseZone
  std::shared_ptr<const RailPeer> set_peer = {};  // kSetPeer
  PeerIndex peer = {};                            // kRemovePeer
  std::shared_ptr<const PeerSignal> signal = {};  // kSignal
  std::shared_ptr<const RailShares> shares = {};  // kShares
  uint32_t priority = 0;                          // kExpect
};
// Carries a command out. The rail's thread. `binder`: TransportInfo::binder of the rail.
void Apply(RailCommand& command, absl::Time now, RailSender* sender, ZoneBinder* binder);

// The engine's view of a rail; a test can stand in for the thread. Called by the engine's thread only.
class RailPort {
 public:
  virtual ~RailPort() = default;
  // False when the queue is full: nothing was taken, try again after the next events.
  virtual bool TryCommand(RailCommand command) = 0;
  // Takes up to `out.size()` events; returns how many.
  virtual size_t TakeEvents(absl::Span<RailEvent> out) = 0;
  // Wakes the rail's thread for the commands since the last call.
  virtual void Flush() = 0;
  virtual const RailCounters& counters() const = 0;
  virtual RailDevice Device() const { return {}; }
  // As the transport says.
  virtual TransportTraits traits() const { return {}; }
};

// Owns the transport and the thread "rail-<index>". Queues are bounded single-producer single-consumer rings that never
// allocate. Commands keep their order with one exception: commands about receiving (kOpenZone, kCloseZone) have a queue
// of their own, which the thread empties before it takes each of the other commands.
class Rail final : public RailPort {
 public:
  // `engine_wake` and `board` outlive the rail; the former is woken when events were published. Each of the two command
  // queues holds `command_capacity`. `spin`: as AgentOptions::spin.
  Rail(RailIndex index, std::unique_ptr<RailTransport> transport, const SchedulerOptions& scheduler, RailBoard* board,
       WakeEvent* engine_wake, size_t command_capacity, size_t event_capacity,
       absl::Duration spin = absl::ZeroDuration());
  ~Rail() override;  // stops and joins the thread

  void Start();
  RailIndex index() const { return index_; }
  size_t command_depth() const;  // any thread; approximate
  size_t event_depth() const;
  // Rounds of the thread's loop, at least one in a second. Any thread.
  uint64_t turns() const { return turns_.load(std::memory_order_relaxed); }

  uint64_t sleeps() const { return sleeps_.load(std::memory_order_relaxed); }  // any thread

  bool TryCommand(RailCommand command) override;
  size_t TakeEvents(absl::Span<RailEvent> out) override;
  void Flush() override;
  const RailCounters& counters() const override { return counters_; }
  RailDevice Device() const override { return transport_->Info().device; }
  TransportTraits traits() const override { return traits_; }

 private:
  struct Queues;
  void Run();
  bool RunCommands(absl::Time now);  // false: there were none
  // Hands the sender's reports to the engine, as far as there is room.
  void Publish(absl::Time now);
  void Announce();
  const RailIndex index_;
  std::unique_ptr<RailTransport> transport_;
  const RailCounters& counters_;
  const TransportTraits traits_;
  ZoneBinder* const binder_;
  RailBoard& board_;
  RailSender sender_;
  WakeEvent* const engine_wake_;
  const absl::Duration spin_;
  std::unique_ptr<Queues> queues_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> turns_{0}, sleeps_{0};
  std::thread thread_;
  bool unflushed_ = false;  // the engine's thread: commands since the last Flush()
};

}  // namespace railsd

#endif  // RAILSD_AGENT_RAILS_RAIL_H_
