// How many calls have come to a gRPC server by gRPC's own count: those too that it ends before anybody else sees them.
#ifndef RAILSD_DAEMON_SERVICE_CALLS_BEGUN_H_
#define RAILSD_DAEMON_SERVICE_CALLS_BEGUN_H_

#include <cstdint>
#include <memory>

namespace grpc {
class Server;
class ServerBuilder;
}  // namespace grpc

namespace railsd {

class CallsBegun {
 public:
  // The server that is counted; null: gRPC cannot start it. Once only.
  std::unique_ptr<grpc::Server> BuildAndStart(grpc::ServerBuilder* builder);
  // Those that have begun since it was asked last. One thread.
  uint64_t TakeNew();

 private:
  intptr_t server_ = 0;  // gRPC's number of it; 0: not known, nothing is counted
  uint64_t before_ = 0;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_SERVICE_CALLS_BEGUN_H_
