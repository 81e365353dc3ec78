#include "tests/fuzz/service/agent/choices.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

namespace railsd::testing {
namespace {

// Calls `f` with every field, in a fixed order.
template <typename F>
void ForEachField(GroupJoin& m, F f) {
  f(m.key), f(m.world_size), f(m.rank), f(m.recovery), f(m.next_seq);
}
template <typename F>
void ForEachField(GroupLeave& m, F f) {
  f(m.key), f(m.rank);
}
template <typename F>
void ForEachField(GroupCommit& m, F f) {
  f(m.key), f(m.epoch), f(m.members), f(m.recovery), f(m.next_seq);
}
template <typename F>
void ForEachField(GroupReject& m, F f) {
  f(m.key), f(m.rank), f(m.code);
}
template <typename F>
void ForEachField(GroupBroken& m, F f) {
  f(m.epoch), f(m.last_seq), f(m.code), f(m.replayable);
}
template <typename F>
void ForEachField(Leaving& m, F f) {
  f(m.epoch), f(m.seq);
}
template <typename F>
void ForEachField(MayLeave& m, F f) {
  f(m.epoch), f(m.seq);
}
template <typename F>
void ForEachField(Unsubmitted::Member& m, F f) {
  f(m.rank);
}
template <typename F>
void ForEachField(Unsubmitted& m, F f) {
  f(m.job), f(m.members);
}
template <typename F>
void ForEachField(RailConnection& m, F f) {
  f(m.rail), f(m.connection);
}
template <typename F>
void ForEachField(RailKeys& m, F f) {
  f(m.rail), f(m.keys);
}
template <typename F>
void ForEachField(ZoneRef& m, F f) {
  f(m.slot), f(m.generation);
}
template <typename F>
void ForEachField(Grant::Range& m, F f) {
  f(m.address), f(m.length_bytes);
}
template <typename F>
void ForEachField(Grant& m, F f) {
  f(m.zone), f(m.ranges), f(m.keys);
}
template <typename F>
void ForEachField(Tally& m, F f) {
  f(m.job), f(m.bytes);
}
template <typename F>
void ForEachField(Ready::Flow& m, F f) {
  f(m.source), f(m.destination), f(m.bytes);
}
template <typename F>
void ForEachField(Ready::Rails& m, F f) {
  f(m.bytes_per_s), f(m.backlog_bytes);
}
template <typename F>
void ForEachField(Ready& m, F f) {
  f(m.job), f(m.tag), f(m.sends), f(m.receives), f(m.rails), f(m.planned_bytes), f(m.tallies), f(m.grant);
}
template <typename F>
void ForEachField(LateGrant& m, F f) {
  f(m.job), f(m.grant);
}
template <typename F>
void ForEachField(Abort& m, F f) {
  f(m.job), f(m.code);
}
template <typename F>
void ForEachField(Quiesced& m, F f) {
  f(m.job), f(m.failed);
}
template <typename F>
void ForEachField(RailState& m, F f) {
  f(m.rail), f(m.usable), f(m.drained);
}
template <typename F>
void ForEachField(RailSignal& m, F f) {
  f(m.rail), f(m.bytes);
}
template <typename F>
void ForEachField(Rehome::Exchange& m, F f) {
  f(m.job), f(m.round);
}
template <typename F>
void ForEachField(Rehome& m, F f) {
  f(m.failed), f(m.exchanges);
}
template <typename F>
void ForEachField(Rehomed::Exchange& m, F f) {
  f(m.job), f(m.state), f(m.round), f(m.keys);
}
template <typename F>
void ForEachField(Rehomed& m, F f) {
  f(m.exchanges);
}

class Drawer {
 public:
  Drawer(const Known& known, Choices* choices) : known_(known), choices_(*choices) {}

  template <typename Message>
  void Draw(Message* message) {
    ForEachField(*message, [this](auto& field) { this->Set(field); });
  }
  template <typename Message>
  void ChangeOne(Message* message) {
    size_t count = 0;
    ForEachField(*message, [&](auto&) { ++count; });
    const size_t chosen = choices_.Below(count);
    size_t at = 0;
    ForEachField(*message, [&](auto& field) {
      if (at++ == chosen) this->Change(field);
    });
  }

 private:
  // Small, at the edges of its type, or of four bytes.
  uint64_t Number() {
    const uint8_t byte = choices_.Byte();
    if (byte < 224) return byte % 16;
    if (byte < 240) return ~uint64_t{0} - byte % 16;
    if (byte < 248) return uint64_t{1} << (31 + 4 * (byte % 8));
    uint64_t number = 0;
    for (int i = 0; i < 4; ++i) number = number << 8 | choices_.Byte();
    return number;
  }
  template <typename T>
  const T& OneOf(const std::vector<T>& values) {
    return values[choices_.Below(values.size())];
  }

