#include "client/server_fetch.h"

#include <memory>
#include <utility>

#include "client/lanes.h"

namespace braidfs::client {

namespace {

using prefetch::ServerCaches;

// A FETCH names its objects in its body, so its call has the view of no file.
const FileViewPtr kNoFile = std::make_shared<const FileView>();

ServerCaches::Outcome outcome_of(const Call& call) {
  switch (call.status) {
    case Status::kOk:
      return ServerCaches::Outcome::kTaken;
    case Status::kBadRequest:
      return ServerCaches::Outcome::kUnknown;
    case Status::kEio:
      return ServerCaches::Outcome::kUnreached;
    default:
      return ServerCaches::Outcome::kRefused;
  }
}

void send_fetches(Lane& lane);

void fetch_ended(Lane& lane, ServerCaches::Batch batch, ServerCaches::Outcome outcome) {
  Context& context = lane.context();
  ServerCaches& wanted = context.prefetcher().server_caches();
  const auto again = wanted.ended(std::move(batch), outcome, lane.loop().now());
  if (again && !context.is_stopping()) lane.loop().call_at(*again, [&lane] { send_fetches(lane); });
}

class ServerFetch final : public CallOwner, public std::enable_shared_from_this<ServerFetch> {
 public:
  explicit ServerFetch(ServerCaches::Batch batch) : batch_(std::move(batch)) {}

  void start(Lane& lane) {
    Call* const call = lane.make_call();
    call->op = Op::kFetch;
    call->replica.target = batch_.target;
    call->length = static_cast<uint32_t>(batch_.objects.size());
    call->view = kNoFile;
    call->names = std::as_bytes(std::span(batch_.objects));
    call->owner = shared_from_this();
    call->once = true;
    lane.submit(call);
  }
  void call_done(Lane& lane, Call& call) override {
    fetch_ended(lane, std::move(batch_), outcome_of(call));
  }

 private:
  ServerCaches::Batch batch_;
};

void send_fetches(Lane& lane) {
  ServerCaches& wanted = lane.context().prefetcher().server_caches();
  for (ServerCaches::Batch& batch : wanted.take(lane.loop().now())) {
    std::make_shared<ServerFetch>(std::move(batch))->start(lane);
  }
}

}  // namespace

void want_in_server_caches(Context& context, const Attributes& attributes, const FileView& view) {
  prefetch::Prefetcher& prefetcher = context.prefetcher();
  const auto sink = prefetcher.whole_small_files().granted(attributes, view);
  if (sink != prefetch::Sink::kServers) return;
  LocalCache* const cached = context.local_cache();
  if (cached != nullptr && cached->cache().has({attributes.ino, 0}, stamp_of(attributes, view)))
    return;
  prefetcher.server_caches().want(attributes, view, Clock::now());
}

void tell_servers(Context& context) {
  prefetch::Prefetcher& prefetcher = context.prefetcher();
  if (!prefetcher.server_caches().any() || !prefetcher.whole_small_files().are_usual()) return;
  context.lanes().at(0).post([](Lane& lane) { send_fetches(lane); });
}

}  // namespace braidfs::client
