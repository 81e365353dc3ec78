// Owning handles of libibverbs' objects. A member that needs another one is declared after it.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_HANDLES_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_HANDLES_H_

#include <infiniband/verbs.h>

#include <memory>

namespace railsd::verbs {

template <auto Destroy>
struct Destroyer {
  template <typename T>
  void operator()(T* object) const {
    Destroy(object);  // fails only while something still uses the object: a broken order of members
  }
};

struct WindowDestroyer {
  void operator()(ibv_mw* window) const { ibv_dealloc_mw(window); }  // inline in libibverbs: it has no address
};

using ContextHandle = std::unique_ptr<ibv_context, Destroyer<&ibv_close_device>>;
using DomainHandle = std::unique_ptr<ibv_pd, Destroyer<&ibv_dealloc_pd>>;
using ChannelHandle = std::unique_ptr<ibv_comp_channel, Destroyer<&ibv_destroy_comp_channel>>;
using CompletionQueueHandle = std::unique_ptr<ibv_cq, Destroyer<&ibv_destroy_cq>>;
using SharedReceiveHandle = std::unique_ptr<ibv_srq, Destroyer<&ibv_destroy_srq>>;
using QueuePairHandle = std::unique_ptr<ibv_qp, Destroyer<&ibv_destroy_qp>>;
using RegionHandle = std::unique_ptr<ibv_mr, Destroyer<&ibv_dereg_mr>>;
using WindowHandle = std::unique_ptr<ibv_mw, WindowDestroyer>;

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_HANDLES_H_
