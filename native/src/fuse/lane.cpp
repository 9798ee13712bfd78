#include "fuse/lane.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <string_view>

#include "fuse/protocol.h"

namespace braidfs::fuse {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kNameLengthMax = 255;

// One case for each kind of request; the fields are references into the lane.
template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;  // clang 14 does not find it by itself

// "braidfs." attributes are made up by the metaserver: an inode without any record has them too.
bool asks_for_virtual_xattr(const UpcallRequest& request) {
  const size_t head = sizeof(fuse_in_header) + sizeof(fuse_getxattr_in);
  const auto name = request.bytes.subspan(head);  // parsed: ends with NUL
  return std::string_view(reinterpret_cast<const char*>(name.data()), name.size())
      .starts_with("braidfs.");
}

}  // namespace

Lane::Lane(Channel channel, uint32_t max_write, LaneParts parts)
    : context_{channel},
      parts_(std::move(parts)),
      max_write_(max_write),
      size_(std::max<size_t>(kWriteHeadSize + max_write, FUSE_MIN_READ_BUFFER)),
      pages_(static_cast<std::byte*>(::operator new[](kPage + size_, kAlignment))),
      start_(pages_.get() + kPage - kWriteHeadSize) {}

int Lane::attach(net::EventLoop& loop) {
  loop_ = &loop;
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

void Lane::rest() {
  loop_->remove(parts_.channels.fd(context_.index));
  trickled_ = loop_->now();
  loop_->call_at(loop_->now() + kRoomLook, [this] { look_for_room(); });
}

void Lane::look_for_room() {
  const Room room = parts_.data.room();
  if (room == Room::kPlenty) {
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
  const ssize_t length = ::read(parts_.channels.fd(context_.index), start_, size_);
  if (length > 0) {
    handle({start_, static_cast<size_t>(length)});
    return true;
  }
  const int error = length < 0 ? errno : ENODEV;
  if (error == EINTR || error == ENOENT) return true;  // ENOENT: that request was given up
  if (error != EAGAIN) lost(error);
  return false;
}

// ENODEV: unmounted. Anything else would repeat for ever, so the lane leaves its fd too.
void Lane::lost(int) {
  if (loop_ != nullptr) loop_->remove(parts_.channels.fd(context_.index));
  parts_.unmounted();
}

void Lane::handle(std::span<const std::byte> bytes) {
  const Request request = parse_request(context_.index, bytes, max_write_);
  DataHandler& half = parts_.data;
  std::visit(
      Overloaded{
          [&](const Malformed&) { malformed_.fetch_add(1, std::memory_order_relaxed); },
          [&](const AnsweredRequest& r) {
            parts_.channels.reply_error(context_.index, r.unique, r.error);
          },
          [&](const ReadRequest& r) { half.read(context_, r); },
          [&](const WriteRequest& r) { half.write(context_, r); },
          [&](const FlushRequest& r) {
            if (parts_.closing.holds(r.head.nodeid)) parts_.closing.expect(r);
            half.flush(context_, r);
          },
          [&](const ReleaseRequest& r) {
            if (parts_.closing.holds(r.head.nodeid)) parts_.upcalls.released(r);
            half.release(context_, r);
          },
          [&](const FsyncRequest& r) { half.fsync(context_, r); },
          [&](const ForgetRequest& r) { parts_.upcalls.forget(r); },
          [&](const InterruptRequest& r) { interrupted(r); },
          [&](const UpcallRequest& r) {
            if (!answered(r)) parts_.upcalls.upcall(r);
          },
      },
      request);
}

bool Lane::answered(const UpcallRequest& request) {
  const RequestHead& head = request.head;
  const uint64_t ino = head.nodeid == FUSE_ROOT_ID ? parts_.root_ino : head.nodeid;
  switch (request.opcode) {
    case FUSE_GETATTR: return getattr_answered(head, ino);
    case FUSE_GETXATTR: return getxattr_answered(request, ino);
    case FUSE_LOOKUP: return lookup_answered(request, ino);
    default: return false;
  }
}

// Looks whether lanes are ahead before it looks into the table: what they wrote until then is there.
bool Lane::getattr_answered(const RequestHead& head, uint64_t ino) {
  if (parts_.data.is_ahead(ino)) return false;
  const auto known = parts_.attributes.getattr(ino, head.nodeid, AttributeTable::Clock::now());
  if (!known) return false;
  parts_.channels.reply_body(context_.index, head.unique, std::as_bytes(std::span(&*known, 1)));
  return true;
}

bool Lane::getxattr_answered(const UpcallRequest& request, uint64_t ino) {
  if (asks_for_virtual_xattr(request)) return false;
  if (!parts_.attributes.is_bare(ino, AttributeTable::Clock::now())) return false;
  parts_.channels.reply_error(context_.index, request.head.unique, ENODATA);
  return true;
}

bool Lane::lookup_answered(const UpcallRequest& request, uint64_t parent) {
  const auto name = request.bytes.subspan(sizeof(fuse_in_header));  // parsed: ends with NUL
  const std::string_view text(reinterpret_cast<const char*>(name.data()), name.size() - 1);
  if (text.size() > kNameLengthMax || text == "." || text == "..") return false;
  const auto now = AttributeTable::Clock::now();
  return parts_.dentries.find(parent, text, now, [&](const DentryTable::Found& found) {
    return answer_name(request.head, found, now);
  });
}

// An absent name with a time is an entry of node 0, one without is an error.
bool Lane::answer_name(const RequestHead& head, const DentryTable::Found& found,
                       AttributeTable::Clock::time_point now) {
  fuse_entry_out out{};
  if (found.kind == DentryTable::Found::Kind::kAbsent) {
    if (found.valid.count() == 0) {
      parts_.channels.reply_error(context_.index, head.unique, ENOENT);
      return true;
    }
  } else {
    if (parts_.data.is_ahead(found.ino)) return false;
    const auto known = parts_.attributes.getattr(found.ino, found.ino, now);
    if (!known) return false;
    out.nodeid = found.ino;
    out.attr_valid = known->attr_valid;
    out.attr_valid_nsec = known->attr_valid_nsec;
    out.attr = known->attr;
  }
  out.entry_valid = static_cast<uint64_t>(found.valid.count() / 1'000'000'000);
  out.entry_valid_nsec = static_cast<uint32_t>(found.valid.count() % 1'000'000'000);
  parts_.channels.reply_body(context_.index, head.unique, std::as_bytes(std::span(&out, 1)));
  return true;
}

void Lane::interrupted(const InterruptRequest& request) {
  if (parts_.data.interrupt(context_, request.target)) return;
  if (parts_.upcalls.interrupt(request.target)) return;
  parts_.channels.reply_again(request.unique);
}

}  // namespace braidfs::fuse
