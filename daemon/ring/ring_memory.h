// Memory that a client and the daemon share for a ring (common/ring/ring.h).
#ifndef RAILSD_DAEMON_RING_RING_MEMORY_H_
#define RAILSD_DAEMON_RING_RING_MEMORY_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "agent/base/unique_fd.h"
#include "common/ring/ring.h"

namespace railsd {

// The client's descriptors, in the order of OpenRingResponse.
struct RingDescriptors {
  UniqueFd requests, answers, doorbell;
};

// Both memories, mapped, and the daemon's end of the doorbells. The destructor unmaps and closes them.
class RingMemory {
 public:
  // RESOURCE_EXHAUSTED: no descriptor or memory is left.
  static absl::StatusOr<std::shared_ptr<RingMemory>> Make(RingDescriptors* client);
  ~RingMemory();
  RingMemory(const RingMemory&) = delete;
  RingMemory& operator=(const RingMemory&) = delete;

  rails::ring::RequestControl& requests() const { return *reinterpret_cast<rails::ring::RequestControl*>(requests_); }
  rails::ring::AnswerControl& answers() const { return *reinterpret_cast<rails::ring::AnswerControl*>(answers_); }
  rails::ring::Writer MakeWriter() const {
    return {answers_ + rails::ring::kDataOffset, &answers().written, &requests().taken};
  }
  rails::ring::Reader MakeReader() const {
    return {requests_ + rails::ring::kDataOffset, &requests().written, &answers().taken};
  }

  // Rings the client's doorbell if the client asked for it in `flag` of the request memory. Any thread.
  void RingIfAsked(std::atomic<uint32_t>& flag) const {
    if (flag.load() == 1 && flag.exchange(0) == 1) Ring();
  }
  int doorbell() const { return doorbell_.get(); }
  // Empties the doorbell of the client's rings. False: the client has closed its end.
  bool TakeRings() const;

 private:
  RingMemory() = default;
  void Ring() const;

  std::byte* requests_ = nullptr;
  std::byte* answers_ = nullptr;
  UniqueFd doorbell_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_RING_RING_MEMORY_H_
