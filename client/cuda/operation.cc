#include "client/cuda/operation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rails::cuda {
namespace {

void AddEach(const std::vector<uint64_t>& more, std::vector<uint64_t>* sum) {
  sum->resize(std::max(sum->size(), more.size()));
  for (size_t i = 0; i < more.size(); ++i) (*sum)[i] += more[i];
}

uint64_t TotalOf(const std::vector<Flow>& flows) {
  uint64_t bytes = 0;
  for (const Flow& flow : flows) bytes += flow.total_bytes;
  return bytes;
}

}  // namespace

void AddReport(const JobReport& more, JobReport* sum) {
  sum->bytes_sent += more.bytes_sent;
  sum->bytes_received += more.bytes_received;
  sum->waiting_for_ranks += more.waiting_for_ranks;
  sum->waiting_for_peers += more.waiting_for_peers;
  if (sum->to_first_chunk == absl::ZeroDuration()) sum->to_first_chunk = more.to_first_chunk;
  sum->node_bound += more.node_bound;
  AddEach(more.rail_tx_bytes, &sum->rail_tx_bytes);
  AddEach(more.rail_rx_bytes, &sum->rail_rx_bytes);
  sum->eager_sent_bytes += more.eager_sent_bytes;
  sum->eager_received_bytes += more.eager_received_bytes;
  sum->replays += more.replays;
}

absl::StatusOr<std::shared_ptr<Operation>> Operation::Make(std::shared_ptr<OpenDevice> device,
                                                           const AllToAllv& exchange, Flows flows,
                                                           std::optional<Stream> stream) {
  const Driver& driver = device->driver();
  Event start = nullptr;
  if (stream) {
    absl::Status status = driver.Check(driver.cuEventCreate(&start, kEventDisableTiming), "cuEventCreate");
    if (!status.ok()) return status;
    status = driver.Check(driver.cuEventRecord(start, *stream), "cuEventRecord");
    if (!status.ok()) {
      driver.cuEventDestroy_v2(start);
      return absl::InvalidArgumentError(absl::StrCat("stream 0x", absl::Hex(reinterpret_cast<uintptr_t>(*stream)), ": ",
                                                     status.message(), "; it must be a stream of this device"));
    }
  }
  std::optional<WaitWords::Word> word;
  if (device->words() != nullptr) word = device->words()->Take();
  return std::shared_ptr<Operation>(new Operation(std::move(device), exchange, std::move(flows), start, word));
}

Operation::Operation(std::shared_ptr<OpenDevice> device, const AllToAllv& exchange, Flows given_flows, Event start,
                     std::optional<WaitWords::Word> word)
    : flows(std::move(given_flows)), device_(std::move(device)), exchange_(exchange), start_(start), word_(word) {}

Operation::~Operation() {
  if (!device_->owner().IsThis()) return;
  LetStreamsGo();
  ReturnWord();
  if (start_ == nullptr) return;
  const InContext here(device_->driver(), device_->context());
  device_->driver().cuEventDestroy_v2(start_);
}

void Operation::AddCopies(const Copies& more) {
  absl::MutexLock lock(&mutex_);
  copies_.to_host_bytes += more.to_host_bytes;
  copies_.to_device_bytes += more.to_device_bytes;
  copies_.own_bytes += more.own_bytes;
  copies_.local_bytes += more.local_bytes;
  copies_.slices += more.slices;
}

void Operation::LetStreamsGo() {
  absl::MutexLock lock(&mutex_);
  if (word_ && !word_set_) device_->words()->Set(*word_);
  word_set_ = true;
}

void Operation::ReturnWord() {
  absl::MutexLock lock(&mutex_);
  if (word_ && !word_returned_) device_->words()->Give(*word_);
  word_returned_ = true;
}

void Operation::Finish(const absl::Status& status) {
  JobReport report = std::move(course.sum);
  report.seq = seq_;
  report.terminal = true;
  report.status = status;
  if (status.ok()) {  // the daemon's figures also count notes and prefixes, and not what it does not carry
    report.bytes_sent = flows.own_bytes + TotalOf(flows.sends);
    report.bytes_received = flows.own_bytes + TotalOf(flows.receives);
  }
  report.elapsed = absl::FromChrono(std::chrono::steady_clock::now() - began_);
  if (report.node_bound > absl::ZeroDuration()) {
    report.ratio_to_bound = absl::FDivDuration(report.elapsed, report.node_bound);
  }
  LetStreamsGo();
  ReturnWord();
  flows = {};
  std::erase(gathered, nullptr);
  if (pool_ != nullptr) {
    pool_->Give(std::exchange(gathered, {}));
    pool_->Keep(std::exchange(exchange_, {}));
  }
  std::vector<std::function<void(Result)>> callbacks;
  {
    absl::MutexLock lock(&mutex_);
    report_ = report;
    callbacks.swap(callbacks_);
    changed_.WakeAll();
  }
  for (auto& callback : callbacks) callback(report);
}

Operation::Result Operation::Wait(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return report_.has_value(); };
  if (changed_.Await(mutex_, ended, internal::Deadline::After(timeout))) return *report_;
  JobReport report;
  report.seq = seq_;
  return report;
}

void Operation::OnDone(std::function<void(Result)> callback) {
  {
    absl::MutexLock lock(&mutex_);
    if (!report_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback(Wait(absl::ZeroDuration()));
}

absl::Status Operation::WaitOn(Stream stream) {
  {
    absl::MutexLock lock(&mutex_);
    // The copies of an ended job are done, so the stream has nothing to wait for.
    if (report_) return report_->status;
  }
  if (word_) {
    // If the job ends now, the word has the value already. The driver may block, so no lock is held.
    const InContext here(device_->driver(), device_->context());
    return device_->words()->Wait(*word_, stream);
  }
  const Result result = Wait(absl::InfiniteDuration());
  return result.ok() ? result->status : result.status();
}

Copies Operation::copies() const {
  absl::MutexLock lock(&mutex_);
  return copies_;
}

}  // namespace rails::cuda
