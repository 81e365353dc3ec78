// Asks a daemon's socket for standard health and server reflection, like any gRPC tool.
//
//   grpc_probe unix:/run/railsd/client.sock
//
// Prints "health N" (1 is SERVING), and for each service "service NAME" and "health NAME N". Uses no generated code,
// because the messages are a few bytes long.
//
//   grpc_probe unix:/run/railsd/operator.sock METHOD COUNT
//
// Sends COUNT empty requests to the method at once and prints "answered N" when all have ended. A fifth argument is the
// token of a session, sent with each.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <memory>
#include <string>

namespace {

grpc::ByteBuffer Buffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

std::string Text(const grpc::ByteBuffer& buffer) {
  grpc::Slice slice;
  if (!buffer.DumpToSingleSlice(&slice).ok()) return "";
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

// Sends one message to a method and returns the first answer.
grpc::Status Ask(const std::shared_ptr<grpc::Channel>& channel, const std::string& method, const std::string& request,
                 std::string* response) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  grpc::CompletionQueue queue;
  const auto step = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  grpc::ByteBuffer answer;
  if (step()) {
    call->Write(Buffer(request), nullptr);
    if (step()) {
      call->WritesDone(nullptr);
      step();
      call->Read(&answer, nullptr);
      if (step()) *response = Text(answer);
    }
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  step();
  return status;
}

// Begins `count` calls together and returns how many were answered.
size_t Flood(const std::shared_ptr<grpc::Channel>& channel, const std::string& method, size_t count,
             const std::string& token) {
  struct Call {
    grpc::ClientContext context;
    grpc::ByteBuffer response;
    grpc::Status status;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  };
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  std::deque<Call> calls(count);
  for (Call& call : calls) {
    call.context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
    if (!token.empty()) call.context.AddMetadata("rails-session-token", token);
    call.reader = stub.PrepareUnaryCall(&call.context, method, Buffer(""), &queue);
    call.reader->StartCall();
    call.reader->Finish(&call.response, &call.status, &call);
  }
  size_t answered = 0;
  void* tag = nullptr;
  bool ok = false;
  for (size_t i = 0; i < count && queue.Next(&tag, &ok); ++i) answered += static_cast<Call*>(tag)->status.ok();
  return answered;
}

// Reads one length-delimited protobuf field. False at the end, or if the next field is of another type.
bool NextField(const std::string& bytes, size_t* at, uint32_t* number, std::string* value) {
  if (*at + 2 > bytes.size() || (bytes[*at] & 7) != 2) return false;
  *number = static_cast<uint8_t>(bytes[*at]) >> 3;
  size_t length = 0;
  int shift = 0;
  size_t next = *at + 1;
  for (; next < bytes.size() && shift < 28; ++next, shift += 7) {
    length |= static_cast<size_t>(bytes[next] & 0x7f) << shift;
    if ((bytes[next] & 0x80) == 0) break;
  }
  ++next;
  if (next + length > bytes.size()) return false;
  *value = bytes.substr(next, length);
  *at = next + length;
  return true;
}

// Prints "health NAME N"; N is 0 if the server does not know the name.
void PrintHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& name) {
  std::string response;
  const std::string request = "\x0a" + std::string(1, static_cast<char>(name.size())) + name;
  const grpc::Status status = Ask(channel, "/grpc.health.v1.Health/Check", request, &response);
  std::cout << "health " << name << " " << (status.ok() && response.size() == 2 ? static_cast<int>(response[1]) : 0)
            << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 4 && argc != 5) {
    std::cerr << "usage: grpc_probe TARGET [METHOD COUNT [TOKEN]]\n";
    return 2;
  }
  const auto channel = grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials());
  if (argc > 2) {
    const std::string token = argc == 5 ? argv[4] : "";
    std::cout << "answered " << Flood(channel, argv[2], std::strtoul(argv[3], nullptr, 10), token) << "\n";
    return 0;
  }
  std::string response;
  grpc::Status status = Ask(channel, "/grpc.health.v1.Health/Check", "", &response);
  if (!status.ok()) {
    std::cerr << "health: " << status.error_message() << "\n";
    return 1;
  }
  std::cout << "health " << (response.size() == 2 ? static_cast<int>(response[1]) : 0) << "\n";

  response.clear();
  // ServerReflectionRequest.list_services = ""; the answer's field 6 lists messages whose field 1 is a name.
  status = Ask(channel, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", std::string("\x3a\x00", 2),
               &response);
  if (!status.ok()) {
    std::cerr << "reflection: " << status.error_message() << "\n";
    return 1;
  }
  size_t at = 0;
  uint32_t number = 0;
  std::string value;
  while (NextField(response, &at, &number, &value)) {
    if (number != 6) continue;
    size_t inner = 0;
    std::string service, name;
    while (NextField(value, &inner, &number, &service)) {
      size_t innermost = 0;
      if (!NextField(service, &innermost, &number, &name)) continue;
      std::cout << "service " << name << "\n";
      PrintHealth(channel, name);
    }
  }
  return 0;
}
