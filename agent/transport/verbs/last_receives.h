// How long a drain waits for the device to report that a queue pair takes no more receives.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_LAST_RECEIVES_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_LAST_RECEIVES_H_

#include <cstdint>

namespace railsd::verbs {

// The state of one device. When a queue pair on a shared receive queue goes into error, completions of its receives may
// not be in the completion queue yet; IBV_EVENT_QP_LAST_WQE_REACHED says that they are. Some devices never report it
// (Soft-RoCE): there the first drain waits in vain, and later ones do not wait.
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
