// An HTTP client that may misbehave.
#ifndef RAILSD_TESTS_UNIT_DAEMON_METRICS_HTTP_CLIENT_H_
#define RAILSD_TESTS_UNIT_DAEMON_METRICS_HTTP_CLIENT_H_

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "agent/base/unique_fd.h"

namespace railsd {

inline UniqueFd ConnectTo(int port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return {};
  return socket;
}

// Reads until the other end closes or breaks the connection.
inline std::string ReadAll(const UniqueFd& socket) {
  std::string answer;
  char part[4096];
  for (ssize_t size = 0; (size = read(socket.get(), part, sizeof(part))) > 0;) {
    answer.append(part, static_cast<size_t>(size));
  }
  return answer;
}

// Sends these bytes on a new connection and returns the whole answer. Stops sending when the server takes no more.
inline std::string Exchange(int port, const std::string& bytes) {
  const UniqueFd socket = ConnectTo(port);
  if (!socket.valid()) return "no connection";
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t size = send(socket.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (size <= 0) break;
    sent += static_cast<size_t>(size);
  }
  return ReadAll(socket);
}

inline std::string Ask(int port, const std::string& method, const std::string& path, const std::string& headers = "") {
  return Exchange(port, absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: localhost\r\n", headers, "\r\n"));
}

inline std::string BodyOf(const std::string& answer) {
  const size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? "" : answer.substr(end + 4);
}

}  // namespace railsd

#endif  // RAILSD_TESTS_UNIT_DAEMON_METRICS_HTTP_CLIENT_H_
