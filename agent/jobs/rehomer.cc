#include "agent/jobs/rehomer.h"

#include <spdlog/logger.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace railsd {

NodeJob* Rehomer::Find(JobKey key) {
  const auto it = jobs_.find(key);
  return it == jobs_.end() ? nullptr : it->second.get();
}

void Rehomer::AskMarked() {
  for (const PeerIndex index : std::exchange(marked_, {})) {
    const Peer& peer = context_.peer(index);
    if (!peer.up || asked_.contains(index)) continue;
    // One question names all that a failure leaves in doubt: all of it must have come back.
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
    NodeJob* const job = Find(asked[i]);
    Exchange* const exchange = job == nullptr ? nullptr : job->With(from.index);
    if (exchange == nullptr || job->aborting() || exchange->left_out || !exchange->out.asked()) continue;
    const bool fits = asked.size() == message.exchanges.size() && message.exchanges[i].job == asked[i];
    std::vector<Sending::Lost> arrived;
    const absl::Status status = fits ? exchange->out.OnAnswer(message.exchanges[i], &arrived)
                                     : absl::InternalError("it answers for other exchanges than it was asked about");
    if (!status.ok()) {
      calls_.fail(*job, absl::Status(status.code(), absl::StrCat("REHOMED of ", from.node, " for job ",
                                                                 asked[i].seq.value(), ": ", status.message())));
      continue;
    }
    rehomed_ += message.exchanges[i].state == Rehomed::State::kOpen;
    for (const Sending::Lost& lost : arrived) calls_.arrived(*exchange, lost);
    calls_.answered(*job, *exchange);
  }
  return true;
}

Rehomed::Exchange Rehomer::Judge(const Peer& from, const Rehome::Exchange& asked,
                                 const std::vector<RailConnection>& failed) {
  Rehomed::Exchange answer{asked.job, Rehomed::State::kAborted, 0, {}};
  if (!calls_.may_ask(from, asked.job)) return answer;
  NodeJob* const job = Find(asked.job);
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

void Rehomer::AnswerIfReady(PeerIndex peer) {
  const auto found = answers_.find(peer);
  if (found == answers_.end()) return;
  bool ready = true;
  for (Rehomed::Exchange& answer : found->second.exchanges) {
    if (answer.state != Rehomed::State::kOpen) continue;
    NodeJob* const job = Find(answer.job);
    Exchange* const exchange = job == nullptr ? nullptr : job->With(peer);
    if (exchange != nullptr && exchange->in.complete()) {
      answer.state = Rehomed::State::kComplete;
      continue;
    }
    if (exchange == nullptr || job->aborting() || exchange->left_out || !exchange->in.open()) {
      answer.state = Rehomed::State::kAborted;
      continue;
    }
    if (!exchange->in.IsBinding() && !exchange->in.IsBound()) exchange->in.BindAgain();
    ready = ready && !exchange->in.IsBinding() && exchange->in.IsBound();
  }
  if (!ready) return;
  Rehomed answer = std::move(found->second);
  answers_.erase(found);
  for (Rehomed::Exchange& entry : answer.exchanges) {
    if (entry.state == Rehomed::State::kOpen) entry.keys = Find(entry.job)->With(peer)->in.TakeNewKeys();
  }
  outbox_.Send(context_.peer(peer).node, std::move(answer));
}

void Rehomer::OnPeerLost(PeerIndex peer) {
  marked_.erase(peer);
  asked_.erase(peer);
  answers_.erase(peer);
}

}  // namespace railsd
