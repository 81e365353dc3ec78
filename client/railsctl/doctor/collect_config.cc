// Reads the configuration file through the program railsd.
#include <fcntl.h>
#include <netdb.h>
#include <openssl/sha.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/railsctl/doctor/collect.h"

namespace rails::ctl::doctor {
namespace {

namespace fs = std::filesystem;

std::string FindDaemonProgram() {
  std::vector<std::string> candidates;
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    candidates.push_back((self.parent_path() / "railsd").string());
    candidates.push_back((self.parent_path() / "../../daemon/railsd").lexically_normal().string());  // a build tree
  }
  const char* path = std::getenv("PATH");
  for (const absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':', absl::SkipEmpty())) {
    candidates.push_back(absl::StrCat(folder, "/railsd"));
  }
  for (const std::string& candidate : candidates) {
    if (access(candidate.c_str(), X_OK) == 0 && !fs::is_directory(candidate, error)) return candidate;
  }
  return "";
}

struct Output {
  bool good = false;  // exit code 0
  std::string text;   // of standard output and standard error
};

Output RunProgram(std::vector<std::string> command) {
  Output output;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return output;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::vector<char*> argv;
  argv.reserve(command.size() + 1);
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  char buffer[4096];
  for (ssize_t got = 0; error == 0 && (got = read(ends[0], buffer, sizeof(buffer))) != 0;) {
    if (got > 0) output.text.append(buffer, static_cast<size_t>(got));
    if (got < 0 && errno != EINTR) break;
  }
  close(ends[0]);
  int status = 0;
  if (error == 0 && waitpid(pid, &status, 0) == pid) output.good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return output;
}

std::string TextOf(const YAML::Node& node, const char* key) {
  return node && node[key] ? node[key].as<std::string>("") : "";
}

// One connect under way.
struct Attempt {
  ConfiguredPeer* peer;
  int fd;
};

// Begins to connect. Returns -1 if there is nothing to wait for: it is connected, or `trouble` gives the reason.
int BeginConnect(ConfiguredPeer* peer) {
  const size_t colon = peer->control.rfind(':');
  std::string host(absl::StripSuffix(absl::StripPrefix(peer->control.substr(0, colon), "["), "]"));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), peer->control.substr(colon + 1).c_str(), &hints, &found);
  if (error != 0) {
    peer->trouble = gai_strerror(error);
    return -1;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, &freeaddrinfo);
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0 || (connect(fd, found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS)) {
    peer->trouble = std::strerror(errno);
    if (fd >= 0) close(fd);
    return -1;
  }
  return fd;
}

}  // namespace

void TryPeers(absl::Duration limit, std::vector<ConfiguredPeer>* peers) {
  std::vector<Attempt> attempts;
  for (ConfiguredPeer& peer : *peers) {
    if (const int fd = BeginConnect(&peer); fd >= 0) attempts.push_back({&peer, fd});
  }
  const absl::Time deadline = absl::Now() + limit;
  for (const Attempt& attempt : attempts) {
    pollfd entry{attempt.fd, POLLOUT, 0};
    const auto left = absl::ToInt64Milliseconds(deadline - absl::Now());
    int error = ETIMEDOUT;
    socklen_t size = sizeof(error);
    if (poll(&entry, 1, static_cast<int>(std::max<int64_t>(0, left))) == 1) {
      getsockopt(attempt.fd, SOL_SOCKET, SO_ERROR, &error, &size);
    }
    close(attempt.fd);
    if (error != 0) attempt.peer->trouble = std::strerror(error);
  }
}

void LookUpPeers(Configuration* config) {
  if (config->dns_name.empty()) return;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(config->dns_name.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    config->dns_trouble = gai_strerror(error);
    return;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, &freeaddrinfo);
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) ++config->dns_addresses;
}

void ParseConfiguration(const std::string& yaml, Configuration* config) try {
  const YAML::Node top = YAML::Load(yaml);
  config->node = TextOf(top, "node");
  config->socket_dir = TextOf(top, "socket_dir");
  config->tls_data = TextOf(top["tls"], "data") == "kernel";
  config->control_listen = TextOf(top["control"], "listen");
  if (top["rails"].IsScalar()) config->auto_rails = true;
  for (const YAML::Node& rail : top["rails"]) {
    config->rails.push_back({TextOf(rail, "name"), TextOf(rail, "transport"), TextOf(rail, "address"),
                             TextOf(rail, "interface"), TextOf(rail, "device"), TextOf(rail, "speed")});
  }
  for (const YAML::Node& peer : top["peers"]["static"]) {
    config->peers.push_back({TextOf(peer, "name"), TextOf(peer, "control"), ""});
  }
  if (top["peers"]["dns"]) config->dns_name = TextOf(top["peers"]["dns"], "name");
} catch (const YAML::Exception& error) {
  config->verdict = absl::InternalError(absl::StrCat("railsd --print-config: ", error.what()));
}

std::string HashOf(const std::string& printed) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const unsigned char*>(printed.data()), printed.size(), digest.data());
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.data()), 8));
}

Configuration ReadConfiguration(const std::string& path, const std::vector<std::string>& options) {
  Configuration config;
  config.path = path;
  config.exists = access(path.c_str(), R_OK) == 0;
  config.program = FindDaemonProgram();
  if (config.program.empty()) return config;
  const Output version = RunProgram({config.program, "--version"});
  if (version.good) {
    config.program_version = std::string(absl::StripAsciiWhitespace(absl::StripPrefix(version.text, "railsd ")));
  }
  if (!config.exists) return config;
  std::vector<std::string> command = {config.program, "--config", path, "--print-config"};
  command.insert(command.end(), options.begin(), options.end());
  const Output printed = RunProgram(command);
  if (printed.good) {
    config.hash = HashOf(printed.text);
    std::vector<std::string> resolve = command;
    resolve.emplace_back("--resolve");
    const Output resolved = RunProgram(std::move(resolve));
    ParseConfiguration(resolved.good ? resolved.text : printed.text, &config);
    if (!resolved.good) {
      config.here = absl::NotFoundError(absl::StripAsciiWhitespace(resolved.text));
      config.rails.clear();  // the rails as written may name nothing on this machine
    }
    command[3] = "--check-config";  // also checks the files that the configuration names
  }
  const Output checked = printed.good ? RunProgram(std::move(command)) : printed;
  if (!checked.good) config.verdict = absl::InvalidArgumentError(absl::StripAsciiWhitespace(checked.text));
  return config;
}

}  // namespace rails::ctl::doctor
