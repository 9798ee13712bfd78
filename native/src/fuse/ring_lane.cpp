// Lane: requests that come by a ring (ring.h).
#include <cerrno>
#include <cstring>

#include "fuse/lane.h"
#include "fuse/protocol.h"

namespace braidfs::fuse {

bool Lane::join_ring() {
  Ring* const ring = parts_.channels.ring(context_.index);
  if (ring == nullptr) return true;
  return loop_->post([this, ring] {
    ring->start(
        *loop_, parts_.channels.fd(context_.index),
        [this](auto head, auto payload) { return came_by_ring(head, payload); },
        [this](int error) { lost(error); });
  });
}

void Lane::hold_ring(bool held) noexcept {
  if (Ring* const ring = parts_.channels.ring(context_.index); ring != nullptr) ring->hold(held);
}

// Of the payload nothing stays in the ring: that memory is the next request's when this one was
// answered.
bool Lane::came_by_ring(std::span<const std::byte> head, std::span<const std::byte> payload) {
  const auto header = load<fuse_in_header>(head);
  const auto landing = header->opcode == FUSE_WRITE ? parts_.data.landing(context_, payload.size())
                                                    : std::span<std::byte>();
  if (!landing.empty()) {
    std::memcpy(landing.data(), payload.data(), payload.size());
    handle(head, landing.first(payload.size()));
  } else if (head.size() + payload.size() <= size_) {
    std::memcpy(start_, head.data(), head.size());
    if (!payload.empty()) std::memcpy(start_ + head.size(), payload.data(), payload.size());
    handle({start_, head.size() + payload.size()});
  } else {
    parts_.channels.reply_error(context_.index, header->unique, EIO);
  }
  if (parts_.data.room() == Room::kPlenty) return true;
  rest();
  return false;
}

}  // namespace braidfs::fuse
