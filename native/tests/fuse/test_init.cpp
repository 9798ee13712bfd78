#include "fuse/init.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "fuse/mount.h"

#include <sys/mount.h>

namespace braidfs::fuse {
namespace {

constexpr uint64_t kEverything = ~0ULL;

fuse_init_in offer(uint64_t flags) {
  fuse_init_in in{};
  in.major = 7;
  in.minor = 45;
  in.max_readahead = 131072;
  in.flags = static_cast<uint32_t>(flags);
  in.flags2 = static_cast<uint32_t>(flags >> 32);
  return in;
}

Negotiated agree(const fuse_init_in& in, size_t size = sizeof(fuse_init_in)) {
  return negotiate(std::as_bytes(std::span(&in, 1)).first(size), {});
}

TEST(Init, TakesWhatIsNeededAndNothingThatChangesLayouts) {
  const Negotiated agreed = agree(offer(kEverything));
  ASSERT_EQ(agreed.error, 0);
  for (const uint64_t flag :
       {uint64_t{FUSE_ASYNC_READ}, uint64_t{FUSE_ASYNC_DIO}, uint64_t{FUSE_PARALLEL_DIROPS},
        uint64_t{FUSE_BIG_WRITES}, uint64_t{FUSE_DO_READDIRPLUS}, uint64_t{FUSE_POSIX_ACL},
        uint64_t{FUSE_DONT_MASK}, uint64_t{FUSE_HANDLE_KILLPRIV_V2}, uint64_t{FUSE_MAX_PAGES},
        uint64_t{FUSE_EXPLICIT_INVAL_DATA}, uint64_t{FUSE_CACHE_SYMLINKS}, kDirectIoAllowMmap,
        uint64_t{FUSE_EXPORT_SUPPORT}, kHasResend}) {
    EXPECT_TRUE(agreed.flags & flag) << std::hex << flag;
  }
  for (const uint64_t flag :
       {uint64_t{FUSE_AUTO_INVAL_DATA}, uint64_t{FUSE_ATOMIC_O_TRUNC},
        uint64_t{FUSE_WRITEBACK_CACHE}, uint64_t{FUSE_HANDLE_KILLPRIV}, uint64_t{FUSE_SETXATTR_EXT},
        uint64_t{FUSE_SECURITY_CTX}, uint64_t{1} << 34, uint64_t{FUSE_READDIRPLUS_AUTO}}) {
    EXPECT_FALSE(agreed.flags & flag) << std::hex << flag;
  }
}

TEST(Init, LocksAreTheKernelsOnASealedTree) {
  constexpr uint64_t kLocks = FUSE_POSIX_LOCKS | FUSE_FLOCK_LOCKS;
  const fuse_init_in in = offer(kEverything);
  EXPECT_EQ(agree(in).flags & kLocks, kLocks);
  const Negotiated sealed = negotiate(std::as_bytes(std::span(&in, 1)), {.sealed = true});
  EXPECT_EQ(sealed.flags, agree(in).flags & ~kLocks);
}

TEST(Init, MountsMayBeIdmappedOnlyWhereThatWasAskedFor) {
  fuse_init_in in = offer(kEverything);
  EXPECT_EQ(agree(in).flags & kAllowIdmap, 0u);
  const Negotiated agreed = negotiate(std::as_bytes(std::span(&in, 1)), {.idmap = true});
  EXPECT_EQ(agreed.flags, agree(in).flags | kAllowIdmap);
  EXPECT_EQ(agreed.reply.flags2, static_cast<uint32_t>(agreed.flags >> 32));
  in = offer(kEverything & ~kAllowIdmap);  // Linux before 6.12
  EXPECT_EQ(agree(in).error, 0);
  EXPECT_EQ(negotiate(std::as_bytes(std::span(&in, 1)), {.idmap = true}).error, EOPNOTSUPP);
}

TEST(Init, PermissionsThatAreCheckedElsewhere) {
  const fuse_init_in in = offer(kEverything);
  const Negotiated agreed = negotiate(std::as_bytes(std::span(&in, 1)), {.checks_elsewhere = true});
  EXPECT_EQ(agreed.error, 0);
  EXPECT_EQ(agreed.flags, agree(in).flags & ~uint64_t{FUSE_POSIX_ACL});
}

TEST(Init, RequestsOfOneMebibyte) {
  const Negotiated agreed = agree(offer(kEverything));
  EXPECT_EQ(agreed.reply.max_write, 1u << 20);
  EXPECT_EQ(agreed.reply.max_pages, 256);
  EXPECT_GE(agreed.reply.max_background, 64);
  EXPECT_GT(agreed.reply.congestion_threshold, agreed.reply.max_background);
  EXPECT_EQ(agreed.reply.time_gran, 1u);
  EXPECT_EQ(agreed.reply.flags | uint64_t{agreed.reply.flags2} << 32, agreed.flags);
}

TEST(Init, FlagsOfTheSecondWordNeedTheExtension) {
  const Negotiated agreed = agree(offer(kEverything & ~uint64_t{FUSE_INIT_EXT}));
  ASSERT_EQ(agreed.error, 0);
  EXPECT_FALSE(agreed.flags & kDirectIoAllowMmap);
}

TEST(Init, KernelsThatCannotServeAreRefused) {
  EXPECT_EQ(agree(offer(kEverything & ~uint64_t{FUSE_EXPLICIT_INVAL_DATA})).error, EPROTO);
  fuse_init_in in = offer(kEverything);
  in.major = 8;
  EXPECT_EQ(agree(in).error, EPROTO);
  in = offer(kEverything);
  in.minor = 20;
  EXPECT_EQ(agree(in).error, EPROTO);
  EXPECT_EQ(agree(offer(kEverything), 15).error, EINVAL);
}

TEST(Init, Pyfuse3SeesAnOlderProtocolWithoutSplice) {
  const auto bytes = upcall_init(agree(offer(kEverything)));
  const auto header = load<fuse_in_header>(bytes);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->len, bytes.size());
  EXPECT_EQ(header->opcode, static_cast<uint32_t>(FUSE_INIT));
  EXPECT_EQ(header->unique % 2, 1u);  // the kernel's own are even
  ASSERT_EQ(bytes.size(), sizeof(fuse_in_header) + 16);
  fuse_init_in in{};
  std::memcpy(&in, bytes.data() + sizeof(fuse_in_header), 16);
  EXPECT_EQ(in.major, 7u);
  EXPECT_LT(in.minor, 14u);  // below: libfuse does not splice
  EXPECT_GE(in.minor, 12u);  // below: other layouts
  EXPECT_TRUE(in.flags & FUSE_DO_READDIRPLUS);
  EXPECT_TRUE(in.flags & FUSE_POSIX_ACL);
  EXPECT_FALSE(in.flags & (FUSE_AUTO_INVAL_DATA | FUSE_ATOMIC_O_TRUNC | FUSE_MAX_PAGES));
}

TEST(MountOptions, WordsBecomeFlagsAndTheRestIsText) {
  const MountWords words =
      split_options("nosuid,noexec,exec,noatime,max_read=131072,allow_other", true);
  EXPECT_EQ(words.flags, static_cast<unsigned long>(MS_NOSUID | MS_NOATIME | MS_RDONLY));
  EXPECT_EQ(words.text, "max_read=131072,default_permissions,allow_other");
  EXPECT_EQ(split_options("", false).text, "default_permissions,allow_other");
  EXPECT_EQ(split_options("default_permissions", false, true).text, "allow_other");
  EXPECT_EQ(split_options(",,ro,rw,", false).flags, 0ul);
}

TEST(MountOptions, WrongPlacesHaveTheirErrno) {
  net::UniqueFd device;
  EXPECT_EQ(mount_device({"/no/such/place", "x", "", false}, device), -ENOENT);
  EXPECT_EQ(mount_device({"/proc/self/status", "x", "", false}, device), -ENOTDIR);
  EXPECT_EQ(connection_number("/no/such/place"), -ENOENT);
}

}  // namespace
}  // namespace braidfs::fuse
