#include "tests/support/fake/fake_fabric.h"

#include <cerrno>
#include <memory>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/fake/fake_transport.h"

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

template <typename Change>
void FakeFabric::With(const std::string& address, Change change) {
  std::lock_guard lock(state_->mutex);
  if (FakeTransport* const transport = state_->Find(address)) change(*transport);
}

void FakeFabric::Fail(const std::string& address) {
  With(address, [](FakeTransport& transport) {
    transport.failed_ = true;
    transport.BreakAll(ENETDOWN);
  });
}

void FakeFabric::Heal(const std::string& address) {
  With(address, [this](FakeTransport& transport) {
    transport.failed_ = false;
    state_->ConnectAll();
  });
}

void FakeFabric::Break(const std::string& address, PeerIndex peer, int error_number) {
  With(address, [&](FakeTransport& transport) {
    const auto link = transport.links_.find(peer);
    if (link != transport.links_.end()) transport.Break(link->second, error_number);
  });
}

void FakeFabric::SetStepBytes(const std::string& address, uint64_t step_bytes) {
  With(address, [&](FakeTransport& transport) {
    transport.options_.step_bytes = step_bytes;
    transport.Notify();
  });
}

void FakeFabric::FailOrder(const std::string& address, uint64_t nth, SendResult result, int error_number) {
  With(address, [&](FakeTransport& transport) { transport.fault_ = {nth, result, error_number}; });
}

void FakeFabric::FailOpenZones(const std::string& address, int error_number) {
  With(address, [&](FakeTransport& transport) { transport.open_error_ = error_number; });
}

void FakeFabric::RefuseRegistrations(const std::string& address, bool refuse) {
  With(address, [&](FakeTransport& transport) { transport.registrar_->refuses = refuse; });
}

size_t FakeFabric::OpenKeys(const std::string& address) {
  size_t keys = 0;
  With(address, [&](const FakeTransport& transport) { keys = transport.keys_.size(); });
  return keys;
}

size_t FakeFabric::Registrations(const std::string& address) {
  size_t alive = 0;
  With(address, [&](const FakeTransport& transport) {
    if (transport.registrar_ != nullptr) alive = transport.registrar_->alive;
  });
  return alive;
}

}  // namespace railsd
