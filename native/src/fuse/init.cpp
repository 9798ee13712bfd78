#include "fuse/init.h"

#include <algorithm>
#include <cerrno>

namespace braidfs::fuse {

namespace {

constexpr uint32_t kMinorSpoken = 40;
constexpr uint32_t kMinorOldest = 31;  // Linux 5.4; the flags below decide the rest
constexpr uint32_t kUpcallMinor = 13;
constexpr uint32_t kPageSize = 4096;

// Without these BraidFS would be wrong or useless, not merely slower.
constexpr uint64_t kNeeded = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_DONT_MASK |
                             FUSE_DO_READDIRPLUS | FUSE_POSIX_ACL | FUSE_MAX_PAGES |
                             FUSE_EXPLICIT_INVAL_DATA;

constexpr uint64_t kLocks = FUSE_POSIX_LOCKS | FUSE_FLOCK_LOCKS;

// Flags that are accepted when the kernel offers them. Left out on purpose: AUTO_INVAL_DATA (a
// changed mtime would drop pages), WRITEBACK_CACHE (the kernel would own size and mtime),
// ATOMIC_O_TRUNC (the truncation comes as a SETATTR), READDIRPLUS_AUTO (pyfuse3 has no handler for
// plain READDIR), ALLOW_IDMAP unless it is wanted (only requests that make inodes then say who sent
// them), and what changes a request's layout: SETXATTR_EXT, SECURITY_CTX, CREATE_SUPP_GROUP.
constexpr uint64_t kWanted = kNeeded | FUSE_ASYNC_DIO | FUSE_PARALLEL_DIROPS |
                             FUSE_HANDLE_KILLPRIV_V2 | FUSE_CACHE_SYMLINKS | FUSE_EXPORT_SUPPORT |
                             kLocks | FUSE_INIT_EXT | kDirectIoAllowMmap | kHasResend |
                             kHasExpireOnly;

// What libfuse is told that the kernel can do. MAX_PAGES is left out: with it each of pyfuse3's
// thousands of tasks would allocate a buffer of 1 MiB instead of 132 KiB.
constexpr uint64_t kShown = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_DONT_MASK |
                            FUSE_DO_READDIRPLUS | FUSE_POSIX_ACL | FUSE_PARALLEL_DIROPS |
                            FUSE_ASYNC_DIO | FUSE_CACHE_SYMLINKS | FUSE_EXPLICIT_INVAL_DATA;

constexpr size_t kInitInOld = 16;  // major, minor, max_readahead, flags

fuse_init_in load_init(std::span<const std::byte> body) noexcept {
  fuse_init_in in{};
  std::memcpy(&in, body.data(), std::min(body.size(), sizeof(in)));
  if ((in.flags & FUSE_INIT_EXT) == 0) in.flags2 = 0;
  return in;
}

fuse_init_out make_reply(const fuse_init_in& in, uint64_t flags,
                         const InitSettings& settings) noexcept {
  fuse_init_out out{};
  out.major = FUSE_KERNEL_VERSION;
  out.minor = std::min(in.minor, kMinorSpoken);
  out.max_readahead = 64u << 20;  // the kernel takes the smaller of this and the device's
  out.flags = static_cast<uint32_t>(flags);
  out.flags2 = static_cast<uint32_t>(flags >> 32);
  out.max_background = settings.max_background;
  // From this number of requests on, the kernel gives up what it reads ahead, after it has made the
  // pages for it. So as many requests may wait as are being served.
  out.congestion_threshold = static_cast<uint16_t>(settings.max_background * 2);
  out.max_write = settings.max_write;
  out.time_gran = 1;
  if ((flags & kHasPassthrough) != 0)
    out.unused[0] = 1;  // max_stack_depth: no files of stacked file systems
  out.max_pages = static_cast<uint16_t>(settings.max_write / kPageSize);
  return out;
}

}  // namespace

Negotiated negotiate(std::span<const std::byte> body, const InitSettings& settings) noexcept {
  Negotiated result;
  if (body.size() < kInitInOld) {
    result.error = EINVAL;
    return result;
  }
  const fuse_init_in in = load_init(body);
  const uint64_t offered = in.flags | static_cast<uint64_t>(in.flags2) << 32;
  if (in.major != FUSE_KERNEL_VERSION || in.minor < kMinorOldest ||
      (offered & kNeeded) != kNeeded) {
    result.error = EPROTO;
    return result;
  }
  if (settings.idmap && (offered & kAllowIdmap) == 0) {
    result.error = EOPNOTSUPP;
    return result;
  }
  uint64_t wanted = kWanted;
  if (settings.passthrough) wanted |= kHasPassthrough;
  if (settings.idmap) wanted |= kAllowIdmap;
  if (settings.sealed) wanted &= ~kLocks;
  if (settings.checks_elsewhere)
    wanted &= ~uint64_t{FUSE_POSIX_ACL};  // it means default_permissions
  result.flags = offered & wanted;
  result.reply = make_reply(in, result.flags, settings);
  return result;
}

std::vector<std::byte> upcall_init(const Negotiated& negotiated) {
  fuse_in_header header{};
  header.len = sizeof(header) + kInitInOld;
  header.opcode = FUSE_INIT;
  header.unique = kUpcallInitUnique;
  fuse_init_in in{};
  in.major = FUSE_KERNEL_VERSION;
  in.minor = kUpcallMinor;
  in.max_readahead = negotiated.reply.max_readahead;
  in.flags = static_cast<uint32_t>(negotiated.flags & kShown);
  std::vector<std::byte> bytes(header.len);
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), &in, kInitInOld);
  return bytes;
}

}  // namespace braidfs::fuse
