#include "agent/engine/engine.h"

#include <spdlog/logger.h>

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/base/failed_ranks.h"
#include "agent/base/log_value.h"

namespace railsd {
namespace {

constexpr size_t kEventBatch = 256;
constexpr size_t kQueuedBatches = 32;  // the most that a rail's queue of events holds
// A rail with so many waiting commands takes no signals. The peers' ends send them again.
constexpr size_t kMaxWaitingSignals = 1024;

std::vector<RailHandle> MakeHandles(const AgentOptions& options, const std::vector<RailPort*>& ports,
                                    const RailBoard& board) {
  std::vector<RailHandle> handles(ports.size());
  for (size_t r = 0; r < ports.size(); ++r) {
    handles[r].port = ports[r];
    handles[r].progress = &board[r];
    handles[r].speed_bytes_per_s = static_cast<double>(options.rails[r].speed_bytes_per_s);
  }
  return handles;
}

std::vector<double> SpeedsOf(const std::vector<RailHandle>& rails) {
  std::vector<double> speeds;
  for (const RailHandle& rail : rails) speeds.push_back(rail.speed_bytes_per_s);
  return speeds;
}

// Peers take every end for usable until they hear otherwise.
std::vector<RailState> UsableEnds(size_t rails) {
  std::vector<RailState> ends;
  for (size_t r = 0; r < rails; ++r) ends.push_back({RailIndex(static_cast<uint32_t>(r))});
  return ends;
}

}  // namespace

Engine::Engine(AgentOptions options, std::vector<RailPort*> rails, ZoneTable* zones, RailBoard* board,
               ControlLink* link, AgentObserver* observer, Copier* copier)
    : max_ranges_(options.limits.max_ranges_per_submission),
      options_(std::move(options)),
      observer_(observer),
      copier_(copier),
      outbox_(link),
      peers_(options_.node, rails.size()),
      tenants_(options_.tenants, options_.log),
      sessions_(options_.limits, options_.refused.get(), &tenants_),
      rails_(MakeHandles(options_, rails, *board)),
      groups_(options_, &peers_, &sessions_, &outbox_,
              [this](Group& group) {
                const bool ended = group.left && !jobs_.HasUnendedAfter(group.epoch, group.good_until);
                options_.log->info("{} group={} epoch={:016x}.{} good_until={} why={}",
                                   ended ? "group_ended" : "group_broken", LogValue(group.key.name),
                                   group.epoch.boot.value(), group.epoch.counter, group.good_until.value(),
                                   LogValue(ended ? std::string(group.why.message()) : group.why.ToString()));
                sweep_ = true;
                jobs_.OnGroupBroken(group);
              }),
      speeds_(SpeedsOf(rails_), options_.late_binding && options_.plan.policy == Policy::kLpt),
      health_(options_.health, rails.size()),
      told_ends_(UsableEnds(rails.size())),
      jobs_({&options_, &peers_, &sessions_, &groups_, &outbox_, &rails_, zones, board, &speeds_, &health_, copier_,
             observer_}),
      events_(kEventBatch) {}

void Engine::SetNow(absl::Time now) {
  now_ = now;
  jobs_.SetNow(now);
}

void Engine::OpenSession(SessionInfo info, Callback<absl::StatusOr<SessionId>> done) {
  if (draining_) return std::move(done)(absl::UnavailableError(absl::StrCat(options_.node, " is draining")));
  std::move(done)(sessions_.Open(std::move(info)));
}

void Engine::CloseSession(SessionId id, const std::string& reason, Callback<absl::Status> closed) {
  Session* session = sessions_.FindAny(id);
  if (session == nullptr) {
    return std::move(closed)(absl::NotFoundError(absl::StrCat("session ", id.value(), " is not open")));
  }
  session->closed.push_back(std::move(closed));
  if (session->closing) return;
  session->closing = true;
  sweep_ = true;
  groups_.AbandonJoins(id, absl::AbortedError(absl::StrCat("session ", id.value(), " ended: ", reason)));
  std::vector<Group*> mine;
  for (const auto& [epoch, group] : groups_.all()) mine.push_back(group.get());
  for (Group* group : mine) {
    for (Rank rank : group->local_ranks) {
      if (group->ranks[rank.value()].session != id) continue;
      groups_.MemberGone(
          *group, rank, jobs_.FinishedUntil(*group, rank),
          WithFailedRanks(absl::UnavailableError(absl::StrCat(group->Describe(rank), " is gone: ", reason)), {rank}));
    }
  }
  jobs_.AbortSession(
      id, absl::UnavailableError(absl::StrCat("session ", id.value(), " on ", options_.node, " is gone: ", reason)));
}

void Engine::AddSegment(SessionId session, SegmentId id, absl::StatusOr<std::shared_ptr<const Segment>> segment,
                        Callback<absl::Status> done) {
  const absl::Status status = sessions_.AddSegment(session, id, std::move(segment));  // unmaps a refused segment
  std::move(done)(status);
}

void Engine::RemoveSegment(SessionId session, SegmentId id, Callback<absl::Status> done) {
  std::move(done)(sessions_.RemoveSegment(session, id));
}

void Engine::ReleasePrepared(SessionId session_id, PreparedId id, Callback<absl::Status> done) {
  Session* const session = sessions_.Find(session_id);
  const bool released = session != nullptr && session->memory->prepared().Remove(id);
  std::move(done)(released ? absl::OkStatus()
                           : absl::NotFoundError(absl::StrCat("prepared_id: ", id.value(),
                                                              " is no prepared exchange of this session")));
}

void Engine::Join(JoinRequest request, Callback<absl::StatusOr<GroupView>> done) {
  if (draining_) return std::move(done)(absl::UnavailableError(absl::StrCat(options_.node, " is draining")));
  groups_.Join(std::move(request), now_, std::move(done));
  ReplayEarly();
}

void Engine::Leave(SessionId session, Epoch epoch, Rank rank, Callback<absl::Status> done) {
  Group* group = groups_.Find(epoch);
  const bool held = group != nullptr && rank.value() < group->world_size() && group->ranks[rank.value()].local &&
                    !group->ranks[rank.value()].gone && group->ranks[rank.value()].session == session;
  if (!held) {
    return std::move(done)(absl::NotFoundError(
        absl::StrCat("rank: ", rank.value(), " of epoch ", absl::Hex(epoch.boot.value(), absl::kZeroPad16), ".",
                     epoch.counter, " is not held by session ", session.value())));
  }
  sweep_ = true;
  groups_.MemberGone(
      *group, rank, jobs_.FinishedUntil(*group, rank),
      WithFailedRanks(absl::AbortedError(absl::StrCat(group->Describe(rank), " left group ", group->key.name)), {rank}),
      /*left=*/true);
  std::move(done)(absl::OkStatus());
}

void Engine::OnPeerUp(const PeerHello& hello) {
  if (hello.node == options_.node) return;
  Peer& peer = peers_.FindOrAdd(hello.node);
  if (peer.up && peer.boot == hello.boot) return;
  if (peer.up)
    LosePeer(peer, absl::StrCat("it restarted (boot id ", absl::Hex(hello.boot.value(), absl::kZeroPad16), ")"),
             /*ended=*/true);
  peers_.Update(peer, hello);
  peer.up = true;
  ++peer.link;
  peer.forgotten = false;
  peer.why.clear();
  peer.stranded_since = now_;
  health_.OnPeerUp(peer.index, peer.boot);
  TellEndsTo(peer);
  for (size_t r = 0; r < rails_.size(); ++r) {
    if (!peer.rails[r].known) continue;
    auto end = std::make_shared<RailPeer>(
        RailPeer{peer.index, peer.node, peer.boot, peer.rails[r].address, hello.data_key, peer.link});
    peer.rails[r].end = end;
    rails_[r].Command({.kind = RailCommand::Kind::kSetPeer, .set_peer = std::move(end)});
  }
  options_.log->info("peer_up node={} boot={:016x}", peer.node, peer.boot.value());
  groups_.OnPeerUp(peer);
  jobs_.OnPeerReachable(peer);
}

void Engine::OnPeerDown(const std::string& node, const std::string& why, bool ended) {
  Peer* peer = peers_.Find(node);
  if (peer != nullptr) LosePeer(*peer, why, ended);
}

void Engine::OnPeerForgotten(const std::string& node) {
  Peer* peer = peers_.Find(node);
  if (peer != nullptr && !peer->up) peer->forgotten = true;
}

void Engine::OnPeerSilent(const std::string& node, const std::string& why) {
  Peer* peer = peers_.Find(node);
  if (peer == nullptr || !peer->up) return;
  options_.log->warn("peer_silent node={} boot={:016x} groups_wait={} why={}", node, peer->boot.value(),
                     absl::FormatDuration(groups_.PatienceWith(peer->index)), LogValue(why));
  groups_.OnPeerSilent(*peer, absl::UnavailableError(absl::StrCat("node ", node, " is lost: ", why)));
}

void Engine::LosePeer(Peer& peer, const std::string& why, bool ended) {
  if (!peer.up) return;
  peer.up = false;
  peer.connected = 0;
  peer.why = why;
  options_.log->warn("peer_down node={} boot={:016x} why={}", peer.node, peer.boot.value(), LogValue(why));
  health_.OnPeerLost(peer.index);
  health_.Account(now_);
  TellEnds();
  for (size_t r = 0; r < rails_.size(); ++r) {
    peer.rails[r].end = nullptr;
    rails_[r].Command({.kind = RailCommand::Kind::kRemovePeer, .peer = peer.index});
  }
  early_.Forget(peer.index);
  jobs_.OnPeerLost(peer);
  groups_.OnPeerLost(peer, absl::UnavailableError(absl::StrCat("node ", peer.node, " is lost: ", why)), ended);
  jobs_.GoOnWithout(peer);
}

void Engine::OnPeerMessage(const std::string& node, BootId boot, ControlMessage&& message) {
  ++messages_in_;
  Peer* peer = peers_.Find(node);
  if (peer == nullptr || !peer->up || peer->boot != boot || !Dispatch(*peer, std::move(message))) ++messages_ignored_;
  ReplayEarly();
}

void Engine::OnReadyTaken(const std::string& node, BootId boot, const std::vector<JobKey>& jobs) {
  const Peer* const peer = peers_.Find(node);
  if (peer == nullptr || !peer->up || peer->boot != boot) return;
  for (const JobKey& job : jobs) jobs_.OnReadyTaken(*peer, job);
}

void Engine::SendSignal(RailIndex rail, PeerIndex index, std::string bytes) {
  if (index.value() >= peers_.size() || bytes.empty() || bytes.size() > RailSignal::kMaxBytes) return;
  // Takes the rail's earlier events first: the peer must hear that a connection has ended before the signal for the
  // next one.
  for (size_t batch = 0; batch < kQueuedBatches && TakeRailEvents(); ++batch) continue;
  const Peer& peer = peers_.Get(index);
  if (peer.up) outbox_.Send(peer.node, RailSignal{rail, std::move(bytes)});
}

bool Engine::OnSignal(const Peer& from, RailSignal&& signal) {
  const size_t r = signal.rail.value();
  if (r >= rails_.size() || !from.rails[r].known) return false;
  if (rails_[r].sending_overflow.size() >= kMaxWaitingSignals) return false;
  auto bytes = std::make_shared<PeerSignal>(PeerSignal{from.index, std::move(signal.bytes)});
  rails_[r].Command({.kind = RailCommand::Kind::kSignal, .signal = std::move(bytes)});
  return true;
}

bool Engine::Dispatch(const Peer& from, ControlMessage&& message) {
  return std::visit(
      [&](auto&& m) -> bool {
        using M = std::decay_t<decltype(m)>;
        if constexpr (requires { m.job.epoch; }) {
          if (!MaySpeak(from, m.job.epoch)) return false;
        } else if constexpr (requires { m.epoch; } && !std::is_same_v<M, GroupCommit>) {
          if (!MaySpeak(from, m.epoch)) return false;
        }
        if constexpr (std::is_same_v<M, RailState>) {
          return OnPeerRailState(from, m);
        } else if constexpr (std::is_same_v<M, Leaving>) {
          return OnLeaving(from, m);
        } else if constexpr (std::is_same_v<M, MayLeave>) {
          return OnMayLeave(from, m);
        } else if constexpr (std::is_same_v<M, GroupBroken>) {
          if (groups_.Find(m.epoch) != nullptr) return groups_.OnMessage(from, std::move(m));
          KeepEarly(from, m.epoch, std::move(m));
          return true;
        } else if constexpr (std::is_same_v<M, Ready> || std::is_same_v<M, Abort>) {
          if (groups_.Find(m.job.epoch) != nullptr) return jobs_.OnMessage(from, std::move(m));
          const Epoch epoch = m.job.epoch;
          // This node has posted no bytes for an epoch that it does not know, or has forgotten.
          if constexpr (std::is_same_v<M, Abort>) outbox_.Send(from.node, Quiesced{m.job, {}});
          KeepEarly(from, epoch, std::move(m));
          return true;
        } else if constexpr (std::is_same_v<M, LateGrant> || std::is_same_v<M, Quiesced> || std::is_same_v<M, Tally> ||
                             std::is_same_v<M, Rehome> || std::is_same_v<M, Rehomed> ||
                             std::is_same_v<M, Unsubmitted>) {
          return jobs_.OnMessage(from, std::move(m));
        } else if constexpr (std::is_same_v<M, RailSignal>) {
          return OnSignal(from, std::move(m));
        } else if constexpr (std::is_same_v<M, GroupCommit>) {
          return groups_.OnMessage(from, std::move(m));
        } else {
          groups_.OnMessage(from, std::move(m));
          return true;
        }
      },
      std::move(message));
}

bool Engine::MaySpeak(const Peer& from, Epoch epoch) {
  const Group* group = groups_.Find(epoch);
  if (group == nullptr) return true;
  // A group that goes on without a node ignores its messages, even if the node is reachable again.
  if (group->Lost(from.index)) return false;
  if (group->layout->NodeOf(from.index) != GroupLayout::kLocal) return true;
  options_.log->warn("protocol_error peer={} epoch={:016x}.{} why=\"it has no rank in that group\"", from.node,
                     epoch.boot.value(), epoch.counter);
  return false;
}

void Engine::KeepEarly(const Peer& from, Epoch epoch, ControlMessage message) {
  for (EarlyMessages::Message& dropped : early_.Keep({from.index, epoch, now_, std::move(message)})) {
    Drop(std::move(dropped));
  }
}

// Aborts the job of a dropped READY: its sender would otherwise wait until the job's deadline.
void Engine::Drop(EarlyMessages::Message early) {
  ++messages_ignored_;
  const auto* const ready = std::get_if<Ready>(&early.message);
  const Peer& from = peers_.Get(early.from);
  if (ready == nullptr || !from.up) return;
  outbox_.Send(from.node, Abort{ready->job, absl::StatusCode::kUnavailable,
                                absl::StrCat(options_.node, " has dropped READY of ", from.node,
                                             ": the group's epoch has not begun on ", options_.node, "; join again")});
  outbox_.Send(from.node, Quiesced{ready->job, {}});
}

void Engine::ReplayEarly() {
  if (groups_.formed() == replayed_formed_) return;  // or a peer's 1,024 messages would be looked at for each message
  const auto known = [this](Epoch epoch) { return groups_.Find(epoch) != nullptr; };
  while (std::optional<EarlyMessages::Message> early = early_.Take(known)) {
    if (!Dispatch(peers_.Get(early->from), std::move(early->message))) ++messages_ignored_;
  }
  replayed_formed_ = groups_.formed();
}

void Engine::Retune(const AgentTuning& tuning) {
  const uint32_t max_world_size = options_.limits.max_world_size;
  options_.limits = tuning.limits;
  options_.limits.max_world_size = max_world_size;
  max_ranges_.store(tuning.limits.max_ranges_per_submission, std::memory_order_relaxed);
  options_.max_job_time = tuning.max_job_time;
  options_.max_join_time = tuning.max_join_time;
  options_.finished_jobs_kept = tuning.finished_jobs_kept;
  tenants_.Retune(tuning.tenants);
}

void Engine::OnRailEvent(RailIndex rail, const RailEvent& event) {
  if (event.kind == RailEvent::Kind::kPeerUp || event.kind == RailEvent::Kind::kPeerDown) {
    return OnPathEvent(rail, event);
  }
  if (event.kind == RailEvent::Kind::kLinkUp || event.kind == RailEvent::Kind::kLinkDown) {
    return OnLinkEvent(rail, event);
  }
  if (event.kind == RailEvent::Kind::kPeerStalled) return OnStallEvent(rail, event);
  if (event.kind == RailEvent::Kind::kBadPeer) {
    options_.log->warn("protocol_error rail={} peer={}", rail.value(), peers_.Get(event.peer).node);
    return;
  }
  if (event.kind == RailEvent::Kind::kDry) return;  // GoOn() runs late binding
  if (event.kind == RailEvent::Kind::kStretch) {
    return speeds_.OnStretch(rail.value(), event.length_bytes, absl::Nanoseconds(event.nanoseconds), now_);
  }
  jobs_.OnRailEvent(rail, event);
}

// At most one batch of each rail, so that a rail with endless events leaves the others, and calls, their turn.
bool Engine::TakeRailEvents() {
  bool any = false;
  for (size_t r = 0; r < rails_.size(); ++r) {
    const size_t count = rails_[r].port->TakeEvents(absl::MakeSpan(events_));
    for (size_t i = 0; i < count; ++i) OnRailEvent(RailIndex(static_cast<uint32_t>(r)), events_[i]);
    any = any || count > 0;
  }
  return any;
}

void Engine::Sweep() {
  sweep_ = false;
  std::vector<Epoch> epochs;
  for (const auto& [epoch, group] : groups_.all()) epochs.push_back(epoch);
  for (Epoch epoch : epochs) {
    groups_.EraseIfUnused(epoch, jobs_.HasJobs(epoch));
    if (groups_.Find(epoch) == nullptr) jobs_.ForgetGroup(epoch);
  }
  std::vector<std::pair<SessionId, std::vector<Callback<absl::Status>>>> closed;
  for (const auto& [id, session] : sessions_.all()) {
    if (!session->closing) continue;
    // A segment that is being mapped for it is still memory of its tenant.
    if (session->active_parts == 0 && session->mapping.empty()) {
      closed.emplace_back(id, std::move(session->closed));
    } else {
      sweep_ = true;  // until its last job is quiescent
    }
  }
  for (auto& [id, callbacks] : closed) {
    sessions_.Erase(id);
    for (auto& callback : callbacks) std::move(callback)(absl::OkStatus());
  }
}

void Engine::TellShares() {
  if (!tenants_.UpdateShares(&told_shares_)) return;
  const auto shares = std::make_shared<const RailShares>(told_shares_);
  for (RailHandle& rail : rails_) rail.Command({.kind = RailCommand::Kind::kShares, .shares = shares});
}

bool Engine::Step() {
  TellShares();
  bool any = TakeRailEvents();
  CopyResult result;
  while (copier_->TakeResult(&result)) {
    any = true;
    jobs_.OnCopyResult(result);
  }
  groups_.Tick(now_);
  for (EarlyMessages::Message& early : early_.TakeOld(now_)) Drop(std::move(early));
  jobs_.Tick();
  if (now_ >= health_due_) RefreshAllPaths();
  jobs_.GoOn();
  sweep_ = jobs_.Reap() || sweep_;
  AnswerLeavers();
  if (sweep_) Sweep();
  FinishDrain();
  for (RailHandle& rail : rails_) rail.Pump();
  return any;
}

absl::Time Engine::NextDeadline() const {
  absl::Time next =
      std::min({jobs_.NextDeadline(), groups_.NextDeadline(), early_.NextDeadline(), drain_deadline_, health_due_});
  // Full queues and closing sessions are looked at again soon even if no event comes.
  const bool retry = std::any_of(rails_.begin(), rails_.end(), [](const RailHandle& r) { return r.overflowing(); });
  if (retry || sweep_) next = std::min(next, now_ + absl::Milliseconds(1));
  return next;
}

void Engine::Shutdown() {
  std::vector<SessionId> ids;
  for (const auto& [id, session] : sessions_.all()) ids.push_back(id);
  const auto ignore = [](absl::Status) {};
  for (SessionId id : ids) CloseSession(id, absl::StrCat("the daemon of ", options_.node, " is stopping"), ignore);
}

}  // namespace railsd
