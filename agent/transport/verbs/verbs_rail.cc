#include "agent/transport/verbs/verbs_rail.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/transport/verbs/completion_error.h"

namespace railsd::verbs {
namespace {

constexpr int kCompletionBatch = 32;
// Batches of completions that are polled before other work gets its turn.
constexpr int kCompletionRounds = 32;
// Time between two looks for device events by a thread that never sleeps: each look is a system call.
constexpr Nanoseconds kReportInterval = 1'000'000;
// Acknowledging events of the channel takes a lock.
constexpr unsigned kAcknowledgeBatch = 64;

}  // namespace

VerbsRail::VerbsRail(VerbsOptions options, std::shared_ptr<RdmaDevice> device, WakeEvent wake)
    : options_(std::move(options)),
      local_{options_.node, options_.boot, options_.rail, device->port_name()},
      context_(options_, device),
      registrar_(MakeRegistrar(device)),
      wake_event_(std::move(wake)),
      random_(std::random_device{}()) {}

absl::Status VerbsRail::Init() {
  ibv_context* const context = context_.device->context();
  const std::string& who = context_.device->who();
  epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return CallFailed(who, "epoll_create1", errno);
  context_.channel.reset(ibv_create_comp_channel(context));
  if (context_.channel == nullptr) return CallFailed(who, "ibv_create_comp_channel", errno);
  for (const int fd : {context_.channel->fd, context->async_fd, wake_event_.fd()}) {
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) return CallFailed(who, "fcntl", errno);
    epoll_event watch{};
    // Edge-triggered, because a device that is gone keeps its descriptor ready for ever.
    watch.events = fd == context->async_fd ? EPOLLIN | EPOLLET : EPOLLIN;
    watch.data.fd = fd;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &watch) != 0) return CallFailed(who, "epoll_ctl", errno);
  }
  const auto entries = static_cast<int>(context_.tuning.completion_queue_depth);
  const uint32_t receive_count = context_.tuning.fence_queue_depth;
  context_.completions.reset(ibv_create_cq(context, entries, nullptr, context_.channel.get(), 0));
  if (context_.completions == nullptr)
    return CallFailed(who, absl::StrCat("ibv_create_cq of ", entries, " entries"), errno);
  ibv_srq_init_attr shared{};
  shared.attr.max_wr = receive_count;
  shared.attr.max_sge = 1;
  context_.receives.reset(ibv_create_srq(context_.device->domain(), &shared));
  if (context_.receives == nullptr) return CallFailed(who, absl::StrCat("ibv_create_srq of ", receive_count), errno);
  if (absl::Status posted = PostReceives(receive_count); !posted.ok()) return posted;
  return absl::OkStatus();
}

VerbsRail::~VerbsRail() {
  for (auto& [index, endpoint] : endpoints_) Break(*endpoint, ESHUTDOWN, "");
  // Free windows before the queue pairs that they are bound to.
  zones_.clear();
  free_windows_.clear();
  leaving_.clear();
  endpoints_.clear();
  if (unacknowledged_ > 0) ibv_ack_cq_events(context_.completions.get(), unacknowledged_);
}

TransportInfo VerbsRail::Info() {
  return {.address = absl::StrCat("verbs:", context_.device->port_name()),
          .binder = this,
          .zone_room = context_.tuning.fence_queue_depth,
          .max_rounds = kFenceRounds,
          .counters = &context_.counters,
          .registrar = registrar_,
          .device = context_.device->View()};
}

void VerbsRail::Notice(std::string* last, const std::string& text) {
  if (*last == text) return;
  *last = text;
  if (!options_.on_notice) return;
  const std::string& who = context_.device->who();
  options_.on_notice(absl::StrContains(text, who) ? text : absl::StrCat(who, ": ", text));
}

void VerbsRail::Push(RailEvent::Kind kind, const Endpoint& endpoint, int error_number) {
  context_.events.Push({.kind = kind,
                        .peer = endpoint.peer.peer,
                        .error_number = error_number,
                        .cookie = endpoint.peer.link,
                        .connection = endpoint.handshake.connection()});
}

