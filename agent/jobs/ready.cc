#include "agent/jobs/ready.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/jobs/capacities.h"
#include "agent/jobs/local_copies.h"

namespace railsd {
namespace {

// Rises in the order of the stream.
uint64_t PlaceOf(const Ready::Flow& flow) { return uint64_t{flow.destination.value()} << 32 | flow.source.value(); }

bool Precedes(const Ready::Flow& a, const Ready::Flow& b) { return PlaceOf(a) < PlaceOf(b); }

absl::Status Contradiction(const Group& group, JobSeq seq, const Ready::Flow& sent, uint64_t expected,
                           bool capacities) {
  return absl::InvalidArgumentError(
      absl::StrCat(group.Describe(sent.source), " sends ", sent.bytes, " bytes to ", group.Describe(sent.destination),
                   capacities ? ", which has room for " : ", which expects ", expected, " in job ", seq.value()));
}

absl::Status Disagreement(const Group& group, JobSeq seq, Rank a, bool its, absl::string_view other) {
  return absl::InvalidArgumentError(absl::StrCat("capacities: ", group.Describe(a), " says ", its ? "yes" : "no", ", ",
                                                 other, " says ", its ? "no" : "yes", " for job ", seq.value()));
}

bool AreSame(const Ready::Flows& sent, const Ready::Flows& expected) {
  return std::equal(sent.begin(), sent.end(), expected.begin(), expected.end(), [](const auto& a, const auto& b) {
    return a.source == b.source && a.destination == b.destination && a.bytes == b.bytes;
  });
}

// Both lists are in the order of the stream. OK when they agree; otherwise names what is sent and what is expected.
absl::Status CompareLengths(const Group& group, JobSeq seq, const Ready::Flows& sent, const Ready::Flows& expected,
                            bool capacities) {
  // One of them may name flows without bytes.
  auto s = sent.begin();
  auto e = expected.begin();
  while (s != sent.end() || e != expected.end()) {
    const Ready::Flow a = s == sent.end() ? Ready::Flow{} : *s;
    const Ready::Flow b = e == expected.end() ? Ready::Flow{} : *e;
    const bool only_sent = e == expected.end() || (s != sent.end() && Precedes(a, b));
    const bool only_expected = s == sent.end() || (e != expected.end() && Precedes(b, a));
    const uint64_t sent_bytes = only_expected ? 0 : a.bytes, expected_bytes = only_sent ? 0 : b.bytes;
    const Ready::Flow& flow = only_expected ? b : a;
    if (!Fits(sent_bytes, expected_bytes, capacities)) {
      return Contradiction(group, seq, {flow.source, flow.destination, sent_bytes}, expected_bytes, capacities);
    }
    if (!only_expected) ++s;
    if (!only_sent) ++e;
  }
  return absl::OkStatus();
}

bool SaysTheSame(const Ready& ready, const Exchange& exchange) {
  const uint64_t eager = ready.eager.size();
  return AreSame(ready.sends, exchange.in.flows()) && AreSame(exchange.out.flows(), ready.receives) &&
         (eager == 0 || eager == exchange.in.total_bytes());
}

// 0 only if the whole is not known. Signed numbers become doubles with fewer instructions.
uint32_t MillionthsOf(uint64_t part, uint64_t whole) {
  if (whole == 0) return 0;
  return 1 + static_cast<uint32_t>(999'999.0 * static_cast<double>(static_cast<int64_t>(part)) /
                                   static_cast<double>(static_cast<int64_t>(whole)));
}

uint64_t BytesOf(const Ready& ready) {
  uint64_t bytes = (ready.sends.size() + ready.receives.size()) * sizeof(Ready::Flow) + ready.eager.size();
  if (!ready.grant.has_value()) return bytes;
  bytes += ready.grant->ranges.size() * sizeof(Grant::Range);
  for (const RailKeys& rail : ready.grant->keys) bytes += rail.keys.size() * sizeof(uint32_t);
  return bytes;
}

}  // namespace

absl::Status CheckLocalRanks(const NodeJob& job, const Group& group) {
  const RankPart& first = job.parts[0];
  for (const RankPart* part : job.parts) {
    if (const bool its = part->submission.capacities; its != first.submission.capacities) {
      return Disagreement(group, job.key.seq, part->report.rank, its, group.Describe(first.submission.rank));
    }
    if (part->submission.tag == first.submission.tag) continue;
    return absl::InvalidArgumentError(absl::StrCat("tag: ", group.Describe(part->report.rank), " says ",
                                                   part->submission.tag, ", ", group.Describe(first.submission.rank),
                                                   " says ", first.submission.tag, " for job ", job.key.seq.value()));
  }
  absl::Status status;
  const auto compare = [&](Rank source, Rank destination, uint64_t sent, uint64_t expected) {
    const bool capacities = first.submission.capacities;
    if (!Fits(sent, expected, capacities) && status.ok()) {
      status = Contradiction(group, job.key.seq, {source, destination, sent}, expected, capacities);
    }
  };
  // Each flow is compared from both sides, since either may be missing.
  for (const RankPart* part : job.parts) {
    const Rank self = part->report.rank;
    ForEachLocal(part->submission.sends, group, [&](const CheckedFlow& send) {
      compare(self, send.peer, send.bytes, BytesOf(FlowWith(self, job.parts.Find(send.peer)->submission.receives)));
    });
    ForEachLocal(part->submission.receives, group, [&](const CheckedFlow& receive) {
      compare(receive.peer, self, BytesOf(FlowWith(self, job.parts.Find(receive.peer)->submission.sends)),
              receive.bytes);
    });
  }
  return status;
}

void FillReady(const NodeJob& job, const Exchange& exchange, const Peer& peer, Ready* ready) {
  const CheckedSubmission& first = job.parts[0].submission;  // the others say the same
  ready->job = job.key;
  ready->tag = first.tag;
  ready->capacities = first.capacities;
  ready->vote = job.vote;
  ready->sends = exchange.out.flows();
  ready->receives = exchange.in.flows();
  ready->rails_only = exchange.in.rails_only();
  ready->inflow_ppm = MillionthsOf(exchange.in.total_bytes(), job.inflow_bytes);
  ready->planned_bytes = BytesByRail(peer.planned_tx_bytes);
  for (size_t r = 0; r < exchange.planned_bytes.size(); ++r) {  // up to the job before
    ready->planned_bytes[r] -= exchange.planned_bytes[r];
  }
}

absl::Status CheckReadyFlows(const Ready& ready, const GroupLayout& layout, const Peer& peer) {
  const uint32_t node = layout.NodeOf(peer.index);
  const auto is_on = [&](Rank rank, uint32_t where) {
    return rank.value() < layout.ranks.size() && layout.ranks[rank.value()].node == where;
  };
  const auto check = [&](const Ready::Flows& flows, uint32_t sources, uint32_t destinations) {
    uint64_t least_place = 0;
    for (const Ready::Flow& flow : flows) {
      const bool fits = is_on(flow.source, sources) && is_on(flow.destination, destinations);
      const uint64_t place = PlaceOf(flow);
      if (!fits || place < least_place) {
        return absl::InternalError(absl::StrCat("READY of ", peer.node, " for job ", ready.job.seq.value(),
                                                " has a flow from rank ", flow.source.value(), " to rank ",
                                                flow.destination.value(), ", which it cannot have there"));
      }
      least_place = place + 1;
    }
    return absl::OkStatus();
  };
  if (absl::Status s = check(ready.sends, node, GroupLayout::kLocal); !s.ok()) return s;
  if (absl::Status s = check(ready.receives, GroupLayout::kLocal, node); !s.ok()) return s;
  if (ready.eager.empty()) return absl::OkStatus();
  uint64_t sent = 0;
  for (const Ready::Flow& flow : ready.sends) sent += flow.bytes;
  if (sent == ready.eager.size()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("READY of ", peer.node, " for job ", ready.job.seq.value(), " brings ",
                                          ready.eager.size(), " bytes for flows of ", sent, " bytes"));
}

absl::Status CompareReady(const NodeJob& job, const Group& group, const Exchange& exchange, const Peer& peer,
                          const Ready& ready) {
  if (const RankPart& part = job.parts[0]; part.submission.tag != ready.tag) {
    return absl::InvalidArgumentError(absl::StrCat("tag: ", group.Describe(part.submission.rank), " says ",
                                                   part.submission.tag, ", ", peer.node, " says ", ready.tag,
                                                   " for job ", job.key.seq.value()));
  }
  const JobSeq seq = job.key.seq;
  const bool capacities = HasCapacities(job);
  if (ready.capacities != capacities) return Disagreement(group, seq, job.parts[0].report.rank, capacities, peer.node);
  if (SaysTheSame(ready, exchange)) return absl::OkStatus();  // this node's own flows have been checked
  if (absl::Status s = CheckReadyFlows(ready, *group.layout, peer); !s.ok()) return s;
  if (absl::Status s = CompareLengths(group, seq, ready.sends, exchange.in.flows(), capacities); !s.ok()) return s;
  return CompareLengths(group, seq, exchange.out.flows(), ready.receives, capacities);
}

absl::Status HeldReadys::Hold(const Ready& ready, const Peer& peer, const std::string& self, Exchange* exchange) {
  const uint64_t bytes = BytesOf(ready);
  uint64_t& held = bytes_[peer.index];
  if (held > 0 && held + bytes > kMaxBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("READY of ", peer.node, " for job ", ready.job.seq.value(), ": ",
                                                     held, " bytes of its READYs wait for ranks of ", self,
                                                     " to submit; ", kMaxBytes, " may; submit fewer ", "jobs ahead"));
  }
  held += bytes;
  exchange->held_bytes = bytes;
  return absl::OkStatus();
}

void HeldReadys::Release(NodeJob* job) {
  for (Exchange& exchange : job->exchanges) {
    if (exchange.held_bytes > 0) bytes_[exchange.peer] -= std::exchange(exchange.held_bytes, 0);
  }
}

}  // namespace railsd
