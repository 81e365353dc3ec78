#include "client/railsctl/explain/causes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/railsctl/format.h"
#include "common/json/names.h"

namespace rails::ctl {
namespace {

// Differences below this part of the job's time are not reported.
constexpr double kNotable = 0.05;
// A rail is slow if it delivers less than this part of the best rail's rate, each relative to its speed.
constexpr double kSlow = 0.8;
// A rail has more to do if its share exceeds the mean by this factor.
constexpr double kUnevenShare = 1.02;

double Part(const v1::RailPart& rail, uint64_t bytes) {
  return rail.speed_bytes_per_second() == 0
             ? 0
             : static_cast<double>(bytes) / static_cast<double>(rail.speed_bytes_per_second());
}

// The part of its speed that the rail delivered while it was busy.
double Delivered(const v1::RailPart& rail) {
  return rail.busy_seconds() > 0 ? Part(rail, rail.tx_bytes()) / rail.busy_seconds() : 0;
}

void AddOutcome(const v1::ExplainJobResponse& job, std::vector<std::string>* out) {
  const v1::JobReport& report = job.report();
  if (report.replayable()) {
    out->push_back(absl::StrCat("Its ranks submit it again in the next epoch: ", report.message(), "."));
  } else if (report.state() == v1::JOB_STATE_FAILED) {
    out->push_back(absl::StrCat("It failed with ", CodeName(report.code()), ": ", report.message(), "."));
  }
  if (!job.waits_for().empty()) out->push_back(absl::StrCat("It waits ", job.waits_for(), "."));
  if (report.lost_ranks_size() > 0) {
    out->push_back(absl::StrCat("It went on without the ranks ", absl::StrJoin(report.lost_ranks(), ", "),
                                ", whose nodes were lost."));
  }
}

// Adds the wait for one peer's grant, and the message that this peer has not sent yet.
void AddWaitsFor(const v1::ExplainJobResponse& job, const v1::ExchangePart& exchange, double notable,
                 std::vector<std::string>* out) {
  const double waited =
      exchange.grant_received_seconds() - std::max(exchange.ready_sent_seconds(), exchange.ready_received_seconds());
  if (exchange.grant_received_seconds() > 0 && waited > notable) {
    out->push_back(
        absl::StrCat("It waited ", FormatSeconds(waited), " for ", exchange.node(), "'s permission to write (grant)."));
  }
  if (exchange.left_out() || !job.waits_for().empty() || exchange.ready_sent_seconds() == 0) return;
  if (exchange.ready_received_seconds() == 0) {
    out->push_back(absl::StrCat("READY of ", exchange.node(), " has not come: its ranks have not submitted."));
  } else if (exchange.eager_out()) {
    if (exchange.last_acknowledged_seconds() == 0) {
      out->push_back(absl::StrCat(exchange.node(), " has not acknowledged READY and the bytes in it."));
    }
  } else if (exchange.out_bytes() > 0 && exchange.grant_received_seconds() == 0) {
    out->push_back(absl::StrCat(exchange.node(), " has not given its permission to write (grant)."));
  }
}

// Adds local ranks that other ranks waited for, and peers that the node waited for.
void AddWaits(const v1::ExplainJobResponse& job, std::vector<std::string>* out) {
  const double notable = kNotable * job.report().elapsed_seconds();
  const auto last = std::max_element(job.ranks().begin(), job.ranks().end(), [](const auto& a, const auto& b) {
    return a.submitted_seconds() < b.submitted_seconds();
  });
  if (last != job.ranks().end() && last->submitted_seconds() > notable) {
    out->push_back(absl::StrCat("Rank ", last->rank(), " submitted last, ", FormatSeconds(last->submitted_seconds()),
                                " after the first; until then this node could not send."));
  }
  const v1::ExchangePart* latest = nullptr;
  for (const auto& exchange : job.exchanges()) {
    if (latest == nullptr || exchange.ready_received_seconds() > latest->ready_received_seconds()) latest = &exchange;
  }
  const double waited = latest == nullptr ? 0 : latest->ready_received_seconds() - latest->ready_sent_seconds();
  if (waited > notable) {
    out->push_back(absl::StrCat("It waited for READY of ", latest->node(), ", which came ", FormatSeconds(waited),
                                " after this node's: its ranks submitted later, or it was behind."));
  }
  for (const auto& exchange : job.exchanges()) AddWaitsFor(job, exchange, notable, out);
}

std::string WhyLast(const v1::ExplainJobResponse& job, const v1::RailPart& last) {
  double best = 0, planned = 0, moved = 0, count = 0;
  for (const auto& rail : job.rails()) {
    if (rail.drained()) continue;
    best = std::max(best, Delivered(rail));
    planned += Part(rail, rail.planned_bytes());
    moved += Part(rail, rail.tx_bytes());
    ++count;
  }
  planned /= std::max(count, 1.0);
  moved /= std::max(count, 1.0);
  if (last.returned_chunks() > 0) {
    return absl::StrCat("it failed with ", FormatCount(last.returned_chunks(), "chunk"),
                        " in flight, and took time to recover");
  }
  if (Delivered(last) < kSlow * best) {
    return absl::StrFormat("it delivered %.2f of its speed while it was busy, the best rail %.2f", Delivered(last),
                           best);
  }
  if (Part(last, last.planned_bytes()) > kUnevenShare * planned) {
    return absl::StrFormat("the plan gave it %.2f of the mean", Part(last, last.planned_bytes()) / planned);
  }
  if (Part(last, last.tx_bytes()) > kUnevenShare * moved) {
    return absl::StrFormat("it carried %.2f of the mean, part of it moved from other rails",
                           Part(last, last.tx_bytes()) / moved);
  }
  if (last.last_acknowledged_seconds() - last.first_posted_seconds() - last.busy_seconds() >
      kNotable * job.report().elapsed_seconds()) {
    return "it was idle in between: its peers' windows or grants came late";
  }
  return "this node does not show the cause; its last receiver was slow to acknowledge";
}

void AddRails(const v1::ExplainJobResponse& job, std::vector<std::string>* out) {
  const bool done = job.report().state() == v1::JOB_STATE_DONE;
  const v1::RailPart* last = nullptr;
  const v1::RailPart* first = nullptr;
  for (const auto& rail : job.rails()) {
    if (rail.returned_chunks() > 0) {
      // When a job fails, its chunks in flight come back, too, and no other rail takes them over.
      out->push_back(absl::StrCat(rail.rail(), " gave back ", FormatCount(rail.returned_chunks(), "chunk"),
                                  done ? "; other rails took over." : "."));
    }
    if (rail.last_acknowledged_seconds() == 0) continue;
    if (last == nullptr || rail.last_acknowledged_seconds() > last->last_acknowledged_seconds()) last = &rail;
    if (first == nullptr || rail.last_acknowledged_seconds() < first->last_acknowledged_seconds()) first = &rail;
  }
  if (last == nullptr || !done) return;
  const double gap = last->last_acknowledged_seconds() - first->last_acknowledged_seconds();
  if (gap <= kNotable * job.report().elapsed_seconds()) {
    out->push_back(absl::StrCat("Sending ended on all rails within ", FormatSeconds(gap), "."));
    return;
  }
  out->push_back(absl::StrCat(last->rail(), " ended last, ", FormatSeconds(gap), " after ", first->rail(), ": ",
                              WhyLast(job, *last), "."));
}

// Bounds, shares and the ratios of reports follow the speeds.
void AddSpeeds(const v1::ExplainJobResponse& job, std::vector<std::string>* out) {
  const double ratio = job.report().ratio_to_bound();
  if (ratio <= 0 || ratio >= kLeastRatio) return;
  std::string rails;
  for (const auto& rail : job.rails()) {
    if (Delivered(rail) <= 1) continue;
    absl::StrAppendFormat(&rails, "%s%s %.2f", rails.empty() ? ": " : ", ", rail.rail(), Delivered(rail));
  }
  out->push_back(absl::StrFormat(
      "It took %.2f of its bound, which follows the speeds of the rails: they are faster than configured (delivered "
      "over speed%s). Give their real speeds (rails: speed).",
      ratio, rails));
}

void AddReceiving(const v1::ExplainJobResponse& job, std::vector<std::string>* out) {
  const v1::ExchangePart* last = nullptr;
  double sent = 0;
  for (const auto& exchange : job.exchanges()) {
    sent = std::max(sent, exchange.last_acknowledged_seconds());
    if (last == nullptr || exchange.last_received_seconds() > last->last_received_seconds()) last = &exchange;
  }
  if (last == nullptr || last->last_received_seconds() - sent <= kNotable * job.report().elapsed_seconds()) return;
  out->push_back(absl::StrCat("The last bytes came from ", last->node(), ", ",
                              FormatSeconds(last->last_received_seconds() - sent),
                              " after everything from here had arrived: ask there with `railsctl explain`."));
}

}  // namespace

std::vector<std::string> Causes(const v1::ExplainJobResponse& job) {
  std::vector<std::string> out;
  AddOutcome(job, &out);
  AddWaits(job, &out);
  AddRails(job, &out);
  AddSpeeds(job, &out);
  AddReceiving(job, &out);
  return out;
}

}  // namespace rails::ctl
