#include "sim/network/nic_sender.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "agent/plan/plan.h"

namespace railsd::sim {

void NicSender::UseScheduler(double speed_bytes_per_s, uint64_t chunk_bytes) {
  if (speed_bytes_per_s <= 0) return;
  progress_ = std::make_unique<RailProgress>();
  scheduler_ = std::make_unique<RailScheduler>(
      SchedulerOptions{.speed_bytes_per_s = speed_bytes_per_s, .chunk_bytes = chunk_bytes}, progress_.get());
  by_peer_.assign(nodes_, kNone);
}

void NicSender::OnAdded(uint32_t connection, uint64_t bytes) {
  Connection& to = connections_[connection];
  left_bytes_ += bytes;
  if (to.dead || bytes == 0) return;
  if (scheduler_ != nullptr) {
    by_peer_[to.path.destination_node] = connection;
    scheduler_->Add(0, PeerIndex(to.path.destination_node), PlaceOf(to), bytes);
    ask_ = true;
  }
  Enqueue(connection);
}

void NicSender::OnRemoved(uint32_t connection, uint64_t bytes) {
  const Connection& from = connections_[connection];
  left_bytes_ -= bytes;
  if (scheduler_ == nullptr || from.dead) return;
  scheduler_->Remove(0, PeerIndex(from.path.destination_node), bytes);
}

void NicSender::OnDead(uint32_t connection, double now) {
  Connection& to = connections_[connection];
  if (to.dead) return;
  const PeerIndex peer(to.path.destination_node);
  if (scheduler_ != nullptr) {
    scheduler_->Remove(0, peer, to.left);
    for (const uint64_t piece : to.pieces) scheduler_->OnEnded(0, peer, piece, false, At(now));
    to.pieces.clear();
    to.piece_acknowledged = 0;
    ask_ = true;
  }
  to.dead = true;
  left_bytes_ += to.posted;
  posted_bytes_ -= to.posted;
  to.left += to.posted;
  to.posted = 0;
}

void NicSender::OnAlive(uint32_t connection) {
  Connection& to = connections_[connection];
  if (!to.dead) return;
  to.dead = false;
  left_bytes_ -= to.left;
  OnAdded(connection, to.left);
}

void NicSender::OnAcknowledged(uint32_t connection, uint64_t bytes, double now) {
  Connection& to = connections_[connection];
  if (scheduler_ != nullptr) {
    to.piece_acknowledged += bytes;
    while (!to.pieces.empty() && to.piece_acknowledged >= to.pieces.front()) {
      to.piece_acknowledged -= to.pieces.front();
      scheduler_->OnEnded(0, PeerIndex(to.path.destination_node), to.pieces.front(), true, At(now));
      to.pieces.pop_front();
      ask_ = true;
    }
    if (to.pieces.empty()) to.piece_acknowledged = 0;
  }
  Enqueue(connection);
}

void NicSender::Enqueue(uint32_t connection) {
  Connection& to = connections_[connection];
  if (to.in_turn || to.dead || (to.posted == 0 && (to.left == 0 || scheduler_ != nullptr))) return;
  to.in_turn = true;
  turn_.push_back(connection);
}

void NicSender::PostAgain(uint32_t connection, uint64_t bytes) {
  connections_[connection].posted += bytes;
  posted_bytes_ += bytes;
  Enqueue(connection);
}

// Lets the scheduler choose until its windows are full.
void NicSender::Post(double now) {
  while (ask_) {
    const std::optional<RailScheduler::Choice> choice = scheduler_->Next(At(now));
    if (!choice.has_value()) {
      ask_ = false;
      return;
    }
    const uint32_t number = by_peer_[choice->peer.value()];
    Connection& to = connections_[number];
    const uint64_t bytes = NextChunkBytes(to.left, choice->piece_bytes);
    to.left -= bytes;
    left_bytes_ -= bytes;
    to.posted += bytes;
    posted_bytes_ += bytes;
    to.pieces.push_back(bytes);
    scheduler_->OnPosted(0, choice->peer, bytes, At(now));
    Enqueue(number);
  }
}

bool NicSender::IsReady(const Connection& connection, uint32_t packet_bytes, double now) const {
  const uint64_t waiting = connection.posted + (scheduler_ == nullptr ? connection.left : 0);
  if (waiting == 0 || connection.dead || now < connection.paused_until) return false;
  const uint64_t next = std::min<uint64_t>(waiting, packet_bytes);
  // One packet may always be in flight, even if the window is smaller.
  return connection.in_flight == 0 || static_cast<double>(connection.in_flight + next) <= connection.window.bytes();
}

uint32_t NicSender::Choose(uint32_t packet_bytes, double now, uint32_t* bytes) {
  if (scheduler_ != nullptr) Post(now);
  while (!turn_.empty()) {
    const uint32_t number = turn_.front();
    Connection& to = connections_[number];
    if (IsReady(to, packet_bytes, now)) {
      *bytes = static_cast<uint32_t>(std::min<uint64_t>(packet_bytes, to.posted > 0 ? to.posted : to.left));
      return number;
    }
    turn_.pop_front();
    to.in_turn = false;
    to.turns = 0;
  }
  return kNone;
}

void NicSender::OnSent(uint32_t connection, uint32_t bytes) {
  Connection& to = connections_[connection];
  if (to.posted > 0) {
    to.posted -= bytes;
    posted_bytes_ -= bytes;
  } else {
    to.left -= bytes;
    left_bytes_ -= bytes;
  }
  to.in_flight += bytes;
  // A connection of N merged flows sends N packets in its turn.
  if (++to.turns < std::llround(to.weight) || turn_.front() != connection) return;
  to.turns = 0;
  turn_.pop_front();
  turn_.push_back(connection);
}

double NicSender::AskAt() const {
  if (scheduler_ == nullptr || scheduler_->NextDeadline() == absl::InfiniteFuture()) {
    return std::numeric_limits<double>::infinity();
  }
  return absl::ToDoubleSeconds(scheduler_->NextDeadline() - absl::UnixEpoch());
}

}  // namespace railsd::sim
