#include "agent/jobs/eager.h"

#include <sys/uio.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace railsd {

uint64_t EagerExchanges::Copy(const MemoryRanges& stream, const char* bytes, Direction direction) {
  constexpr size_t kRangesPerCall = 128;
  std::array<iovec, kRangesPerCall> ranges;
  uint64_t done = 0;
  while (done < stream.total_bytes()) {
    uint64_t length = 0;
    const size_t count = stream.FillIovecs(done, stream.total_bytes() - done, absl::MakeSpan(ranges), &length);
    const iovec flat = {const_cast<char*>(bytes) + done, length};
    const absl::Span<const iovec> scattered(ranges.data(), count), whole(&flat, 1);
    const uint64_t moved = direction == Direction::kOut ? GuardedCopy(scattered, whole) : GuardedCopy(whole, scattered);
    done += moved;
    if (moved < length) break;
  }
  return done;
}

void EagerExchanges::Fail(NodeJob& job, const std::string& what) {
  calls_.fail(job, absl::FailedPreconditionError(absl::StrCat("job ", job.key.seq.value(), ": a page of a ", what)));
}

bool EagerExchanges::Fill(NodeJob& job, Exchange& exchange, Ready* ready) {
  const uint64_t total = exchange.out.total_bytes();
  // Rails send the stream when the grant has come before READY is made.
  if (total == 0 || total > context_.options->eager_bytes || exchange.out.granted()) return true;
  if (exchange.out.stream().memory.may_be_device_memory() || exchange.rails_only) return true;
  if (exchange.ready.has_value() && exchange.ready->rails_only) return true;
  ready->eager.resize(total);
  const uint64_t done = Copy(exchange.out.stream().memory, ready->eager.data(), Direction::kOut);
  if (done < total) {
    const Rank rank = exchange.out.flows().At(done).source;
    Fail(job, absl::StrCat("send range on ", context_.peers->self(), " cannot be read (rank ", rank.value(), ")"));
    return false;
  }
  return true;
}

absl::Status EagerExchanges::Send(NodeJob& job, Exchange& exchange, ControlMessage&& ready) {
  const std::string& node = context_.peer(exchange.peer).node;
  const uint64_t total = std::get<Ready>(ready).eager.size();
  const absl::Status sent = outbox_.SendIfItFits(node, std::move(ready));
  if (total == 0) return sent;
  if (!sent.ok()) {
    std::get<Ready>(ready).eager.clear();
    return outbox_.SendIfItFits(node, std::move(ready));
  }
  exchange.out.SendEagerly();
  ++sent_;
  sent_bytes_ += total;
  job.eager_sent_bytes += total;
  return sent;
}

void EagerExchanges::OnReadyTaken(PeerIndex by, JobKey key) {
  NodeJob* const job = Find(jobs_, key);
  Exchange* const exchange = job == nullptr ? nullptr : job->With(by);
  if (exchange == nullptr || job->aborting() || !exchange->out.eager() || exchange->out.over()) return;
  exchange->out.OnReadyTaken();
  for (const StreamFlow& flow : exchange->out.flows()) {
    job->parts[flow.part].report.bytes_sent += flow.bytes;
  }
  job->last_acknowledged = exchange->times.last_acknowledged = job->now();
  calls_.sent(*job);
}

void EagerExchanges::OnReady(NodeJob& job, Exchange& exchange, const Ready& ready) {
  // First, because to receive may end the job.
  exchange.rails_only = ready.rails_only;
  if (ready.rails_only && !job.aborting()) TakeBack(job, exchange);
  if (!ready.eager.empty() && !exchange.in.rails_only()) Receive(job, exchange, ready.eager);
}

void EagerExchanges::TakeBack(NodeJob& job, Exchange& exchange) {
  if (!exchange.out.eager()) return;
  if (exchange.out.over()) {  // OnReadyTaken() has counted them
    for (const StreamFlow& flow : exchange.out.flows()) job.parts[flow.part].report.bytes_sent -= flow.bytes;
  }
  exchange.out.TakeBackEager();
  job.eager_sent_bytes -= exchange.out.total_bytes();
}

void EagerExchanges::Receive(NodeJob& job, Exchange& exchange, const std::string& bytes) {
  const uint64_t done = Copy(exchange.in.memory(), bytes.data(), Direction::kIn);
  exchange.in.flows().ForEach(
      0, done, [&](const StreamFlow& flow, uint64_t copied) { job.parts[flow.part].bytes_received += copied; });
  if (done < exchange.in.total_bytes()) {
    const Rank rank = exchange.in.flows().At(done).destination;
    return Fail(
        job, absl::StrCat("receive range on ", context_.peers->self(), " cannot be written (rank ", rank.value(), ")"));
  }
  exchange.in.OnEager();
  job.last_received = exchange.times.last_received = job.now();
  ++received_;
  received_bytes_ += done;
  job.eager_received_bytes += done;
  calls_.received(job, exchange);
}

void EagerExchanges::FillCounters(AgentCounters* counters) const {
  counters->eager_sent = sent_;
  counters->eager_received = received_;
  counters->eager_sent_bytes = sent_bytes_;
  counters->eager_received_bytes = received_bytes_;
}

}  // namespace railsd
