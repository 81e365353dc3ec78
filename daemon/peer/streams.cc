#include "daemon/peer/streams.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/mutex.h"
#include "daemon/service/connection_ledger.h"
#include "daemon/tls/credentials.h"
#include "rails/peer/v1/peer.grpc.pb.h"

namespace railsd {
namespace {

namespace pb = rails::peer::v1;

constexpr char kStoppingKey[] = "rails-stopping";
constexpr int kFirstReconnectMilliseconds = 100;
constexpr int kMaxReconnectMilliseconds = 1000;

// gRPC names the other end as "ipv4:1.2.3.4:5" or "ipv6:%5B::1%5D:5".
std::string AddressOfUri(const std::string& uri) {
  const size_t colon = uri.find(':');
  return colon == std::string::npos
             ? ""
             : absl::StrReplaceAll(uri.substr(colon + 1), {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
}

class Outbound final : public OutboundStream,
                       public grpc::ClientBidiReactor<pb::ExchangeRequest, pb::ExchangeResponse> {
 public:
  explicit Outbound(StreamHandler* handler) : handler_(handler) {}

  void Start(pb::PeerService::Stub* stub, std::shared_ptr<Outbound> self) {
    self_ = std::move(self);
    stub->async()->Exchange(&context_, this);
    // A read is outstanding from here to the end, and gRPC keeps the call alive for it: Write() needs no hold.
    StartRead(&response_);
    StartCall();
  }

  void Write(std::shared_ptr<const pb::ExchangeRequest> request) override {
    absl::MutexLock lock(&mutex_);
    if (ended_ || in_flight_ != nullptr) return;
    in_flight_ = std::move(request);
    StartWrite(in_flight_.get());
  }
  bool writing() const override {
    absl::MutexLock lock(&mutex_);
    return in_flight_ != nullptr;
  }
  void Cancel() override { context_.TryCancel(); }
  std::string RemoteAddress() const override { return AddressOfUri(context_.peer()); }
  std::vector<std::string> CertificateNames() const override { return DnsNamesOf(context_.auth_context().get()); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      absl::MutexLock lock(&mutex_);
      ended_ = true;
      return;
    }
    handler_->OnResponse(self_, response_);
    StartRead(&response_);
  }
  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      in_flight_ = nullptr;
      ended_ = ended_ || !ok;
    }
    if (ok) handler_->OnWritten(self_);
  }
  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<Outbound> self = std::move(self_);
    const bool stopping = context_.GetServerTrailingMetadata().count(kStoppingKey) != 0;
    handler_->OnEnded(self, absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()),
                      stopping);
  }

 private:
  StreamHandler* const handler_;
  grpc::ClientContext context_;
  pb::ExchangeResponse response_;
  mutable absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const pb::ExchangeRequest> in_flight_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Outbound> self_;  // until OnDone()
};

class Inbound final : public InboundStream, public grpc::ServerBidiReactor<pb::ExchangeRequest, pb::ExchangeResponse> {
 public:
  Inbound(StreamHandler* handler, std::shared_ptr<const PeerServiceOptions> options,
          grpc::CallbackServerContext* context)
      : handler_(handler), options_(std::move(options)), context_(context), connection_(context->peer()) {}

  void Start(std::shared_ptr<Inbound> self) {
    self_ = std::move(self);
    if (!handler_->OnAccepted(self_)) {
      accepted_ = false;
      return Finish(absl::UnavailableError("the daemon is stopping, or has too many streams"), true);
    }
    StartRead(&request_);
  }

