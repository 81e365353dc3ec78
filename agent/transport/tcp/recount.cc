#include "agent/transport/tcp/recount.h"

#include <array>
#include <bit>
#include <cstring>

namespace railsd::tcp {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian; add byte swaps for this machine");

// 0 magic, layout and kind; 8 from, 16 to, 24 generation, 32 frames.
constexpr uint64_t kMagic = 0x0001544e43525300;  // layout 1; the lowest byte is the kind
constexpr size_t kWords = 5;

}  // namespace

std::string EncodeRecount(const Recount& recount) {
  const std::array<uint64_t, kWords> words{kMagic | static_cast<uint8_t>(recount.kind), recount.from.value(),
                                           recount.to.value(), recount.generation, recount.frames};
  return std::string(reinterpret_cast<const char*>(words.data()), sizeof(words));
}

bool DecodeRecount(const std::string& bytes, Recount* recount) {
  std::array<uint64_t, kWords> words;
  if (bytes.size() != sizeof(words)) return false;
  std::memcpy(words.data(), bytes.data(), sizeof(words));
  const auto kind = static_cast<uint8_t>(words[0]);
  if ((words[0] ^ kind) != kMagic || kind < 1 || kind > 3) return false;
  recount->kind = static_cast<Recount::Kind>(kind);
  recount->from = BootId(words[1]);
  recount->to = BootId(words[2]);
  recount->generation = words[3];
  recount->frames = words[4];
  return recount->kind == Recount::Kind::kAnswer || recount->frames == 0;
}

}  // namespace railsd::tcp
