#include "daemon/metrics/status_port.h"

#include <openssl/sha.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/json/json.h"
#include "daemon/lifecycle/readiness.h"
#include "daemon/services/overview.h"
#include "rails/v1/operator.pb.h"

namespace railsd {

// The page for people, page.html, which the build puts into the program.
std::string Page();

namespace {

// Finished jobs in one answer: by default, and at most.
constexpr uint32_t kDefaultFinished = 10, kMaxFinished = 64;
constexpr char kNoAnswer[] = "the engine does not answer; the daemon's log says engine_does_not_answer when that lasts";

HttpAnswer Json(int status, const nlohmann::ordered_json& value) {
  // Names come from outside and may not be UTF-8: replaces bad bytes instead of throwing.
  return {.status = status, .type = "application/json", .body = rails::DumpJson(value) + "\n"};
}

HttpAnswer JsonError(int status, const std::string& text) { return Json(status, {{"error", text}}); }

HttpAnswer TextAnswer(int status, const std::string& text) { return {.status = status, .body = text + "\n"}; }

// Returns 'sha256-...' of the text inside the first `<tag>`. The policy allows only this style and script on the page.
std::string HashOf(absl::string_view page, const std::string& tag) {
  const size_t start = page.find(absl::StrCat("<", tag, ">"));
  const size_t end = page.find(absl::StrCat("</", tag, ">"));
  if (start == absl::string_view::npos || end == absl::string_view::npos) return "'none'";
  const absl::string_view text = page.substr(start + tag.size() + 2, end - start - tag.size() - 2);
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  const absl::string_view bytes(reinterpret_cast<const char*>(digest), sizeof(digest));
  return absl::StrCat("'sha256-", absl::Base64Escape(bytes), "'");
}

// How many finished jobs a query ("a=b&finished=3") asks for. Nullopt if its value is not a number.
std::optional<uint32_t> FinishedWanted(absl::string_view query) {
  uint32_t wanted = kDefaultFinished;
  for (const absl::string_view part : absl::StrSplit(query, '&')) {
    const std::pair<absl::string_view, absl::string_view> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (pair.first == "finished" && !absl::SimpleAtoi(pair.second, &wanted)) return std::nullopt;
  }
  return std::min(wanted, kMaxFinished);
}

}  // namespace

absl::StatusOr<std::unique_ptr<StatusPort>> StatusPort::Start(HttpOptions http, MetricSources sources) {
  std::unique_ptr<StatusPort> port(new StatusPort(std::move(sources)));
  const StatusPort* const self = port.get();
  http.paths["/"] = [self](const std::string&) { return self->page_; };
  http.paths["/api/v1/status"] = [self](const std::string& query) { return self->Status(query); };
  http.paths["/healthz"] = [self](const std::string&) {
    return self->Snapshot() ? TextAnswer(200, "ok") : TextAnswer(503, kNoAnswer);
  };
  http.paths["/readyz"] = [self](const std::string&) { return self->Ready(); };
  http.paths["/metrics"] = [self](const std::string&) {
    return HttpAnswer{.type = "text/plain; version=0.0.4; charset=utf-8", .body = RenderMetrics(self->sources_)};
  };
  absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Start(std::move(http));
  if (!server.ok()) return server.status();
  port->server_ = *std::move(server);
  return port;
}

StatusPort::StatusPort(MetricSources sources) : sources_(std::move(sources)) {
  sources_.high_water = &high_water_;
  const std::string page = Page();
  page_ = {.type = "text/html; charset=utf-8",
           .body = page,
           .policy = absl::StrCat("default-src 'none'; style-src ", HashOf(page, "style"), "; script-src ",
                                  HashOf(page, "script"),
                                  "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                                  "frame-ancestors 'none'")};
}

HttpAnswer StatusPort::Status(const std::string& query) const {
  const std::optional<uint32_t> finished = FinishedWanted(query);
  if (!finished) return JsonError(400, "finished: not a number of jobs");
  const std::optional<AgentSnapshot> snapshot = Snapshot();
  if (!snapshot) return JsonError(503, kNoAnswer);
  rails::v1::GetOverviewResponse overview;
  OverviewTo(*snapshot, *sources_.context, *finished, &overview);
  return Json(200, rails::MessageJson(overview));
}

HttpAnswer StatusPort::Ready() const {
  if (const std::string why = sources_.context->readiness->why_not(); !why.empty()) return TextAnswer(503, why);
  const std::optional<AgentSnapshot> snapshot = Snapshot();
  if (!snapshot) return TextAnswer(503, kNoAnswer);
  return snapshot->draining ? TextAnswer(503, "draining: running jobs end, nothing new is taken")
                            : TextAnswer(200, "ready");
}

}  // namespace railsd
