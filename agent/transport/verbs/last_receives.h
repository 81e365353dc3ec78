// How long the end of a queue pair waits for the device to say that it takes no more receives.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_LAST_RECEIVES_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_LAST_RECEIVES_H_

#include <cstdint>

namespace railsd::verbs {

// The state of one device. A queue pair on a shared receive queue that is in error may have completed receives that
// are not in the completion queue yet; IBV_EVENT_QP_LAST_WQE_REACHED says that they are. Some devices never say it
// (Soft-RoCE): the first end there waits in vain, and later ones do not wait.
class LastReceives {
 public:
  static constexpr int64_t kWaitNanoseconds = 100'000'000;

  // Until when a queue pair that goes into error now waits.
  int64_t WaitUntil(int64_t now) const { return silent_ ? now : now + kWaitNanoseconds; }
  void OnTold() { silent_ = false; }
  void OnWaitedInVain() { silent_ = true; }

 private:
  bool silent_ = false;
};

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_LAST_RECEIVES_H_
