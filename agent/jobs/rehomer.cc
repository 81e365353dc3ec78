#include "agent/jobs/rehomer.h"

#include <spdlog/logger.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace railsd {

void Rehomer::AskMarked() {
  for (const PeerIndex index : std::exchange(marked_, {})) {
    const Peer& peer = context_.peer(index);
    if (!peer.up || asked_.contains(index)) continue;
    // One REHOME names every exchange that a failure leaves in doubt, so the posted work of all of them must have come
    // back.
    std::vector<Exchange*> doubtful;
    bool may_ask = true;
    for (auto& [key, job] : jobs_) {
      Exchange* const exchange = job->With(index);
      if (exchange == nullptr || exchange->left_out || job->aborting()) continue;
      if (!exchange->out.InDoubt() && !exchange->out.NeedsKeys()) continue;
      if (!exchange->out.InDoubt() && exchange->out.keys_wanted_at() > job->now()) {
        Mark(index);
        calls_.again(exchange->out.keys_wanted_at());
        continue;
      }
      may_ask = may_ask && exchange->out.MayAsk();
      doubtful.push_back(exchange);
    }
    if (!may_ask || doubtful.empty()) continue;
    Rehome rehome;
    for (Exchange* exchange : doubtful) {
      rehome.exchanges.push_back(exchange->out.Ask(&rehome.failed));
      asked_[index].push_back(rehome.exchanges.back().job);
    }
    context_.options->log->info("rehoming peer={} exchanges={} failed_connections={}", peer.node,
                                rehome.exchanges.size(), rehome.failed.size());
    outbox_.Send(peer.node, std::move(rehome));
  }
}

bool Rehomer::OnMessage(const Peer& from, Rehomed&& message) {
  const auto found = asked_.find(from.index);
  if (found == asked_.end()) return false;
  const std::vector<JobKey> asked = std::move(found->second);
  asked_.erase(found);
  Mark(from.index);  // others may have come into doubt meanwhile
  for (size_t i = 0; i < asked.size(); ++i) {
    NodeJob* const job = Find(jobs_, asked[i]);
    Exchange* const exchange = job == nullptr ? nullptr : job->With(from.index);
    if (exchange == nullptr || job->aborting() || exchange->left_out || !exchange->out.asked()) continue;
    const bool fits = asked.size() == message.exchanges.size() && message.exchanges[i].job == asked[i];
    const absl::Status status = fits ? exchange->out.OnAnswer(message.exchanges[i])
                                     : absl::InternalError("it answers for other exchanges than it was asked about");
    if (!status.ok()) {
      calls_.fail(*job, absl::Status(status.code(), absl::StrCat("REHOMED of ", from.node, " for job ",
                                                                 asked[i].seq.value(), ": ", status.message())));
      continue;
    }
    rehomed_ += message.exchanges[i].state == Rehomed::State::kOpen;
    calls_.answered(*job, *exchange);
  }
  return true;
}

Rehomed::Exchange Rehomer::Judge(const Peer& from, const Rehome::Exchange& asked,
                                 const std::vector<RailConnection>& failed) {
  Rehomed::Exchange answer{asked.job, Rehomed::State::kAborted, 0, {}};
  if (!calls_.may_ask(from, asked.job)) return answer;
  NodeJob* const job = Find(jobs_, asked.job);
  if (job == nullptr) {
    answer.state = calls_.outcome(asked.job);
    return answer;
  }
  Exchange* const exchange = job->With(from.index);
  if (exchange == nullptr || exchange->left_out || job->aborting() || !exchange->in.granted()) return answer;
  if (exchange->in.complete()) {
    answer.state = Rehomed::State::kComplete;
    return answer;
  }
  if (const absl::Status status = exchange->in.BeginRound(asked.round, failed); !status.ok()) {
    calls_.fail(*job, absl::Status(status.code(), absl::StrCat(from.node, " moves job ", asked.job.seq.value(),
                                                               " off failed rails: ", status.message())));
    return answer;
  }
  answer.state = Rehomed::State::kOpen;
  answer.round = exchange->in.round();
  return answer;
}

bool Rehomer::OnMessage(const Peer& from, Rehome&& message) {
  if (answers_.contains(from.index)) return false;  // it asks one question at a time
  Rehomed answer;
  bool may_ask = false;
  for (const Rehome::Exchange& asked : message.exchanges) {
    may_ask = may_ask || calls_.may_ask(from, asked.job);
    answer.exchanges.push_back(Judge(from, asked, message.failed));
  }
  answers_[from.index] = std::move(answer);
  AnswerIfReady(from.index);
  return may_ask;
}

void Rehomer::TryAnswer(PeerIndex peer) {
  const auto found = answers_.find(peer);
  if (found == answers_.end()) return;
  bool binding = false, bound = true, any_over = false;
  for (Rehomed::Exchange& answer : found->second.exchanges) {
    if (answer.state == Rehomed::State::kOpen) {
      NodeJob* const job = Find(jobs_, answer.job);
      Exchange* const exchange = job == nullptr ? nullptr : job->With(peer);
      if (exchange != nullptr && exchange->in.complete()) {
        answer.state = Rehomed::State::kComplete;
      } else if (exchange == nullptr || job->aborting() || exchange->left_out || !exchange->in.open()) {
        answer.state = Rehomed::State::kAborted;
      } else {
        if (!exchange->in.IsBinding() && !exchange->in.IsBound()) exchange->in.BindAgain();
        binding = binding || exchange->in.IsBinding();
        bound = bound && exchange->in.IsBound();
      }
    }
    any_over = any_over || answer.state != Rehomed::State::kOpen;
  }
  // While no rail is connected, the answer for exchanges that are over does not wait for keys of open ones, whose
  // sender asks for keys later.
  if (binding || (!bound && !(any_over && context_.peer(peer).connected == 0))) return;
  Rehomed answer = std::move(found->second);
  answers_.erase(found);
  for (Rehomed::Exchange& entry : answer.exchanges) {
    if (entry.state == Rehomed::State::kOpen) entry.keys = Find(jobs_, entry.job)->With(peer)->in.TakeNewKeys();
  }
  SendAnswer(context_.peer(peer), std::move(answer));
}

// Keys grow with the ranges that tenants receive into. Keys that do not fit into the message are left out, and the
// sender asks for them again.
void Rehomer::SendAnswer(const Peer& to, Rehomed answer) {
  while (!outbox_.SendIfItFits(to.node, answer).ok()) {
    const auto fewer = [](const Rehomed::Exchange& a, const Rehomed::Exchange& b) {
      return a.keys.size() < b.keys.size();
    };
    const auto most = std::max_element(answer.exchanges.begin(), answer.exchanges.end(), fewer);
    if (most->keys.empty()) return outbox_.Send(to.node, std::move(answer));
    Find(jobs_, most->job)->With(to.index)->in.GiveBack(most->keys);
    most->keys.clear();
  }
}

void Rehomer::OnPeerLost(PeerIndex peer) {
  marked_.erase(peer);
  asked_.erase(peer);
  answers_.erase(peer);
}

}  // namespace railsd
