// Core: servers are told which files are going to be read (fetch_ahead.h).
#include <memory>
#include <utility>

#include "client/core.h"

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

class FetchOperation final : public CallOwner, public std::enable_shared_from_this<FetchOperation> {
 public:
  FetchOperation(Core& core, FetchAhead::Batch batch) : core_(core), batch_(std::move(batch)) {}

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
    core_.fetch_ended(lane, std::move(batch_), outcome_of(call));
  }

 private:
  Core& core_;
  FetchAhead::Batch batch_;
};

}  // namespace

void Core::fetch_ahead(const Attributes& attributes, const FileView& view) {
  if (!fetch_ahead_.is_on() || !FetchAhead::is_fit(attributes, view)) return;
  if (local_cache_ && local_cache_->cache().has({attributes.ino, 0}, stamp_of(attributes, view)))
    return;
  fetch_ahead_.want(attributes, view, Clock::now());
}

void Core::send_fetches() {
  if (!fetch_ahead_.any() || !whole_reads_.are_usual()) return;
  lanes_.front()->post([this](Lane& lane) { send_fetches(lane); });
}

void Core::send_fetches(Lane& lane) {
  for (FetchAhead::Batch& batch : fetch_ahead_.take(lane.loop().now())) {
    std::make_shared<FetchOperation>(*this, std::move(batch))->start(lane);
  }
}

void Core::fetch_ended(Lane& lane, FetchAhead::Batch batch, FetchAhead::Outcome outcome) {
  const auto again = fetch_ahead_.ended(std::move(batch), outcome, lane.loop().now());
  if (again && !stopped_) lane.loop().call_at(*again, [this, &lane] { send_fetches(lane); });
}

}  // namespace braidfs::client
