#include "agent/transport/fake/fake_fabric.h"

#include <cerrno>
#include <memory>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "agent/transport/fake/fake_transport.h"

namespace railsd {

FakeFabric::FakeFabric() : state_(std::make_shared<FakeFabricState>()) {}
FakeFabric::~FakeFabric() = default;

std::unique_ptr<RailTransport> FakeFabric::Create(const FakeTransportOptions& options) {
  std::string address;
  {
    std::lock_guard lock(state_->mutex);
    address = absl::StrCat("fake:", state_->next_address++);
  }
  return std::make_unique<FakeTransport>(state_, std::move(address), options);
}

void FakeFabric::Fail(const std::string& address) {
  std::lock_guard lock(state_->mutex);
  FakeTransport* transport = state_->Find(address);
  if (transport == nullptr) return;
  transport->failed_ = true;
  transport->BreakAll(ENETDOWN);
}

void FakeFabric::Heal(const std::string& address) {
  std::lock_guard lock(state_->mutex);
  FakeTransport* transport = state_->Find(address);
  if (transport == nullptr) return;
  transport->failed_ = false;
  state_->ConnectAll();
}

void FakeFabric::Break(const std::string& address, PeerIndex peer, int error_number) {
  std::lock_guard lock(state_->mutex);
  FakeTransport* transport = state_->Find(address);
  if (transport == nullptr) return;
  auto link = transport->links_.find(peer);
  if (link != transport->links_.end()) transport->Break(link->second, error_number);
}

void FakeFabric::SetStepBytes(const std::string& address, uint64_t step_bytes) {
  std::lock_guard lock(state_->mutex);
  FakeTransport* transport = state_->Find(address);
  if (transport == nullptr) return;
  transport->options_.step_bytes = step_bytes;
  transport->Notify();
}

void FakeFabric::FailOrder(const std::string& address, uint64_t nth, SendResult result, int error_number) {
  std::lock_guard lock(state_->mutex);
  if (FakeTransport* transport = state_->Find(address)) transport->fault_ = {nth, result, error_number};
}

void FakeFabric::FailOpenZones(const std::string& address, int error_number) {
  std::lock_guard lock(state_->mutex);
  if (FakeTransport* transport = state_->Find(address)) transport->open_error_ = error_number;
}

void FakeFabric::RefuseRegistrations(const std::string& address, bool refuse) {
  std::lock_guard lock(state_->mutex);
  if (FakeTransport* transport = state_->Find(address)) transport->registrar_->refuses = refuse;
}

size_t FakeFabric::OpenKeys(const std::string& address) const {
  std::lock_guard lock(state_->mutex);
  const FakeTransport* transport = state_->Find(address);
  return transport == nullptr ? 0 : transport->keys_.size();
}

size_t FakeFabric::Registrations(const std::string& address) const {
  std::lock_guard lock(state_->mutex);
  const FakeTransport* transport = state_->Find(address);
  return transport == nullptr || transport->registrar_ == nullptr ? 0 : transport->registrar_->alive.load();
}

}  // namespace railsd
