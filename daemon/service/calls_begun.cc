#include "daemon/service/calls_begun.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>
#include <grpcpp/grpcpp.h>

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace railsd {
namespace {

// What channelz has written, which is ours to free.
std::string TextOf(char* json) {
  if (json == nullptr) return "";
  std::string text = json;
  ::gpr_free(json);
  return text;
}

// The last number under a key: as JSON has numbers of 64 bits, in quotes. Left out when it is 0.
uint64_t LastNumber(absl::string_view json, absl::string_view key) {
  const std::string before = absl::StrCat("\"", key, "\":\"");
  const size_t at = json.rfind(before);
  if (at == absl::string_view::npos) return 0;
  json.remove_prefix(at + before.size());
  uint64_t number = 0;
  return absl::SimpleAtoi(json.substr(0, json.find('"')), &number) ? number : 0;
}

// Servers are listed in pages, in the order of their numbers.
intptr_t NewestServer() {
  intptr_t newest = 0;
  while (true) {
    const std::string page = TextOf(::grpc_channelz_get_servers(newest + 1));
    const intptr_t last = static_cast<intptr_t>(LastNumber(page, "serverId"));
    if (last <= newest) return newest;
    newest = last;
  }
}

}  // namespace

std::unique_ptr<grpc::Server> CallsBegun::BuildAndStart(grpc::ServerBuilder* builder) {
  static absl::Mutex one_at_a_time(absl::kConstInit);  // gRPC does not say which number it has given to which server
  absl::MutexLock lock(&one_at_a_time);
  builder->AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 1);
  const intptr_t before = NewestServer();
  std::unique_ptr<grpc::Server> server = builder->BuildAndStart();
  const intptr_t now = NewestServer();
  if (server != nullptr && now > before) server_ = now;
  return server;
}

uint64_t CallsBegun::TakeNew() {
  if (server_ == 0) return 0;
  const uint64_t now = LastNumber(TextOf(::grpc_channelz_get_server(server_)), "callsStarted");
  if (now < before_) return 0;
  const uint64_t more = now - before_;
  before_ = now;
  return more;
}

}  // namespace railsd
