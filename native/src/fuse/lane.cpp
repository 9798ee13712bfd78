#include "fuse/lane.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "fuse/file_time.h"
#include "fuse/protocol.h"

namespace braidfs::fuse {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kNameLengthMax = 255;
constexpr uint32_t kPermissions = 07777;
constexpr uint32_t kRenameNoreplace = 1;  // RENAME_NOREPLACE of rename(2)

// The body of a reply to CREATE.
struct CreateReply {
  fuse_entry_out entry;
  fuse_open_out open;
};
static_assert(sizeof(CreateReply) == sizeof(fuse_entry_out) + sizeof(fuse_open_out));

CreateReply reply_to(const Birth& birth, std::span<const std::byte> record,
                     std::chrono::nanoseconds valid) noexcept {
  CreateReply reply{};
  reply.entry.nodeid = birth.ino;
  set_valid(reply.entry, valid);
  reply.entry.attr_valid = reply.entry.entry_valid;
  reply.entry.attr_valid_nsec = reply.entry.entry_valid_nsec;
  reply.entry.attr = attr_of(record, birth.ino);
  reply.open.fh = birth.fh;
  reply.open.open_flags = FOPEN_KEEP_CACHE;
  if (writes_only(birth.open_flags))
    reply.open.open_flags |= kFopenDirectIo | kFopenParallelDirectWrites;
  return reply;
}

bool is_answered(uint32_t opcode) noexcept {
  return opcode != FUSE_FORGET && opcode != FUSE_BATCH_FORGET && opcode != FUSE_INTERRUPT;
}

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

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Of a request that is nothing but a name.
std::string_view only_name(const UpcallRequest& request) {
  const auto name = request.bytes.subspan(sizeof(fuse_in_header));  // parsed: ends with NUL
  return {reinterpret_cast<const char*>(name.data()), name.size() - 1};
}

// SET_* of fscommon/wire/messages.py.
constexpr uint32_t kSetMode = 1, kSetUid = 2, kSetGid = 4, kSetAtime = 16, kSetMtime = 32;
constexpr uint32_t kSetCtime = 64, kSetKillSuidgid = 128;
constexpr uint32_t kSets = FATTR_MODE | FATTR_UID | FATTR_GID | FATTR_ATIME | FATTR_MTIME;
constexpr uint32_t kSettable = kSets | FATTR_ATIME_NOW | FATTR_MTIME_NOW | FATTR_FH |
                               FATTR_LOCKOWNER | FATTR_CTIME | kFattrKillSuidgid;

Setting setting_of(const fuse_setattr_in& in, uint64_t ino) {
  const int64_t now_ns = file_time_ns();
  const auto time = [&](uint32_t is_now, uint64_t seconds, uint32_t nanoseconds) {
    return (in.valid & is_now) != 0 ? now_ns : file_time_ns(seconds, nanoseconds);
  };
  Setting setting{.ino = ino, .mode = in.mode & kPermissions, .uid = in.uid, .gid = in.gid};
  const auto set = [&](uint32_t asked, uint32_t bit) {
    if ((in.valid & asked) != 0) setting.valid |= bit;
  };
  set(FATTR_MODE, kSetMode);
  set(FATTR_UID, kSetUid);
  set(FATTR_GID, kSetGid);
  set(FATTR_ATIME, kSetAtime);
  set(FATTR_MTIME, kSetMtime);
  set(kFattrKillSuidgid, kSetKillSuidgid);
  setting.valid |= kSetCtime;
  setting.atime_ns = time(FATTR_ATIME_NOW, in.atime, in.atimensec);
  setting.mtime_ns = time(FATTR_MTIME_NOW, in.mtime, in.mtimensec);
  setting.ctime_ns = (in.valid & FATTR_CTIME) != 0 ? file_time_ns(in.ctime, in.ctimensec) : now_ns;
  return setting;
}

// The record as this client sees it: what was written is in it.
record::Record with_written(const Setting& setting, const DataHandler::Ahead& ahead) {
  record::Record record = setting.record;
  if (ahead.size > record::field<uint64_t>(record, record::kSize)) {
    record::set_size(record, ahead.size);
  }
  const bool sets_mtime = (setting.valid & kSetMtime) != 0;
  if (!sets_mtime && ahead.mtime_ns != 0) {
    record::set_field(record, record::kMtime, ahead.mtime_ns);
  }
  return record;
}

void set_in_record(const Setting& setting, record::Record& record) {
  const auto set = [&](uint32_t bit, size_t at, auto value) {
    if ((setting.valid & bit) != 0) record::set_field(record, at, value);
  };
  const uint32_t type = record::field<uint32_t>(record, record::kMode) & S_IFMT;
  set(kSetMode, record::kMode, type | setting.mode);
  set(kSetUid, record::kUid, setting.uid);
  set(kSetGid, record::kGid, setting.gid);
  set(kSetAtime, record::kAtime, setting.atime_ns);
  set(kSetMtime, record::kMtime, setting.mtime_ns);
  set(kSetCtime, record::kCtime, setting.ctime_ns);
  record::set_field(record, record::kChangeVersion,
                    record::field<uint64_t>(record, record::kChangeVersion) + 1);
}

}  // namespace