absl::Status VerbsRail::PostReceives(uint32_t count) {
  std::array<ibv_recv_wr, 32> chain{};
  while (count > 0) {
    const size_t part = std::min<size_t>(count, chain.size());
    for (size_t i = 0; i < part; ++i) {
      chain[i].wr_id = Encode({WorkRequestId::Kind::kReceive, QueuePairId(0), 0});
      chain[i].next = i + 1 < part ? &chain[i + 1] : nullptr;
    }
    ibv_recv_wr* bad = nullptr;
    if (const int error = ibv_post_srq_recv(context_.receives.get(), chain.data(), &bad); error != 0) {
      return CallFailed(context_.device->who(), "ibv_post_srq_recv", error);
    }
    count -= static_cast<uint32_t>(part);
  }
  return absl::OkStatus();
}

size_t VerbsRail::Post(absl::Span<const SendOrder> orders) {
  const size_t taken = TakeOrders(context_.events, context_.counters, orders, [this](const SendOrder& order) {
    const auto found = endpoints_.find(order.stream->peer);
    if (found == endpoints_.end()) return false;
    Endpoint& endpoint = *found->second;
    if (!endpoint.up || endpoint.phase != Endpoint::Phase::kLive) return false;
    if (endpoint.handshake.connection() != order.connection) return false;
    endpoint.queue_pairs[QueuePairOf(order.stream->zone, endpoint.queue_pairs.size())]->Add(
        context_.orders.Take(order));
    return true;
  });
  PumpAll();
  return taken;
}

void VerbsRail::PumpAll() {
  PumpFlushes();
  std::vector<PeerQueuePair*>& busy = context_.busy;
  size_t kept = 0;
  for (size_t i = 0; i < busy.size(); ++i) {
    PeerQueuePair& queue_pair = *busy[i];
    if (queue_pair.HasWork()) {
      Endpoint& endpoint = *queue_pair.endpoint();
      if (queue_pair.outstanding() == 0) endpoint.last_progress = Now();
      if (const int error = queue_pair.Pump(); error != 0) {
        Break(endpoint, error, std::string(CallFailed("posting", "ibv_post_send", error).message()));
      }
    }
    if (queue_pair.HasWork()) {
      busy[kept++] = &queue_pair;
    } else {
      queue_pair.OnIdle();
    }
  }
  busy.resize(kept);
}

void VerbsRail::StopSends(JobTag job) {
  for (auto& [index, endpoint] : endpoints_) {
    for (const auto& queue_pair : endpoint->queue_pairs) queue_pair->Stop(job);
  }
}

void VerbsRail::OnCompletion(const ibv_wc& completion) {
  const WorkRequestId id = DecodeWorkRequestId(completion.wr_id);
  if (id.kind == WorkRequestId::Kind::kReceive) {
    if (completion.status == IBV_WC_SUCCESS && completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
      OnFence(completion);
      return;
    }
    ++receives_owed_;
    const auto queue_pair = queue_pairs_by_number_.find(completion.qp_num);
    // No agent sends a message that is no fence.
    if (completion.status == IBV_WC_SUCCESS && queue_pair != queue_pairs_by_number_.end()) {
      BreakBad(*queue_pair->second->endpoint(), "it sent a message that is no fence");
    }
    return;
  }
  if (id.kind == WorkRequestId::Kind::kFlush) {
    OnFlushed(completion, id);
    return;
  }
  const auto found = queue_pairs_.find(id.queue_pair);
  if (found == queue_pairs_.end()) return;  // of a queue pair that is gone
  PeerQueuePair& queue_pair = *found->second;
  if (id.kind == WorkRequestId::Kind::kDrain) {
    queue_pair.OnDrained();
    return;
  }
  Endpoint& endpoint = *queue_pair.endpoint();
  if (completion.status == IBV_WC_SUCCESS) {
    endpoint.last_progress = last_completion_;
    queue_pair.Complete(id.sequence);
    return;
  }
  if (endpoint.phase != Endpoint::Phase::kLive) return;
  const CompletionError error = ExplainCompletion(completion.status);
  queue_pair.CompleteFailed(id.sequence, error.earlier_done);
  Break(endpoint, error.error_number, error.text);
}

// True when there were any.
bool VerbsRail::PollCompletions() {
  std::array<ibv_wc, kCompletionBatch> batch;
  bool any = false;
  for (int round = 0; round < kCompletionRounds; ++round) {
    const int count = ibv_poll_cq(context_.completions.get(), kCompletionBatch, batch.data());
    if (count <= 0) {
      if (count < 0 && !std::exchange(dead_, true)) BreakAll(EIO, "ibv_poll_cq failed");
      return any;
    }
    if (!std::exchange(any, true)) last_completion_ = Now();
    AddTo(context_.counters.completions, static_cast<uint64_t>(count));
    for (int i = 0; i < count; ++i) OnCompletion(batch[static_cast<size_t>(i)]);
    // A zone may be settled twice in a round: opened, and closed at once.
    while (!context_.settled.empty()) {
      BoundZone* const bound = context_.settled.back();
      context_.settled.pop_back();
      OnSettled(*bound);
    }
    if (count < kCompletionBatch) return any;
  }
  draining_again_ = true;
  return any;
}

