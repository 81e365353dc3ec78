#include "daemon/tls/handshakes.h"

#include <grpc/support/log.h>
#include <spdlog/logger.h>

#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "daemon/lifecycle/logging.h"

namespace railsd {
namespace {

std::atomic<uint64_t> failed{0};
// Never freed: gRPC's threads may log to the end of the process.
std::atomic<std::shared_ptr<spdlog::logger>*> sink{nullptr};

// From any thread of gRPC.
void OnGrpcLog(gpr_log_func_args* said) {
  const absl::string_view text(said->message);
  // The names are checked by the hub, against the node's: what is dialled is an address.
  if (absl::StartsWith(text, "No match found for server name")) return;
  const std::shared_ptr<spdlog::logger>& log = *sink.load(std::memory_order_acquire);
  if (absl::StartsWith(text, "Handshake failed")) {
    failed.fetch_add(1, std::memory_order_relaxed);
    log->warn("tls_handshake_failed reason={}", LogValue(std::string(text.substr(0, 512))));
    return;
  }
  log->warn("grpc text={}", LogValue(std::string(text.substr(0, 512))));
}

}  // namespace

void WatchHandshakes(std::shared_ptr<spdlog::logger> log) {
  sink.store(new std::shared_ptr<spdlog::logger>(std::move(log)), std::memory_order_release);
  gpr_set_log_function(&OnGrpcLog);
}

uint64_t FailedHandshakes() { return failed.load(std::memory_order_relaxed); }

}  // namespace railsd