Lane::Lane(Channel channel, uint32_t max_write, LaneParts parts)
    : context_{channel},
      parts_(std::move(parts)),
      max_write_(max_write),
      size_(std::max<size_t>(kWriteHeadSize + max_write, FUSE_MIN_READ_BUFFER)),
      pages_(static_cast<std::byte*>(::operator new[](kPage + size_, kAlignment))),
      start_(pages_.get() + kPage - kWriteHeadSize),
      interruptions_(parts_.channels, parts_.data, parts_.upcalls) {}

int Lane::attach(net::EventLoop& loop) {
  loop_ = &loop;
  interruptions_.attach(loop);
  if (!join_ring()) return -EAGAIN;
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
  hold_ring(paused);
  if (paused) return loop_->remove(parts_.channels.fd(context_.index));
  if (const int error = watch(); error != 0) lost(-error);
}

void Lane::rest() {
  if (std::exchange(resting_, true)) return;
  hold_ring(true);
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
    hold_ring(false);
    if (const int error = watch(); error != 0) lost(-error);
    return;
  }
  if (room == Room::kLittle && loop_->now() - trickled_ >= kTrickle) {
    trickled_ = loop_->now();
    Ring* const ring = parts_.channels.ring(context_.index);
    if (ring == nullptr || !ring->take_one()) read_one();
  }
  loop_->call_at(loop_->now() + kRoomLook, [this] { look_for_room(); });
}

bool Lane::read_one() {
  const size_t behind = size_ - kWriteHeadSize;
  const std::span<std::byte> landing = parts_.data.landing(context_, behind);
  const std::array<iovec, 2> places{
      iovec{start_, kWriteHeadSize},
      iovec{landing.empty() ? start_ + kWriteHeadSize : landing.data(), behind}};
  const ssize_t length = ::readv(parts_.channels.fd(context_.index), places.data(), places.size());
  if (length > 0) {
    arrived(static_cast<size_t>(length), landing);
    return true;
  }
  const int error = length < 0 ? errno : ENODEV;
  if (error == EINTR || error == ENOENT) return true;  // ENOENT: that request was given up
  if (error != EAGAIN) lost(error);
  return false;
}

// Only the payload of a WRITE may lie apart from its head.
void Lane::arrived(size_t length, std::span<std::byte> landing) {
  if (landing.empty() || length <= kWriteHeadSize) return handle({start_, length});
  const auto head = load<fuse_in_header>(std::span<const std::byte>(start_, kWriteHeadSize));
  const auto behind = std::span<const std::byte>(landing).first(length - kWriteHeadSize);
  if (head->opcode == FUSE_WRITE) return handle({start_, kWriteHeadSize}, behind);
  std::memcpy(start_ + kWriteHeadSize, behind.data(), behind.size());
  handle({start_, length});
}

// ENODEV: unmounted. Anything else would repeat for ever, so the lane leaves its fd too.
void Lane::lost(int) {
  if (loop_ != nullptr) loop_->remove(parts_.channels.fd(context_.index));
  parts_.unmounted();
}

