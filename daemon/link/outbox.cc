#include "daemon/link/outbox.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace railsd {

bool Outbox::MustWait(const std::string& message, const std::optional<Epoch>& epoch) const {
  if (message.size() > kFrameHeaderBytes + kMaxFrameBody) return true;
  return !waiting_.empty() && (!epoch || waiting_of_none_ > 0 || waiting_of_.contains(*epoch));
}

void Outbox::Number(FrameKind kind, std::string frame, const std::optional<JobKey>& receipt) {
  if (receipt) receipts_.push_back({next_number_, *receipt});
  SetHeader(kind, next_number_++, &frame);
  frames_.push_back(std::make_shared<const std::string>(std::move(frame)));
}

bool Outbox::Push(std::string message, std::optional<Epoch> epoch, std::optional<JobKey> receipt) {
  if (messages() >= limits_.max_messages || message.size() > limits_.max_bytes - std::min(bytes_, limits_.max_bytes)) {
    return false;
  }
  bytes_ += message.size();
  if (!MustWait(message, epoch)) {
    Number(FrameKind::kMessage, std::move(message), receipt);
    return true;
  }
  ++(epoch ? waiting_of_[*epoch] : waiting_of_none_);
  waiting_.push_back({std::move(message), epoch, receipt, kFrameHeaderBytes});
  return true;
}

void Outbox::NumberNext() {
  Waiting& first = waiting_.front();
  const size_t left = first.message.size() - first.done;
  if (left > kMaxFrameBody || first.done > kFrameHeaderBytes) {
    std::string part = FrameWithoutHeader();
    part.append(first.message, first.done, kMaxFrameBody);
    bytes_ += kFrameHeaderBytes;
    first.done += std::min(left, kMaxFrameBody);
    const bool last = first.done == first.message.size();
    Number(last ? FrameKind::kLastPart : FrameKind::kPart, std::move(part), last ? first.receipt : std::nullopt);
    if (!last) return;
    bytes_ -= kFrameHeaderBytes;  // the header room of the undivided message
  } else {
    Number(FrameKind::kMessage, std::move(first.message), first.receipt);
  }
  if (!first.epoch) {
    --waiting_of_none_;
  } else if (--waiting_of_[*first.epoch] == 0) {
    waiting_of_.erase(*first.epoch);
  }
  waiting_.pop_front();
}

Outbox::FramePtr Outbox::Next() {
  if (next_to_send_ == next_number_ && !waiting_.empty()) NumberNext();
  return next_to_send_ == next_number_ ? nullptr : frames_[static_cast<size_t>(next_to_send_ - first_number())];
}

bool Outbox::Acknowledge(uint64_t number) {
  if (number >= next_to_send_ && number > highest_sent_) return false;
  while (!frames_.empty() && first_number() <= number) {
    bytes_ -= frames_.front()->size();
    frames_.pop_front();
  }
  for (; !receipts_.empty() && receipts_.front().number <= number; receipts_.pop_front()) {
    acknowledged_receipts_.push_back(receipts_.front().job);
  }
  if (next_to_send_ <= number) next_to_send_ = number + 1;
  return true;
}

bool Outbox::Rewind(uint64_t acknowledged) {
  highest_sent_ = std::max(highest_sent_, next_to_send_ - 1);
  // The peer may have taken more over the old connection after it wrote its HELLO. The inbox drops duplicates.
  if (!Acknowledge(acknowledged)) return false;
  next_to_send_ = first_number();
  return true;
}

void Outbox::Reset() {
  frames_.clear();
  waiting_.clear();
  receipts_.clear();
  acknowledged_receipts_.clear();
  waiting_of_.clear();
  waiting_of_none_ = 0;
  bytes_ = 0;
  next_number_ = 1;
  next_to_send_ = 1;
  highest_sent_ = 0;
}

Inbox::Verdict Inbox::Receive(uint64_t number) {
  if (number == taken_ + 1) {
    taken_ = number;
    return Verdict::kTake;
  }
  return number != 0 && number <= taken_ ? Verdict::kDuplicate : Verdict::kOutOfOrder;
}

absl::Status Inbox::AddPart(absl::string_view part, size_t max_bytes) {
  if (part.empty() || part.size() > max_bytes - std::min(parts_.size(), max_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("a message in parts of ", parts_.size(), " and ", part.size(),
                                                   " bytes, outside 1 to ", max_bytes));
  }
  absl::StrAppend(&parts_, part);
  return absl::OkStatus();
}

}  // namespace railsd