void VerbsRail::PollAllCompletions() {
  constexpr int kRound = kCompletionBatch * kCompletionRounds;
  for (int left = context_.completions->cqe; left > 0; left -= kRound) {
    draining_again_ = false;
    PollCompletions();
    if (!draining_again_) return;
  }
}

// Waits for a completion, a wake or the deadline. False: there was something to do already.
bool VerbsRail::Sleep(Nanoseconds deadline) {
  if (!std::exchange(armed_, true) && ibv_req_notify_cq(context_.completions.get(), 0) != 0) armed_ = false;
  if (PollCompletions()) return false;  // a completion from before the queue was armed makes no event
  wake_event_.BeginSleep();
  const Nanoseconds now = Now();
  const Nanoseconds until = std::min(deadline, next_timer_);
  int wait_ms = until <= now ? 0 : static_cast<int>(std::min<Nanoseconds>((until - now + 999999) / 1000000, 60000));
  if (woken_.load(std::memory_order_acquire)) wait_ms = 0;
  std::array<epoll_event, 3> ready;
  AddTo(context_.counters.rx_system_calls, 1);
  const int count = ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), wait_ms);
  wake_event_.EndSleep();
  for (int i = 0; i < count; ++i) {
    const int fd = ready[static_cast<size_t>(i)].data.fd;
    if (fd == context_.device->context()->async_fd) next_report_ = 0;
    if (fd != context_.channel->fd) continue;
    ibv_cq* queue = nullptr;
    void* cookie = nullptr;
    while (ibv_get_cq_event(context_.channel.get(), &queue, &cookie) == 0) {
      armed_ = false;
      if (++unacknowledged_ < kAcknowledgeBatch) continue;
      ibv_ack_cq_events(context_.completions.get(), std::exchange(unacknowledged_, 0));
    }
  }
  return true;
}

void VerbsRail::WaitForWake(absl::Duration max_wait) {
  wake_event_.BeginSleep();
  if (!woken_.load(std::memory_order_acquire)) {
    pollfd wake{wake_event_.fd(), POLLIN, 0};
    ::poll(&wake, 1, static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(max_wait), 0, 60000)));
  }
  wake_event_.EndSleep();
  woken_.exchange(false, std::memory_order_acq_rel);
}

void VerbsRail::Wake() {
  woken_.exchange(true, std::memory_order_acq_rel);
  wake_event_.Wake();
}

size_t VerbsRail::Poll(absl::Duration max_wait, absl::Span<RailEvent> out) {
  AddTo(context_.counters.polls, 1);
  if (out.empty()) {
    WaitForWake(max_wait);
    return 0;
  }
  const Nanoseconds deadline =
      max_wait <= absl::ZeroDuration() ? 0 : Now() + absl::ToInt64Nanoseconds(std::min(max_wait, absl::Hours(1)));
  const Nanoseconds busy = absl::ToInt64Nanoseconds(context_.tuning.busy_poll);
  for (;;) {
    const Nanoseconds begun = Now();
    if (begun >= next_report_) {
      next_report_ = begun + kReportInterval;
      ReadDeviceEvents();
    }
    if (begun >= next_timer_) RunTimers(begun);
    draining_again_ = false;
    const bool any = PollCompletions();
    if (!draining_again_) FinishDrains();
    RestartFlushes();
    PumpAll();
    if (!context_.events.empty() || deadline == 0 || woken_.load(std::memory_order_relaxed)) break;
    const Nanoseconds now = Now();
    if (now >= deadline) break;
    if (any || (busy > 0 && now - last_completion_ < busy)) continue;
    Sleep(deadline);
  }
  woken_.exchange(false, std::memory_order_acq_rel);
  const size_t count = context_.events.Take(out);
  for (size_t i = 0; i < count; ++i) receives_owed_ += out[i].kind == RailEvent::Kind::kFence;
  if (receives_owed_ > 0) {
    if (PostReceives(std::exchange(receives_owed_, 0)).ok()) return count;
    dead_ = true;
    BreakAll(EIO, "ibv_post_srq_recv failed");
  }
  return count;
}

}  // namespace railsd::verbs