void Lane::handle(std::span<const std::byte> bytes, std::span<const std::byte> payload) {
  const auto head = load<fuse_in_header>(bytes);
  if (head && is_answered(head->opcode)) asked_.fetch_add(1, std::memory_order_release);
  const Request request = parse_request(context_.index, bytes, max_write_, payload);
  DataHandler& half = parts_.data;
  std::visit(Overloaded{
                 [&](const Malformed&) { malformed_.fetch_add(1, std::memory_order_relaxed); },
                 [&](const AnsweredRequest& r) {
                   parts_.channels.reply_error(context_.index, r.unique, r.error);
                 },
                 [&](const ReadRequest& r) {
                   if (!parts_.sealed) return half.read(context_, r);
                   if (!read_unopened(r))
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
  const uint64_t ino = head.nodeid == FUSE_ROOT_ID ? parts_.root_ino : head.nodeid;
  switch (request.opcode) {
    case FUSE_GETATTR:
      return getattr_answered(head, ino);
    case FUSE_SETATTR:
      return setattr_answered(request, ino);
    case FUSE_GETXATTR:
      return getxattr_answered(request, ino);
    case FUSE_LOOKUP:
      return lookup_answered(request, ino);
    case FUSE_READDIRPLUS:
      return readdir_answered(request, ino);
    case FUSE_OPEN:
      return open_answered(request, ino);
    case FUSE_CREATE:
      return create_answered(request, ino);
    case FUSE_UNLINK:
      return unlink_answered(request, ino);
    case FUSE_RENAME:
    case FUSE_RENAME2:
      return rename_answered(request, ino);
    default:
      return false;
  }
}

// Looks whether lanes are ahead before it looks into the table: what they wrote until then is
// there.
bool Lane::getattr_answered(const RequestHead& head, uint64_t ino) {
  if (parts_.data.is_ahead(ino)) return false;
  const auto known = this->known().find(ino, head.nodeid, AttributeTable::Clock::now());
  if (!known) return false;
  struct {
    fuse_out_header header;
    fuse_attr_out body;
  } const reply{{sizeof(reply), 0, head.unique}, *known};
  const auto bytes = std::as_bytes(std::span(&reply, 1));
  if (!parts_.cut_reads.keeps(head.nodeid, known->attr.size, context_.index, bytes)) {
    parts_.channels.send(context_.index, bytes);
  }
  return true;
}

bool Lane::getxattr_answered(const UpcallRequest& request, uint64_t ino) {
  if (asks_for_virtual_xattr(request)) return false;
  const auto now = AttributeTable::Clock::now();
  const auto is_bare = [&] { return parts_.attributes.is_bare(ino, now); };
  if (!is_bare() && !(known().learn(ino, now) && is_bare())) return false;
  parts_.channels.reply_error(context_.index, request.head.unique, ENODATA);
  return true;
}

bool Lane::lookup_answered(const UpcallRequest& request, uint64_t parent) {
  const std::string_view text = only_name(request);
  if (text.size() > kNameLengthMax || text == "." || text == "..") return false;
  const auto now = AttributeTable::Clock::now();
  return parts_.dentries.find(parent, text, now, [&](const DentryTable::Found& found) {
    return answer_name(request.head, found, now);
  });
}

bool Lane::readdir_answered(const UpcallRequest& request, uint64_t directory) {
  const auto in = load<fuse_read_in>(request.bytes.subspan(sizeof(fuse_in_header)));
  return in &&
         parts_.lister.read(directory, in->offset, in->size, [&](std::span<const std::byte> body) {
           parts_.channels.reply_body(context_.index, request.head.unique, body);
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
    const auto known = this->known().find(found.ino, found.ino, now);
    if (!known) return false;
    out.nodeid = found.ino;
    out.attr_valid = known->attr_valid;
    out.attr_valid_nsec = known->attr_valid_nsec;
    out.attr = known->attr;
    out.attr.size = parts_.cut_reads.clip(found.ino, out.attr.size);
    if (out.attr.size != known->attr.size) out.attr_valid = out.attr_valid_nsec = 0;
  }
  set_valid(out, found.valid);
  parts_.attributes.keep_name(out);
  parts_.channels.reply_body(context_.index, head.unique, std::as_bytes(std::span(&out, 1)));
  return true;
}

// A new file in a directory that is delegated; everything else is Python's.
bool Lane::create_answered(const UpcallRequest& request, uint64_t parent) {
  constexpr size_t kNameAt = sizeof(fuse_in_header) + sizeof(fuse_create_in);
  const auto in = load<fuse_create_in>(request.bytes.subspan(sizeof(fuse_in_header)));
  if (!in || !S_ISREG(in->mode) || (in->flags & O_DIRECT) != 0) return false;
  const auto bytes = request.bytes.subspan(kNameAt);  // parsed: ends with NUL, others may follow
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()));
  if (text.empty() || text.size() > kNameLengthMax || text == "." || text == "..") return false;
  if (parts_.births.refuses(request.head.uid, request.head.gid)) return false;
  return parts_.dentries.create(parent, text, AttributeTable::Clock::now(), [&](auto valid) {
    return give_birth(request, *in, parent, text, valid);
  });
}

uint64_t Lane::give_birth(const UpcallRequest& request, const fuse_create_in& in, uint64_t parent,
                          std::string_view name, std::chrono::nanoseconds valid) {
  const auto now = AttributeTable::Clock::now();
  const int64_t time_ns = file_time_ns();
  auto slot = parts_.births.take_slot(parent);
  if (!slot || !parts_.attributes.touch_directory(parent, time_ns, now)) return 0;
  const RequestHead& head = request.head;
  Birth birth{.ino = slot->ino,
              .parent = parent,
              .fh = parts_.births.next_handle(),
              .time_ns = time_ns,
              .mode = in.mode & kPermissions & ~in.umask,
              .uid = head.uid,
              .gid = head.gid,
              .open_flags = in.flags,
              .name = std::string(name),
              .layout = std::move(slot->layout)};
  const auto record = new_file_record(birth);
  if (!parts_.data.born(record, bytes_of(birth.layout), bytes_of(slot->capability),
                        {birth.fh, in.flags, slot->size_limit})) {
    return 0;
  }
  parts_.attributes.put(record, std::chrono::milliseconds(0), now, true);
  const CreateReply reply = reply_to(birth, record, valid);
  const uint64_t ino = birth.ino;
  push(std::move(birth));
  parts_.channels.reply_body(context_.index, head.unique, std::as_bytes(std::span(&reply, 1)));
  return ino;
}

// Whether there is room for one more change that the metaserver has not answered, and make() made
// it.
template <typename Make>
bool Lane::with_room(Make make) {
  if (!parts_.births.take_room()) return false;
  if (make()) return true;
  parts_.births.changes_told(1);  // the room
  return false;
}

// Of a file that only this client may write, or that nobody has open and whose name is in a
// directory that is delegated; everything else is Python's.
bool Lane::setattr_answered(const UpcallRequest& request, uint64_t ino) {
  const auto in = load<fuse_setattr_in>(request.bytes.subspan(sizeof(fuse_in_header)));
  if (in && cuts_alone(in->valid)) return cut_answered(request.head, ino, *in);
  if (!in || (in->valid & ~kSettable) != 0 || (in->valid & kSets) == 0) return false;
  if (!parts_.dentries.any_delegated()) return false;  // Python looks for changes only while one is
  const Setting setting = setting_of(*in, ino);
  const bool sets_mtime = (setting.valid & kSetMtime) != 0;
  const auto now = AttributeTable::Clock::now();
  const auto of_a_writer = [&](const record::Record& record) {
    const auto ahead = parts_.data.before_setting(ino, sets_mtime);
    if (ahead && (setting.valid & kSetMode) != 0) {
      parts_.data.set_ids_put(ino, setting.mode, record::field<uint32_t>(record, record::kGid));
    }
    return ahead;
  };
  const auto of_nobody = [](const record::Record& record) -> std::optional<DataHandler::Ahead> {
    const bool is_open =
        (record::field<uint32_t>(record, record::kLeaseFlags) & record::kOpenElsewhere) != 0;
    if (is_open || record::field<uint32_t>(record, record::kNlink) != 1) return std::nullopt;
    return DataHandler::Ahead{.size = record::field<uint64_t>(record, record::kSize)};
  };
  return take_setting(request, setting, now, of_a_writer) || parts_.dentries.at_home(ino, now, [&] {
    return let_go(ino, now) && take_setting(request, setting, now, of_nobody);
  });
}

// ahead(record): what lanes know that the record does not; nothing when it may not be set here.
template <typename Ahead>
bool Lane::take_setting(const UpcallRequest& request, Setting setting,
                        AttributeTable::Clock::time_point now, Ahead ahead) {
  fuse_attr attr{};
  const auto set = [&](record::Record& record) {
    return may_be_set(record, setting) && with_room([&] {
             const auto known = ahead(record);
             if (!known) return false;
             if ((setting.valid & kSetMtime) != 0) setting.written_ns = known->mtime_ns;
             setting.ctime_ns =
                 std::max(setting.ctime_ns, record::field<int64_t>(record, record::kCtime));
             set_in_record(setting, record);
             setting.record = record;
             attr = attr_of(with_written(setting, *known), request.head.nodeid);
             push(setting);
             return true;
           });
  };
  auto out = parts_.attributes.set(setting.ino, request.head.nodeid, now, set);
  if (!out) return false;
  out->attr = attr;
  parts_.channels.reply_body(context_.index, request.head.unique,
                             std::as_bytes(std::span(&*out, 1)));
  return true;
}

// Set-id bits, which a change of owner takes away, and owners that may have quotas are Python's.
bool Lane::may_be_set(const record::Record& record, const Setting& setting) const {
  if ((setting.valid & (kSetUid | kSetGid | kSetKillSuidgid)) == 0) return true;
  const auto uid = record::field<uint32_t>(record, record::kUid);
  const auto gid = record::field<uint32_t>(record, record::kGid);
  if ((record::field<uint32_t>(record, record::kMode) & (S_ISUID | S_ISGID)) != 0) return false;
  return parts_.dentries.owners_known() && !parts_.births.refuses(uid, gid) &&
         !parts_.births.refuses(setting.uid, setting.gid);
}

// A name in a directory that is delegated, of a file that nobody has open; all else is Python's.
bool Lane::unlink_answered(const UpcallRequest& request, uint64_t parent) {
  const std::string_view text = only_name(request);
  const auto now = AttributeTable::Clock::now();
  return parts_.dentries.remove(parent, text, now, [&](uint64_t ino) {
    if (!take_name(parent, text, ino)) return false;
    parts_.channels.reply_error(context_.index, request.head.unique, 0);
    return true;
  });
}

bool Lane::take_name(uint64_t parent, std::string_view name, uint64_t ino) {
  const auto now = AttributeTable::Clock::now();
  const int64_t time_ns = file_time_ns();
  return let_go(ino, now) && with_room([&] {
           return parts_.attributes.remove(
               parent, ino, time_ns, now, [&](const record::Record& record) {
                 push(Removal{ino, parent, time_ns, std::string(name), record});
                 return true;
               });
         });
}

// False: something of it is here that Python is to see to first.
bool Lane::let_go(uint64_t ino, AttributeTable::Clock::time_point now) {
  known().learn(ino, now);
  return parts_.children.drop_unless(ino, [&](bool) { return parts_.data.is_busy(ino); });
}

// A name in a directory that is delegated becomes another one there, of what is no directory; what
// has that is open nowhere. All else is Python's.
bool Lane::rename_answered(const UpcallRequest& request, uint64_t parent) {
  const auto body = request.bytes.subspan(sizeof(fuse_in_header));
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
  const auto bytes = body.subspan(names_at);  // parsed: two names, each ends with NUL
  const std::string_view name(reinterpret_cast<const char*>(bytes.data()));
  const std::string_view new_name(reinterpret_cast<const char*>(bytes.data()) + name.size() + 1);
  if (new_name.empty() || new_name.size() > kNameLengthMax) return false;
  const auto now = AttributeTable::Clock::now();
  return parts_.dentries.rename(parent, name, new_name, now, [&](uint64_t ino, uint64_t replaced) {
    if (replaced != 0 && !replaces) return false;
    if (!take_move({.ino = ino,
                    .replaced = replaced,
                    .parent = parent,
                    .time_ns = file_time_ns(),
                    .name = std::string(name),
                    .new_name = std::string(new_name)})) {
      return false;
    }
    parts_.channels.reply_error(context_.index, request.head.unique, 0);
    return true;
  });
}

bool Lane::take_move(Move move) {
  const auto now = AttributeTable::Clock::now();
  known().learn(move.ino, now);
  if (parts_.data.is_ahead(move.ino)) return false;
  // What a directory's grant says of it is of before; with open files Python is to see to that.
  const auto is_open_by_grant = [&](bool is_known) {
    return is_known && parts_.data.is_busy(move.ino);
  };
  if (!parts_.children.drop_unless(move.ino, is_open_by_grant)) return false;
  if (move.replaced != 0 && !let_go(move.replaced, now)) return false;
  return with_room([&] {
    const auto take = [&](const record::Record& moved, const record::Record& replaced) {
      move.record = moved;
      move.replaced_record = replaced;
      push(std::move(move));
      return true;
    };
    return parts_.attributes.rename(move.parent, move.ino, move.replaced, move.time_ns, now, take);
  });
}

void Lane::push(Change change) {
  if (parts_.births.push(std::move(change))) parts_.births_wait();
}

}  // namespace braidfs::fuse