  void Set(bool& out) { out = choices_.Flip(); }
  void Set(uint16_t& out) { out = static_cast<uint16_t>(Number()); }
  void Set(uint32_t& out) { out = static_cast<uint32_t>(Number()); }
  void Set(uint64_t& out) { out = Number(); }
  void Set(Rank& out) { out = Rank(static_cast<uint32_t>(choices_.Below(8))); }
  void Set(RailIndex& out) { out = RailIndex(static_cast<uint32_t>(choices_.Below(4))); }
  void Set(JobSeq& out) { out = JobSeq(Number()); }
  void Set(absl::StatusCode& out) { out = static_cast<absl::StatusCode>(1 + choices_.Below(16)); }
  void Set(Rehomed::State& out) { out = static_cast<Rehomed::State>(choices_.Below(3)); }
  void Set(std::string& out) { out = choices_.Bytes(1 + choices_.Below(32)); }
  void Set(GroupKey& out) { out = OneOf(known_.keys); }
  void Set(Epoch& out) {
    const size_t chosen = choices_.Below(known_.epochs.size() + 2);
    if (chosen < known_.epochs.size()) {
      out = known_.epochs[chosen];
    } else {
      out = {OneOf(known_.boots), Number()};
    }
  }
  void Set(JobKey& out) {
    Set(out.epoch);
    Set(out.seq);
  }
  void Set(Recovery& out) {
    out.policy = static_cast<RecoveryPolicy>(1 + choices_.Below(3));
    out.wait_limit = absl::Seconds(choices_.Below(4));
  }
  void Set(std::vector<std::string>& out) {
    out.resize(1 + choices_.Below(4));
    for (std::string& node : out) node = OneOf(known_.nodes);
  }
  template <typename T>
  void Set(std::vector<T>& out) {
    out.resize(choices_.Below(5));
    for (T& element : out) Set(element);
  }
  void Set(decltype(Ready::planned_bytes)& out) {
    out.resize(choices_.Below(5));
    for (uint64_t& bytes : out) Set(bytes);
  }
  // Messages that the conversion refuses (peer_conversion_test.cc) would not reach an agent: flows are in order,
  // rails are named once, and all rails have as many keys.
  void Set(Ready::Flows& flows) {
    std::vector<Ready::Flow> out(choices_.Below(5));
    for (Ready::Flow& flow : out) Draw(&flow);
    const auto place = [](const Ready::Flow& flow) { return std::pair(flow.destination, flow.source); };
    std::sort(out.begin(), out.end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
    out.erase(std::unique(out.begin(), out.end(), [&](const auto& a, const auto& b) { return place(a) == place(b); }),
              out.end());
    flows = out;
  }
  void SetKeys(size_t each, std::vector<RailKeys>& out) {
    out.resize(each == 0 ? 0 : choices_.Below(4));
    for (size_t r = 0; r < out.size(); ++r) {
      Draw(&out[r]);
      out[r].rail.rail = RailIndex(static_cast<uint32_t>(r));
      out[r].keys.resize(each);
    }
  }
  void Set(Grant& out) {
    Set(out.zone);
    Set(out.ranges);
    SetKeys(out.ranges.size(), out.keys);
  }
  void Set(Rehomed::Exchange& out) {
    Draw(&out);
    if (out.state == Rehomed::State::kOpen) out.round += out.round == 0 ? 1 : 0;
  }
  void Set(std::vector<RailKeys>& out) { SetKeys(1 + choices_.Below(3), out); }
  template <typename T>
  void Set(std::optional<T>& out) {
    out.reset();
    if (choices_.Flip()) Set(out.emplace());
  }
  template <typename Message>
  void Set(Message& out) {
    Draw(&out);
  }

  template <typename T>
  void Change(std::vector<T>& out) {
    const size_t what = choices_.Below(8);
    if (out.empty() || what == 0) return Set(out);
    const size_t at = choices_.Below(out.size());
    if (what == 1) {
      out.erase(out.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (what == 2) {
      const T copy = out[at];
      out.push_back(copy);
    } else if (what == 3) {
      std::swap(out.front(), out[at]);
    } else {
      Change(out[at]);
    }
  }
  template <typename T>
  void Change(std::optional<T>& out) {
    out.has_value() && choices_.Below(4) > 0 ? Change(*out) : Set(out);
  }
  void Change(JobKey& out) { choices_.Flip() ? Set(out.seq) : Set(out.epoch); }
  void Change(uint64_t& out) {
    switch (choices_.Below(4)) {
      case 0:
        return Set(out);
      case 1:
        out += 1 + choices_.Below(4);
        return;
      case 2:
        out -= 1 + choices_.Below(4);
        return;
      default:
        out ^= uint64_t{1} << choices_.Below(64);
        return;
    }
  }
  template <typename Message>
  requires requires(Message& m) {
    ForEachField(m, [](auto&) {});
  }
  void Change(Message& out) { ChangeOne(&out); }
  template <typename T>
  void Change(T& out) {
    Set(out);
  }

  const Known& known_;
  Choices& choices_;
};

template <size_t... kKind>
ControlMessage OfKind(size_t kind, std::index_sequence<kKind...>) {
  ControlMessage message;
  ((kind == kKind ? void(message.emplace<kKind>()) : void()), ...);
  return message;
}

}  // namespace

uint8_t Choices::Byte() {
  if (left_.empty()) return 0;
  const uint8_t byte = left_.front();
  left_.remove_prefix(1);
  return byte;
}

std::string Choices::Bytes(size_t count) {
  count = std::min(count, left_.size());
  std::string bytes(left_.begin(), left_.begin() + static_cast<std::ptrdiff_t>(count));
  left_.remove_prefix(count);
  return bytes;
}

ControlMessage DrawMessage(const Known& known, Choices* choices) {
  constexpr size_t kKinds = std::variant_size_v<ControlMessage>;
  ControlMessage message = OfKind(choices->Below(kKinds), std::make_index_sequence<kKinds>());
  std::visit([&](auto& m) { Drawer(known, choices).Draw(&m); }, message);
  return message;
}

void ChangeMessage(const Known& known, Choices* choices, ControlMessage* message) {
  std::visit([&](auto& m) { Drawer(known, choices).ChangeOne(&m); }, *message);
}

}  // namespace railsd::testing
