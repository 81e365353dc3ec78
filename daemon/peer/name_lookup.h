// Looks names of peers up.
#ifndef RAILSD_DAEMON_PEER_NAME_LOOKUP_H_
#define RAILSD_DAEMON_PEER_NAME_LOOKUP_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/link/listen.h"

namespace railsd {

// Looks up one name after the other on a thread of its own ("dns"), because a look-up may block for any time. One
// thread at a time calls the methods.
class NameLookup {
 public:
  using Addresses = absl::StatusOr<std::vector<std::string>>;
  using Resolver = std::function<Addresses(const std::string& address)>;
  struct Answer {
    std::string address;  // as asked
    Addresses found;
  };

  explicit NameLookup(Resolver resolve = &AddressesOf);
  // Does not wait for a look-up under way. The thread owns the state, too, and ends when the look-up returns.
  ~NameLookup();
  // `address`: "name:port". `first`: before the questions that wait.
  void Ask(const std::string& address, bool first = false);
  // The answers that have come since the last call, one for each question.
  std::vector<Answer> TakeAnswers();

 private:
  struct State;
  static void Loop(State& state, const Resolver& resolve);

  const std::shared_ptr<State> state_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_PEER_NAME_LOOKUP_H_
