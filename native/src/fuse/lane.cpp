#include "fuse/lane.h"

#include <sys/epoll.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "fuse/protocol.h"

namespace braidfs::fuse {

namespace {

constexpr size_t kPage = 4096;
constexpr uint32_t kRenameNoreplace = 1;  // RENAME_NOREPLACE of rename(2)

bool is_answered(uint32_t opcode) noexcept {
  return opcode != FUSE_FORGET && opcode != FUSE_BATCH_FORGET && opcode != FUSE_INTERRUPT;
}

// One case for each kind of request; the fields are references into the lane.
template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;  // clang 14 does not deduce it

// parse_request() has checked that names end with NUL.
std::string_view first_name(std::span<const std::byte> names) noexcept {
  return {reinterpret_cast<const char*>(names.data())};
}

bool is_plain(std::string_view name) noexcept {
  return !name.empty() && name.size() <= NAME_MAX && name != "." && name != "..";
}

}  // namespace

Lane::Lane(Channel channel, uint32_t max_write, LaneParts parts)
    : context_{channel},
      parts_(std::move(parts)),
      max_write_(max_write),
      size_(std::max<size_t>(kWriteHeadSize + max_write, FUSE_MIN_READ_BUFFER)),
      pages_(static_cast<std::byte*>(::operator new[](kPage + size_, kAlignment))),
      start_(pages_.get() + kPage - kWriteHeadSize),
      interruptions_(parts_.channels, parts_.data, parts_.upcalls) {
  // If the process is killed while the kernel copies a request into a page that it has to make
  // first, the kernel gives the request up with EIO, and no next process can answer it.
  std::memset(pages_.get(), 0, 2 * kPage);
}

int Lane::attach(net::EventLoop& loop) {
  loop_ = &loop;
  interruptions_.attach(loop);
  return watch();
}

int Lane::watch() {
  // Exclusive: one request wakes one lane, not all of them.
  return loop_->add(parts_.channels.fd(context_.index), EPOLLIN | EPOLLEXCLUSIVE,
                    [this](uint32_t) { readable(); });
}

void Lane::readable() {
  for (int count = 0; count < budget_; ++count) {
    if (parts_.data.room() != Room::kPlenty && loop_ != nullptr) return rest();
    if (!read_one()) {
      budget_ = 1;
      return;
    }
  }
  budget_ = std::min(budget_ * 2, kRequestsPerTurn);
}

bool Lane::pause(bool paused, std::function<void()> done) {
  return loop_->post([this, paused, done = std::move(done)] {
    turn(paused);
    done();
  });
}

void Lane::turn(bool paused) {
  if (std::exchange(paused_, paused) == paused || resting_) return;
  if (paused) return loop_->remove(parts_.channels.fd(context_.index));
  if (const int error = watch(); error != 0) lost(-error);
}

void Lane::rest() {
  if (std::exchange(resting_, true)) return;
  loop_->remove(parts_.channels.fd(context_.index));
  trickled_ = loop_->now();
  loop_->call_at(loop_->now() + kRoomLook, [this] { look_for_room(); });
}

void Lane::look_for_room() {
  if (paused_) {
    loop_->call_at(loop_->now() + kRoomLook, [this] { look_for_room(); });
    return;
  }
  const Room room = parts_.data.room();
  if (room == Room::kPlenty) {
    resting_ = false;
    if (const int error = watch(); error != 0) lost(-error);
    return;
  }
  if (room == Room::kLittle && loop_->now() - trickled_ >= kTrickle) {
    trickled_ = loop_->now();
    read_one();
  }
  loop_->call_at(loop_->now() + kRoomLook, [this] { look_for_room(); });
}

bool Lane::read_one() {
  const size_t behind = size_ - kWriteHeadSize;
  const std::span<std::byte> receive_buffer = parts_.data.receive_buffer(context_, behind);
  const std::array<iovec, 2> places{
      iovec{start_, kWriteHeadSize},
      iovec{receive_buffer.empty() ? start_ + kWriteHeadSize : receive_buffer.data(), behind}};
  const ssize_t length = ::readv(parts_.channels.fd(context_.index), places.data(), places.size());
  if (length > 0) {
    arrived(static_cast<size_t>(length), receive_buffer);
    return true;
  }
  const int error = length < 0 ? errno : ENODEV;
  if (error == EINTR || error == ENOENT) return true;  // ENOENT: the request was given up
  if (error != EAGAIN) lost(error);
  return false;
}

// Only the payload of a WRITE may lie separately from its head.
void Lane::arrived(size_t length, std::span<std::byte> receive_buffer) {
  if (receive_buffer.empty() || length <= kWriteHeadSize) return handle({start_, length});
  const auto head = load<fuse_in_header>(std::span<const std::byte>(start_, kWriteHeadSize));
  const auto behind = std::span<const std::byte>(receive_buffer).first(length - kWriteHeadSize);
  if (head->opcode == FUSE_WRITE) return handle({start_, kWriteHeadSize}, behind);
  std::memcpy(start_ + kWriteHeadSize, behind.data(), behind.size());
  handle({start_, length});
}

// ENODEV means unmounted. Any other error would repeat for ever, so the lane closes then, too.
void Lane::lost(int) {
  if (loop_ != nullptr) loop_->remove(parts_.channels.fd(context_.index));
  parts_.unmounted();
}

void Lane::handle(std::span<const std::byte> bytes, std::span<const std::byte> payload) {
  const auto head = load<fuse_in_header>(bytes);
  if (head && is_answered(head->opcode)) requests_.fetch_add(1, std::memory_order_release);
  const Request request = parse_request(context_.index, bytes, max_write_, payload);
  DataHandler& half = parts_.data;
  std::visit(Overloaded{
                 [&](const Malformed&) { malformed_.fetch_add(1, std::memory_order_relaxed); },
                 [&](const AnsweredRequest& r) {
                   parts_.channels.reply_error(context_.index, r.unique, r.error);
                 },
                 [&](const ReadRequest& r) {
                   if (!parts_.sealed) return half.read(context_, r);
                   if (!parts_.names.read_unopened(r))
                     parts_.upcalls.upcall({r.head, FUSE_READ, 0, bytes, true});
                 },
                 [&](const WriteRequest& r) { half.write(context_, r); },
                 [&](const FlushRequest& r) {
                   if (refused_when_sealed(r.head, FUSE_FLUSH)) return;
                   if (parts_.closing.holds(r.head.nodeid)) parts_.closing.expect(r);
                   half.flush(context_, r);
                 },
                 [&](const ReleaseRequest& r) {
                   if (parts_.closing.holds(r.head.nodeid)) parts_.upcalls.released(r);
                   half.release(context_, r);
                 },
                 [&](const FsyncRequest& r) { half.fsync(context_, r); },
                 [&](const ForgetRequest& r) { parts_.upcalls.forget(r); },
                 [&](const InterruptRequest& r) { interruptions_.put(r.unique, r.target); },
                 [&](const UpcallRequest& r) {
                   if (!refused_when_sealed(r.head, r.opcode) && !answered(r))
                     parts_.upcalls.upcall(r);
                 },
             },
             request);
}

bool Lane::answered(const UpcallRequest& request) {
  const RequestHead& head = request.head;
  const auto body = request.bytes.subspan(sizeof(fuse_in_header));
  NameHandler& names = parts_.names;
  switch (request.opcode) {
    case FUSE_GETATTR:
      return names.getattr(head);
    case FUSE_SETATTR: {
      const auto in = load<fuse_setattr_in>(body);
      return in && names.setattr(head, *in);
    }
    case FUSE_GETXATTR:
      return names.getxattr(head, first_name(body.subspan(sizeof(fuse_getxattr_in))));
    case FUSE_LOOKUP: {
      const std::string_view name = first_name(body);
      return is_plain(name) && names.lookup(head, name);
    }
    case FUSE_READDIRPLUS: {
      const auto in = load<fuse_read_in>(body);
      return in && names.readdirplus(head, in->offset, in->size);
    }
    case FUSE_OPEN:
      return open_answered(request, body);
    case FUSE_CREATE:
      return create_answered(request, body);
    case FUSE_UNLINK: {
      const std::string_view name = first_name(body);
      return is_plain(name) && names.unlink(head, name);
    }
    case FUSE_RENAME:
    case FUSE_RENAME2:
      return rename_answered(request, body);
    default:
      return false;
  }
}

bool Lane::open_answered(const UpcallRequest& request, std::span<const std::byte> body) {
  const auto in = load<fuse_open_in>(body);
  return in && !parts_.closing.holds(request.head.nodeid) &&
         parts_.names.open(request.head, in->flags);
}

bool Lane::create_answered(const UpcallRequest& request, std::span<const std::byte> body) {
  const auto in = load<fuse_create_in>(body);
  if (!in) return false;
  const std::string_view name = first_name(body.subspan(sizeof(*in)));
  return is_plain(name) && parts_.names.create(request.head, *in, name);
}

// A rename within one directory, with no flag but RENAME_NOREPLACE.
bool Lane::rename_answered(const UpcallRequest& request, std::span<const std::byte> body) {
  const auto in = load<fuse_rename_in>(body);
  size_t names_at = sizeof(fuse_rename_in);
  bool replaces = true;
  if (request.opcode == FUSE_RENAME2) {
    const auto more = load<fuse_rename2_in>(body);
    if (!more || (more->flags & ~kRenameNoreplace) != 0) return false;
    replaces = more->flags == 0;
    names_at = sizeof(fuse_rename2_in);
  }
  if (!in || in->newdir != request.head.nodeid) return false;
  const std::string_view name = first_name(body.subspan(names_at));
  const std::string_view new_name = first_name(body.subspan(names_at + name.size() + 1));
  return is_plain(new_name) && parts_.names.rename(request.head, {name, new_name, replaces});
}

}  // namespace braidfs::fuse
