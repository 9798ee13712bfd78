#include "nullfs.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <string>

namespace braidfs::bench {

namespace {

constexpr uint64_t kFirstFile = 2;           // nodeid of f0
constexpr uint64_t kCreated = 1ULL << 40;    // nodeids of created files begin here
constexpr uint64_t kDirectory = 1ULL << 41;  // set in the nodeid of a created directory
constexpr uint64_t kValidSeconds = 3600;
constexpr size_t kZeros = 1u << 20;
constexpr uint32_t kKeepCache = 1u << 1;

}  // namespace

NullFileSystem::NullFileSystem(const NullShape& shape, fuse::FuseSession& session)
    : shape_(shape), session_(session), zeros_(kZeros) {}

void NullFileSystem::done(const fuse::RequestHead& head, int error) noexcept {
  session_.reply_error(head.channel, head.unique, error);
}

template <typename T>
void NullFileSystem::answer(const fuse::RequestHead& head, const T& body) noexcept {
  session_.reply_body(head.channel, head.unique, std::as_bytes(std::span(&body, 1)));
}

void NullFileSystem::read(fuse::LaneContext&, const fuse::ReadRequest& request) {
  const uint64_t left = request.offset < shape_.file_size ? shape_.file_size - request.offset : 0;
  const size_t size = std::min<size_t>({request.size, zeros_.size(), left});
  const iovec piece{zeros_.data(), size};
  session_.reply_data(request.head.channel, request.head.unique, {&piece, 1});
}

void NullFileSystem::write(fuse::LaneContext&, const fuse::WriteRequest& request) {
  session_.reply_write(request.head.channel, request.head.unique,
                       static_cast<uint32_t>(request.payload.size()));
}

void NullFileSystem::device(net::UniqueFd device) {
  device_ = std::move(device);
  backing_ = net::UniqueFd(::open(shape_.backing.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (uint64_t index = 0; index < shape_.file_count; ++index) {
    struct stat found {};
    (void)fstatat(backing_.get(), ("f" + std::to_string(index)).c_str(), &found, 0);
    sizes_.push_back(static_cast<uint64_t>(found.st_size));
  }
}

// Returns the id of the file's backing, or -errno.
int NullFileSystem::begin_passthrough(uint64_t nodeid) const noexcept {
  std::array<char, 32> name{'f'};
  std::to_chars(name.data() + 1, name.data() + name.size() - 1, nodeid - kFirstFile);
  const net::UniqueFd file(openat(backing_.get(), name.data(), O_RDONLY | O_CLOEXEC));
  if (!file) return -errno;
  fuse::BackingMap map{.fd = file.get()};
  const int id = ioctl(device_.get(), fuse::kBackingOpen, &map);
  return id < 0 ? -errno : id;
}

void NullFileSystem::open(const fuse::RequestHead& head) {
  fuse_open_out out{1, kKeepCache, 0};
  if (!device_ || head.nodeid < kFirstFile || head.nodeid >= kCreated) return answer(head, out);
  const int id = begin_passthrough(head.nodeid);
  if (id < 0) return done(head, -id);
  out.open_flags = fuse::kFopenPassthrough;
  // This is the backing_id, which the kernel looks up after the answer.
  out.fh = out.padding = static_cast<uint32_t>(id);
  answer(head, out);
}

void NullFileSystem::flush(fuse::LaneContext&, const fuse::FlushRequest& r) { done(r.head); }
void NullFileSystem::release(fuse::LaneContext&, const fuse::ReleaseRequest& r) {
  const auto id = static_cast<uint32_t>(r.fh);
  if (device_) (void)ioctl(device_.get(), fuse::kBackingClose, &id);
  done(r.head);
}
void NullFileSystem::fsync(fuse::LaneContext&, const fuse::FsyncRequest& r) { done(r.head); }

fuse_attr NullFileSystem::attributes(uint64_t nodeid) const noexcept {
  const bool directory = nodeid == FUSE_ROOT_ID || (nodeid & kDirectory) != 0;
  fuse_attr attr{};
  attr.ino = nodeid;
  attr.mode = directory ? S_IFDIR | 0777 : S_IFREG | 0666;
  attr.nlink = directory ? 2 : 1;
  attr.size = directory || nodeid >= kCreated ? 0 : shape_.file_size;
  if (attr.size > 0 && !sizes_.empty()) attr.size = sizes_[nodeid - kFirstFile];
  attr.blocks = attr.size / 512;
  attr.blksize = 4096;
  return attr;
}

fuse_attr_out NullFileSystem::attributes_out(uint64_t nodeid) const noexcept {
  fuse_attr_out out{};
  out.attr_valid = kValidSeconds;
  out.attr = attributes(nodeid);
  return out;
}

fuse_entry_out NullFileSystem::entry(uint64_t nodeid) const noexcept {
  fuse_entry_out out{};
  out.nodeid = nodeid;
  out.entry_valid = kValidSeconds;
  out.attr_valid = kValidSeconds;
  out.attr = attributes(nodeid);
  return out;
}

std::optional<uint64_t> NullFileSystem::file_named(std::string_view name) const {
  uint64_t index = 0;
  if (name.size() < 2 || name.front() != 'f') return std::nullopt;
  const auto [end, fault] = std::from_chars(name.data() + 1, name.data() + name.size(), index);
  if (fault != std::errc{} || end != name.data() + name.size()) return std::nullopt;
  if (index >= shape_.file_count) return std::nullopt;
  return kFirstFile + index;
}

void NullFileSystem::lookup(const fuse::RequestHead& head, Bytes name) {
  const std::string_view text(reinterpret_cast<const char*>(name.data()), name.size() - 1);
  const auto nodeid = head.nodeid == FUSE_ROOT_ID ? file_named(text) : std::nullopt;
  if (!nodeid) return done(head, ENOENT);
  answer(head, entry(*nodeid));
}

void NullFileSystem::create(const fuse::RequestHead& head) {
  struct {
    fuse_entry_out entry;
    fuse_open_out open;
  } out{entry(kCreated + created_.fetch_add(1, std::memory_order_relaxed)), {}};
  answer(head, out);
}

void NullFileSystem::readdir(const fuse::RequestHead& head, Bytes body) {
  const auto in = fuse::load<fuse_read_in>(body);
  std::vector<std::byte> out;
  const uint64_t end = head.nodeid == FUSE_ROOT_ID ? shape_.file_count : 0;
  for (uint64_t index = in ? in->offset : end; index < end; ++index) {
    const std::string name = "f" + std::to_string(index);
    const size_t size = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET_DIRENTPLUS + name.size());
    if (out.size() + size > in->size) break;
    const fuse_entry_out found = entry(kFirstFile + index);
    fuse_dirent dirent{};
    dirent.ino = kFirstFile + index;
    dirent.off = index + 1;
    dirent.namelen = static_cast<uint32_t>(name.size());
    dirent.type = S_IFREG >> 12;
    out.resize(out.size() + size);
    std::byte* at = out.data() + out.size() - size;
    std::memcpy(at, &found, sizeof(found));
    std::memcpy(at + sizeof(found), &dirent, FUSE_NAME_OFFSET);
    std::memcpy(at + FUSE_NAME_OFFSET_DIRENTPLUS, name.data(), name.size());
  }
  session_.reply_body(head.channel, head.unique, out);
}

void NullFileSystem::statfs(const fuse::RequestHead& head) {
  fuse_statfs_out out{};
  out.st.bsize = out.st.frsize = 4096;
  out.st.blocks = out.st.bfree = out.st.bavail = 1ULL << 32;
  out.st.files = out.st.ffree = 1ULL << 32;
  out.st.namelen = 255;
  answer(head, out);
}

void NullFileSystem::upcall(const fuse::UpcallRequest& request) {
  const fuse::RequestHead& head = request.head;
  const Bytes body = request.bytes.subspan(sizeof(fuse_in_header));
  switch (request.opcode) {
    case FUSE_LOOKUP:
      return lookup(head, body);
    case FUSE_GETATTR:
    case FUSE_SETATTR:
      return answer(head, attributes_out(head.nodeid));
    case FUSE_OPEN:
      return open(head);
    case FUSE_OPENDIR:
      return answer(head, fuse_open_out{1, 0, 0});
    case FUSE_CREATE:
      return create(head);
    case FUSE_MKNOD:
      return answer(head, entry(kCreated + created_.fetch_add(1, std::memory_order_relaxed)));
    case FUSE_MKDIR:
      return answer(head, entry(kDirectory + created_.fetch_add(1, std::memory_order_relaxed)));
    case FUSE_READDIRPLUS:
      return readdir(head, body);
    case FUSE_STATFS:
      return statfs(head);
    case FUSE_UNLINK:
    case FUSE_RMDIR:
    case FUSE_RENAME:
    case FUSE_RENAME2:
    case FUSE_RELEASEDIR:
    case FUSE_FSYNCDIR:
      return done(head);
    default:
      return done(head, ENOSYS);
  }
}

}  // namespace braidfs::bench
