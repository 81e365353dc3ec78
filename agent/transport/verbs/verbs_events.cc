// Events that the device reports by itself: ports that go down and come up, addresses that change, errors without a
// completion.
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "agent/transport/verbs/verbs_rail.h"

namespace railsd::verbs {
namespace {

DeviceEvent Translate(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE:
      return {.type = event.event_type, .port = static_cast<uint8_t>(event.element.port_num)};
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return {.type = event.event_type, .queue_pair_number = event.element.qp->qp_num};
    default:
      return {.type = event.event_type};
  }
}

}  // namespace

void VerbsRail::ReadDeviceEvents() {
  ibv_async_event event{};
  while (ibv_get_async_event(context_.device->context(), &event) == 0) {
    const DeviceEvent report = Translate(event);
    ibv_ack_async_event(&event);  // the event's queue pair cannot be destroyed before this
    OnDeviceEvent(report);
  }
}

void VerbsRail::BreakAll(int error_number, const std::string& why) {
  for (auto& [index, endpoint] : endpoints_) Break(*endpoint, error_number, why);
}

void VerbsRail::SetLink(int error_number) {
  if ((link_error_ == 0) == (error_number == 0)) return;
  link_error_ = error_number;
  context_.events.Push({.kind = error_number != 0 ? RailEvent::Kind::kLinkDown : RailEvent::Kind::kLinkUp,
                        .error_number = error_number});
}

// Reads the port, which has changed. Endpoints that were made for another address end; idle endpoints connect at once.
void VerbsRail::RefreshPort(const std::string& reason, int error_number) {
  const absl::StatusOr<RdmaDevice::Address> address = context_.device->Refresh();
  Notice(&device_notice_, address.ok() ? reason : absl::StrCat(reason, ": ", address.status().message()));
  SetLink(address.ok() ? 0 : error_number);
  if (address.ok() && !(*address == flush_.own())) flush_.Fail();
  for (auto& [index, endpoint] : endpoints_) {
    if (!address.ok() || (endpoint->own.has_value() && !(*endpoint->own == *address))) {
      Break(*endpoint, error_number, reason);
    } else if (endpoint->phase == Endpoint::Phase::kIdle) {
      endpoint->failures = 0;
      endpoint->timer = 0;
      Arm(0);
    }
  }
}

void VerbsRail::OnDeviceEvent(const DeviceEvent& event) {
  if (event.port != 0 && event.port != context_.device->port()) return;
  const std::string name = ibv_event_type_str(event.type);
  switch (event.type) {
    case IBV_EVENT_PORT_ERR:
      RefreshPort(absl::StrCat("the device reports: ", name), ENETDOWN);
      return;
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
      RefreshPort(absl::StrCat("the device reports: ", name), EADDRNOTAVAIL);
      return;
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
      dead_ = true;
      Notice(&device_notice_,
             absl::StrCat("the device reports: ", name, "; the rail is out until the daemon restarts"));
      SetLink(EIO);
      BreakAll(EIO, name);
      return;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: {
      const auto queue_pair = queue_pairs_by_number_.find(event.queue_pair_number);
      if (queue_pair == queue_pairs_by_number_.end()) return;
      Endpoint& endpoint = *queue_pair->second->endpoint();
      if (event.type == IBV_EVENT_QP_LAST_WQE_REACHED) {
        queue_pair->second->OnLastReceive();
        last_receives_.OnTold();
      }
      if (endpoint.phase == Endpoint::Phase::kDraining) return;
      if (!LookAtQueuePairs(endpoint)) Break(endpoint, EIO, absl::StrCat("the device reports: ", name));
      return;
    }
    default:
      return;
  }
}

}  // namespace railsd::verbs