  void Write(std::shared_ptr<const pb::ExchangeResponse> response) override {
    absl::MutexLock lock(&mutex_);
    if (finished_ || last_status_ || in_flight_ != nullptr) return;
    in_flight_ = std::move(response);
    StartWrite(in_flight_.get());
  }
  bool writing() const override {
    absl::MutexLock lock(&mutex_);
    return in_flight_ != nullptr;
  }
  void ReadNext() override {
    if (options_->ledger != nullptr) options_->ledger->Taken(connection_, bytes_);
    absl::MutexLock lock(&mutex_);
    if (!finished_) StartRead(&request_);
  }
  void Finish(absl::Status status, bool stopping) override {
    absl::MutexLock lock(&mutex_);
    if (finished_ || last_status_) return;
    if (stopping) context_->AddTrailingMetadata(kStoppingKey, "1");
    last_status_ = std::move(status);
    if (in_flight_ == nullptr) FinishNow();
  }
  void Cancel() override {
    absl::MutexLock lock(&mutex_);
    if (!finished_) context_->TryCancel();
  }
  std::vector<std::string> CertificateNames() const override { return DnsNamesOf(context_->auth_context().get()); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(absl::OkStatus(), false);  // the peer has closed its half, or the stream broke
    bytes_ = request_.ByteSizeLong();
    const uint64_t most = options_->max_message_bytes;
    if (bytes_ > most) {
      return Finish(options_->refused->Refuse(Limit::kMessage, absl::StrCat("a message of ", bytes_.load(),
                                                                            " bytes, this node takes ", most)),
                    false);
    }
    handler_->OnRequest(self_, request_);
  }
  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      in_flight_ = nullptr;
      if (last_status_ && !finished_) FinishNow();
    }
    if (ok) handler_->OnWritten(self_);
  }
  void OnCancel() override { Finish(absl::CancelledError("the peer gave the stream up"), false); }
  void OnDone() override {
    const std::shared_ptr<Inbound> self = std::move(self_);
    if (accepted_) handler_->OnEnded(self);
  }

 private:
  void FinishNow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    finished_ = true;
    grpc::ServerBidiReactor<pb::ExchangeRequest, pb::ExchangeResponse>::Finish(
        grpc::Status(static_cast<grpc::StatusCode>(last_status_->code()), std::string(last_status_->message())));
  }

  StreamHandler* const handler_;
  const std::shared_ptr<const PeerServiceOptions> options_;
  grpc::CallbackServerContext* const context_;  // gone after OnDone()
  const std::string connection_;
  std::atomic<uint64_t> bytes_{0};  // of the request that was read last
  pb::ExchangeRequest request_;
  bool accepted_ = true;
  mutable absl::Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> last_status_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const pb::ExchangeResponse> in_flight_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Inbound> self_;  // until OnDone()
};

class Service final : public pb::PeerService::CallbackService {
 public:
  Service(StreamHandler* handler, PeerServiceOptions options)
      : handler_(handler), options_(std::make_shared<const PeerServiceOptions>(std::move(options))) {}
  grpc::ServerBidiReactor<pb::ExchangeRequest, pb::ExchangeResponse>* Exchange(
      grpc::CallbackServerContext* context) override {
    auto stream = std::make_shared<Inbound>(handler_, options_, context);
    Inbound* const raw = stream.get();
    raw->Start(std::move(stream));
    return raw;
  }

 private:
  StreamHandler* const handler_;
  const std::shared_ptr<const PeerServiceOptions> options_;
};

class GrpcDialler final : public Dialler {
 public:
  GrpcDialler(const std::string& address, uint64_t max_message_bytes, const TlsFiles* tls)
      : address_(address), max_message_bytes_(max_message_bytes), tls_(tls) {
    if (tls_ == nullptr) Connect(grpc::InsecureChannelCredentials());
  }

  std::shared_ptr<OutboundStream> Dial(StreamHandler* handler) override {
    // A channel keeps the certificates of its making: after a change, a new one. Streams that are up keep the old one.
    if (tls_ != nullptr) {
      std::shared_ptr<const TlsMaterial> now = tls_->material();
      if (now != used_) Connect(MakeChannelCredentials(*now));
      used_ = std::move(now);
    }
    auto stream = std::make_shared<Outbound>(handler);
    stream->Start(stub_.get(), stream);
    return stream;
  }

 private:
  void Connect(const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMilliseconds);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kFirstReconnectMilliseconds);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMilliseconds);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // one connection per peer, shared with nobody
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);          // the environment is no configuration
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetMaxReceiveMessageSize(static_cast<int>(max_message_bytes_));
    arguments.SetMaxSendMessageSize(-1);
    stub_ = pb::PeerService::NewStub(grpc::CreateCustomChannel(address_, credentials, arguments));
  }

  const std::string address_;
  const uint64_t max_message_bytes_;
  const TlsFiles* const tls_;
  std::shared_ptr<const TlsMaterial> used_;  // by the channel
  std::unique_ptr<pb::PeerService::Stub> stub_;
};

}  // namespace

std::unique_ptr<Dialler> Dialler::Make(const std::string& address, uint64_t max_message_bytes, const TlsFiles* tls) {
  return std::make_unique<GrpcDialler>(address, max_message_bytes, tls);
}

std::shared_ptr<grpc::Service> MakePeerService(StreamHandler* handler, PeerServiceOptions options) {
  return std::make_shared<Service>(handler, std::move(options));
}

}  // namespace railsd
