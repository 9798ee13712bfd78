#include "client/fetching.h"

#include <memory>
#include <utility>

#include "client/lanes.h"

namespace braidfs::client {

namespace {

// What a request says needs no file of its own.
const FileViewPtr kNoFile = std::make_shared<const FileView>();

FetchAhead::Outcome outcome_of(const Call& call) {
  switch (call.status) {
    case Status::kOk:
      return FetchAhead::Outcome::kTaken;
    case Status::kBadRequest:
      return FetchAhead::Outcome::kUnknown;
    case Status::kEio:
      return FetchAhead::Outcome::kUnreached;
    default:
      return FetchAhead::Outcome::kRefused;
  }
}

void send_fetches(Lane& lane);

void fetch_ended(Lane& lane, FetchAhead::Batch batch, FetchAhead::Outcome outcome) {
  Context& context = lane.context();
  const auto again =
      context.prefetched().fetch_ahead().ended(std::move(batch), outcome, lane.loop().now());
  if (again && !context.is_stopping()) lane.loop().call_at(*again, [&lane] { send_fetches(lane); });
}

class FetchRequest final : public CallOwner, public std::enable_shared_from_this<FetchRequest> {
 public:
  explicit FetchRequest(FetchAhead::Batch batch) : batch_(std::move(batch)) {}

  void start(Lane& lane) {
    Call* const call = lane.make_call();
    call->op = Op::kFetch;
    call->target = batch_.target;
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
  FetchAhead::Batch batch_;
};

void send_fetches(Lane& lane) {
  FetchAhead& wanted = lane.context().prefetched().fetch_ahead();
  for (FetchAhead::Batch& batch : wanted.take(lane.loop().now())) {
    std::make_shared<FetchRequest>(std::move(batch))->start(lane);
  }
}

}  // namespace

void want_fetched(Prefetched& prefetched, const Attributes& attributes, const FileView& view) {
  FetchAhead& wanted = prefetched.fetch_ahead();
  if (!wanted.is_on() || !FetchAhead::is_fit(attributes, view)) return;
  LocalCache* const cached = prefetched.local_cache();
  if (cached != nullptr && cached->cache().has({attributes.ino, 0}, stamp_of(attributes, view)))
    return;
  wanted.want(attributes, view, Clock::now());
}

void send_fetches(Context& context) {
  Prefetched& prefetched = context.prefetched();
  if (!prefetched.fetch_ahead().any() || !prefetched.whole_reads().are_usual()) return;
  context.lanes().at(0).post([](Lane& lane) { send_fetches(lane); });
}

}  // namespace braidfs::client
