// Chooses the next packet of a NIC of the packet model. Connections take turns. In its turn a connection sends its
// bytes or, with RailScheduler of agent/rails, the chunks that the scheduler has chosen.
#ifndef RAILSD_SIM_NETWORK_NIC_SENDER_H_
#define RAILSD_SIM_NETWORK_NIC_SENDER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "agent/rails/rail_progress.h"
#include "agent/rails/rail_scheduler.h"
#include "sim/network/connection.h"

namespace railsd::sim {

class NicSender {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // `connections` outlives this; `node` is of `nodes`. `scheduler`: null for turns only.
  NicSender(std::vector<Connection>* connections, size_t node, size_t nodes)
      : connections_(*connections), node_(node), nodes_(nodes) {}
  void UseScheduler(double speed_bytes_per_s, uint64_t chunk_bytes);
  bool has_scheduler() const { return scheduler_ != nullptr; }

  // Bytes were added to, or taken from, the bytes left of a connection of this NIC.
  void OnAdded(uint32_t connection, uint64_t bytes);
  void OnRemoved(uint32_t connection, uint64_t bytes);
  // The path has died, or is alive again. OnDead() counts bytes that were posted and not sent as left again.
  void OnDead(uint32_t connection, double now);
  void OnAlive(uint32_t connection);
  void OnAcknowledged(uint32_t connection, uint64_t bytes, double now);
  // The connection may have become ready.
  void Enqueue(uint32_t connection);
  // The scheduler may choose again, though nothing has happened.
  void AskAgain() { ask_ = true; }

  // Returns the connection that sends now, and sets `bytes` to at most `packet_bytes`; kNone: none is ready.
  uint32_t Choose(uint32_t packet_bytes, double now, uint32_t* bytes);
  void OnSent(uint32_t connection, uint32_t bytes);
  // When AskAgain() is due; infinite: never.
  double AskAt() const;
  // Bytes per second of the present stretch of work, as RailScheduler measures them; 0: too short to tell, or none.
  double MeasuredRate() const {
    return progress_ == nullptr ? 0 : static_cast<double>(progress_->rate_bytes_per_s.load(std::memory_order_relaxed));
  }
  // Bytes of the NIC's connections that are neither posted nor sent, and so can move.
  uint64_t left_bytes() const { return left_bytes_; }
  // Bytes that the scheduler has chosen and that are not sent.
  uint64_t posted_bytes() const { return posted_bytes_; }
  // Posts bytes of a lost packet again.
  void PostAgain(uint32_t connection, uint64_t bytes);

 private:
  static absl::Time At(double now) { return absl::UnixEpoch() + absl::Seconds(now); }
  bool IsReady(const Connection& connection, uint32_t packet_bytes, double now) const;
  void Post(double now);
  uint32_t PlaceOf(const Connection& connection) const {
    return static_cast<uint32_t>((connection.path.destination_node + nodes_ - node_ - 1) % nodes_);
  }

  std::vector<Connection>& connections_;
  const size_t node_, nodes_;
  std::deque<uint32_t> turn_;  // connections
  uint64_t left_bytes_ = 0, posted_bytes_ = 0;
  // Used only with a scheduler.
  std::unique_ptr<RailProgress> progress_;
  std::unique_ptr<RailScheduler> scheduler_;
  std::vector<uint32_t> by_peer_;  // the connection to each node
  bool ask_ = false;
};

}  // namespace railsd::sim

#endif  // RAILSD_SIM_NETWORK_NIC_SENDER_H_
