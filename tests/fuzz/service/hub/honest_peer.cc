#include "tests/fuzz/service/hub/honest_peer.h"

#include <utility>
#include <variant>

namespace railsd::testing {

ControlMessage MessageOf(uint64_t number, bool longer) {
  const JobKey job{{BootId(1), 1}, JobSeq(number)};
  if (!longer) return Quiesced{job, 0};
  Offer offer;
  offer.job = job;
  offer.flows.assign(7000, {Rank(1), Rank(2), uint64_t{1} << 62});
  return offer;
}

uint64_t ContentOf(const ControlMessage& message) {
  if (const auto* const longer = std::get_if<Offer>(&message)) return longer->job.seq.value();
  const auto* const quiesced = std::get_if<Quiesced>(&message);
  Must(quiesced != nullptr, "a message that nobody has said");
  return quiesced->job.seq.value();
}

HelloFacts HonestPeer::Facts() {
  HelloFacts facts = FactsOf(name_, boot_);
  facts.max_world_size = 64;
  // Any bytes are a share: nobody makes the key of these, and another each time names another lane.
  PublicShare share{};
  share[0] = 9;
  for (size_t i = 0; i < sizeof(uint64_t); ++i) {
    share[1 + i] = static_cast<uint8_t>(boot_ >> 8 * i);
    share[9 + i] = static_cast<uint8_t>(shares_.size() >> 8 * i);
  }
  facts.lane_share = share;
  shares_.insert(share);
  return facts;
}

void HonestPeer::Connect() {
  if (theirs_ != nullptr && theirs_->cancelled) Break(/*own=*/false);
  if (theirs_ == nullptr) Answer();
  if (mine_ != nullptr && (mine_->finished || mine_->cancelled || (my_lane_ != 0 && !LaneIsOpen()))) Break(true);
  if (mine_ == nullptr) Dial();
  if (theirs_ == nullptr) Answer();  // the hub dials who has greeted it
}

void HonestPeer::Answer() {
  const std::shared_ptr<OutByHand> stream = hub_->DialledTo(name_);
  if (stream == nullptr) return;
  if (stream->cancelled) return hub_->End(stream, absl::CancelledError(""));
  theirs_ = stream;
  requests_read_ = 0;
  early_.clear();
  theirs_->names = {name_};
  Must(theirs_->written.size() == 1 && theirs_->written[0]->has_hello(), "a stream begins with a hello");
  hub_->Written(theirs_);
  hub_->Respond(theirs_, AnswerOf(Facts(), heard_));
}

void HonestPeer::Dial() {
  mine_ = hub_->Accept();
  Must(mine_ != nullptr, "an honest stream is not accepted");
  mine_->names = {name_};
  answers_read_ = 1;
  my_lane_ = 0;
  stream_.clear();
  lane_.clear();
  const HelloFacts facts = Facts();
  hub_->Request(mine_, GreetingOf(facts));
  Must(!mine_->finished && mine_->written.size() == 1 && mine_->written[0]->has_hello(), "an honest hello is refused");
  const uint64_t taken = mine_->written[0]->hello().acknowledged();
  Must(taken >= acknowledged_ && taken <= said_, "the hub has forgotten messages, or has some that were not said");
  acknowledged_ = taken;
  for (uint64_t number = taken + 1; number <= said_; ++number) stream_.push_back(number);
  highest_on_stream_ = said_;
  hub_->Written(mine_);
}

bool HonestPeer::LaneIsOpen() const {
  const auto it = hub_->lanes().lanes.find(my_lane_);
  return it != hub_->lanes().lanes.end() && it->second.state == LanesByHand::State::kOpen;
}

void HonestPeer::Say(bool over_lane) {
  ++said_;
  if (mine_ == nullptr) return;  // with the next stream
  if (over_lane && LaneIsOpen() && acknowledged_ >= highest_on_stream_) return lane_.push_back(said_);
  stream_.push_back(said_);
  highest_on_stream_ = said_;
}

void HonestPeer::ArriveOverStream() {
  if (mine_ == nullptr || stream_.empty() || mine_->finished || !mine_->reading) return;
  pb::ExchangeRequest request;
  request.mutable_message()->set_number(stream_.front());
  MessageTo(MessageOf(stream_.front(), stream_.front() % 64 == 0), request.mutable_message());
  stream_.pop_front();
  hub_->Request(mine_, request);
  ReadAnswers();
}

void HonestPeer::ArriveOverLane() {
  if (mine_ == nullptr || lane_.empty() || !LaneIsOpen()) return;
  pb::Numbered message;
  message.set_number(lane_.front());
  MessageTo(MessageOf(lane_.front()), &message);
  lane_.pop_front();
  hub_->hub().OnLaneMessage(my_lane_, message.SerializeAsString());
  ReadAnswers();
}

void HonestPeer::ReadAnswers() {
  if (mine_ == nullptr) return;
  while (answers_read_ < mine_->written.size()) {
    const pb::ExchangeResponse& answer = *mine_->written[answers_read_++];
    Must(!answer.has_hello(), "a second hello");
    if (answer.response_case() == pb::ExchangeResponse::kAcknowledged) {
      Must(answer.acknowledged() > acknowledged_ && answer.acknowledged() <= said_, "a wrong acknowledgement");
      acknowledged_ = answer.acknowledged();
    }
    hub_->Written(mine_);
  }
}

void HonestPeer::OpenLanes() {
  for (auto& [id, lane] : hub_->lanes().lanes) {
    if (lane.state != LanesByHand::State::kMaking || !Holds(lane)) continue;
    if (lane.address.empty() && mine_ == nullptr) continue;
    lane.state = LanesByHand::State::kOpen;
    if (lane.address.empty()) my_lane_ = id;
    hub_->hub().OnLaneOpen(id);
  }
  ReadAnswers();
}

void HonestPeer::EndLanes() {
  for (auto& [id, lane] : hub_->lanes().lanes) {
    if (lane.state == LanesByHand::State::kClosed || !Holds(lane)) continue;
    lane.state = LanesByHand::State::kClosed;
    frames_read_[id] = lane.written.size();  // what was on its way is lost
    if (id == my_lane_) lane_.clear();
    hub_->hub().OnLaneEnd(id, "it broke", false);
  }
}

void HonestPeer::Hear() {
  ReadAnswers();
  bool more = true;
  while (std::exchange(more, false)) {
    for (auto& [id, lane] : hub_->lanes().lanes) {
      if (lane.address != name_) continue;
      for (size_t& read = frames_read_[id]; read < lane.written.size(); ++read) {
        pb::Numbered message;
        Must(message.ParseFromString(lane.written[read]), "a frame that is no message");
        Must(message.number() <= heard_ + 1, "a lane has overtaken its stream");
        Take(message);
      }
    }
    if (theirs_ == nullptr || requests_read_ == theirs_->written.size()) continue;
    while (requests_read_ < theirs_->written.size()) {
      const pb::ExchangeRequest& request = *theirs_->written[requests_read_++];
      Must(requests_read_ == 1 || !request.has_hello(), "a second hello");
      if (request.has_message()) Take(request.message());
    }
    hub_->Written(theirs_);
    more = true;
  }
}

void HonestPeer::Take(const pb::Numbered& message) {
  if (message.number() <= heard_) return;  // of a resend
  early_[message.number()] = message;
  for (auto it = early_.find(heard_ + 1); it != early_.end(); it = early_.find(heard_ + 1)) {
    const absl::StatusOr<ControlMessage> content = MessageFrom(it->second, 64);
    Must(content.ok() && ContentOf(*content) == it->first, "a message that is not what was sent under its number");
    ++heard_;
    early_.erase(it);
  }
}

void HonestPeer::Acknowledge() {
  if (theirs_ == nullptr) return;
  pb::ExchangeResponse response;
  response.set_acknowledged(heard_);
  hub_->Respond(theirs_, response);
}

void HonestPeer::Break(bool own) {
  if (own && mine_ != nullptr) {
    stream_.clear();
    lane_.clear();
    hub_->End(std::exchange(mine_, nullptr));
    my_lane_ = 0;
  }
  if (!own && theirs_ != nullptr) hub_->End(std::exchange(theirs_, nullptr), absl::UnavailableError("it broke"));
}

}  // namespace railsd::testing
