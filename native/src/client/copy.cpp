#include "client/copy.h"

#include <algorithm>
#include <cerrno>

#include "client/context.h"
#include "client/ranges.h"

namespace braidfs::client {

namespace {

constexpr uint64_t kPieceMax = 16u << 20;

struct Where {
  uint32_t stripe_index;
  uint64_t offset;  // in the object
  uint64_t left;    // up to the end of the chunk, or of what an object can hold
};

Where where(const FileView& view, uint64_t at) {
  const uint64_t chunk = at / view.chunk_size;
  const auto stripe = static_cast<uint32_t>(chunk % view.stripe_width);
  const uint64_t offset = object_offset_from(view, stripe, at);
  const uint64_t room = limits::kObjectBytesMax - std::min(offset, limits::kObjectBytesMax);
  return {stripe, offset, std::min(view.chunk_size - at % view.chunk_size, room)};
}

}  // namespace

CopyOperation::CopyOperation(uint64_t token, CopyRange range)
    : DurableRangeOperation(token, range.sink), range_(std::move(range)) {}

void CopyOperation::start(Lane& lane, uint64_t token, CopyRange range, bool only_reach) {
  const auto operation = std::make_shared<CopyOperation>(token, std::move(range));
  if (!only_reach) return operation->proceed(lane);
  const FileViewPtr source = operation->range_.source->view();
  const FileViewPtr sink = operation->range_.sink->view();
  const uint64_t reach = operation->reach(lane, *source, *sink);
  operation->finish(lane, static_cast<int64_t>(reach));
}

uint64_t CopyOperation::reach(Lane& lane, const FileView& source, const FileView& sink) const {
  if (!source.inline_bytes.empty()) return 0;                // its bytes are not on any target
  if (source.is_replicated || sink.is_replicated) return 0;  // the kernel copies it
  uint64_t done = 0;
  while (done < range_.length) {
    const Where from = where(source, range_.source_begin + done);
    const Where to = where(sink, range_.sink_begin + done);
    const auto node = lane.node_of(source.first_replica(from.stripe_index).target);
    if (!node || node != lane.node_of(sink.first_replica(to.stripe_index).target)) break;
    const uint64_t length = std::min(from.left, to.left);
    if (length == 0) break;
    done += length;
  }
  return std::min(done, range_.length);
}

int CopyOperation::change(Lane& lane) {
  const FileViewPtr source = range_.source->view();
  // The layout or the cluster map may have changed since Python asked for the reach.
  if (reach(lane, *source, view()) < range_.length) return EIO;
  uint64_t length = 0;
  for (uint64_t done = 0; done < range_.length; done += length) {
    const Where from = where(*source, range_.source_begin + done);
    const Where to = where(view(), range_.sink_begin + done);
    length = std::min({from.left, to.left, range_.length - done, kPieceMax});
    Call* call =
        make_call(lane, Op::kCopy, to.stripe_index, to.offset, static_cast<uint32_t>(length));
    call->source = range_.source;
    call->source_view = source;
    call->source_stripe = from.stripe_index;
    call->source_offset = from.offset;
    submit(lane, call);
  }
  return 0;
}

}  // namespace braidfs::client
