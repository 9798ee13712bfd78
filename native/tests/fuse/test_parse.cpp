#include "fuse/parse.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <limits>

#include "kernel_side.h"

namespace braidfs::fuse {
namespace {

using namespace std::string_view_literals;
using testing::Bytes;
using testing::request;

constexpr uint32_t kMaxWrite = 1u << 20;
constexpr testing::Sender kSender{40, 7, 99};

Request parse(const Bytes& bytes) { return parse_request(3, bytes, kMaxWrite); }

int refused_with(const Request& parsed) {
  const auto* answered = std::get_if<AnsweredRequest>(&parsed);
  return answered != nullptr ? answered->error : -1;
}

fuse_write_in write_in(uint64_t offset, uint32_t size) {
  fuse_write_in in{};
  in.fh = 5;
  in.offset = offset;
  in.size = size;
  in.write_flags = kWriteKillSuidgid;
  in.lock_owner = 77;
  in.flags = O_DSYNC;
  return in;
}

TEST(Parse, ReadCarriesEveryField) {
  fuse_read_in in{};
  in.fh = 5;
  in.offset = 4096;
  in.size = 100;
  in.flags = O_DIRECT;
  in.lock_owner = 6;
  const auto parsed = parse(request(FUSE_READ, kSender, in));
  const auto* read = std::get_if<ReadRequest>(&parsed);
  ASSERT_NE(read, nullptr);
  EXPECT_EQ(read->head.channel, 3u);
  EXPECT_EQ(read->head.unique, 40u);
  EXPECT_EQ(read->head.nodeid, 7u);
  EXPECT_EQ(read->head.uid, 1000u);
  EXPECT_EQ(read->head.gid, 100u);
  EXPECT_EQ(read->head.pid, 99u);
  EXPECT_EQ(read->fh, 5u);
  EXPECT_EQ(read->offset, 4096u);
  EXPECT_EQ(read->size, 100u);
  EXPECT_EQ(read->open_flags, static_cast<uint32_t>(O_DIRECT));
  EXPECT_EQ(read->lock_owner, 6u);
}

TEST(Parse, ReadOutsideOfWhatAFileCanBeIsRefused) {
  fuse_read_in in{};
  in.size = kMaxWrite + 1;
  EXPECT_EQ(refused_with(parse(request(FUSE_READ, kSender, in))), EINVAL);
  in.size = 2;
  in.offset = std::numeric_limits<int64_t>::max() - 1;
  EXPECT_EQ(refused_with(parse(request(FUSE_READ, kSender, in))), EINVAL);
  in.offset = ~0ULL;
  EXPECT_EQ(refused_with(parse(request(FUSE_READ, kSender, in))), EINVAL);
}

TEST(Parse, WriteLendsItsPayload) {
  const Bytes bytes = request(FUSE_WRITE, kSender, write_in(10, 5), "hello");
  const auto parsed = parse(bytes);
  const auto* write = std::get_if<WriteRequest>(&parsed);
  ASSERT_NE(write, nullptr);
  EXPECT_EQ(write->payload.data(), bytes.data() + kWriteHeadSize);
  EXPECT_EQ(write->payload.size(), 5u);
  EXPECT_EQ(write->offset, 10u);
  EXPECT_EQ(write->write_flags, kWriteKillSuidgid);
  EXPECT_EQ(write->open_flags, static_cast<uint32_t>(O_DSYNC));
  EXPECT_EQ(write->lock_owner, 77u);
}

TEST(Parse, WriteMayHaveItsPayloadApart) {
  const Bytes whole = request(FUSE_WRITE, kSender, write_in(10, 5), "hello");
  const auto head = std::span<const std::byte>(whole).first(kWriteHeadSize);
  const Bytes apart(whole.begin() + kWriteHeadSize, whole.end());
  const auto parsed = parse_request(3, head, kMaxWrite, apart);
  const auto* write = std::get_if<WriteRequest>(&parsed);
  ASSERT_NE(write, nullptr);
  EXPECT_EQ(write->payload.data(), apart.data());
  EXPECT_EQ(write->payload.size(), 5u);
  const auto is_malformed = [](const Request& request) {
    return std::holds_alternative<Malformed>(request);
  };
  const auto few = std::span<const std::byte>(apart).first(4);
  EXPECT_TRUE(is_malformed(parse_request(3, head, kMaxWrite, few)));
  EXPECT_TRUE(is_malformed(parse_request(3, whole, kMaxWrite, apart)));
  const Bytes wrong = request(FUSE_WRITE, kSender, write_in(10, 6), "hello");
  const auto wrong_head = std::span<const std::byte>(wrong).first(kWriteHeadSize);
  EXPECT_EQ(refused_with(parse_request(3, wrong_head, kMaxWrite, apart)), EINVAL);
  const Bytes other = request(FUSE_READ, kSender, write_in(10, 5), "hello");
  const auto other_head = std::span<const std::byte>(other).first(kWriteHeadSize);
  EXPECT_TRUE(is_malformed(parse_request(3, other_head, kMaxWrite, apart)));
}

TEST(Parse, WriteWhosePayloadIsNotItsSizeIsRefused) {
  EXPECT_EQ(refused_with(parse(request(FUSE_WRITE, kSender, write_in(0, 6), "hello"))), EINVAL);
  EXPECT_EQ(refused_with(parse(request(FUSE_WRITE, kSender, write_in(0, 4), "hello"))), EINVAL);
  const auto end = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(refused_with(parse(request(FUSE_WRITE, kSender, write_in(end, 5), "hello"))), EFBIG);
}

TEST(Parse, HandleRequests) {
  fuse_flush_in flush{};
  flush.fh = 8;
  flush.lock_owner = 9;
  const auto flushed = parse(request(FUSE_FLUSH, kSender, flush));
  ASSERT_TRUE(std::holds_alternative<FlushRequest>(flushed));
  EXPECT_EQ(std::get<FlushRequest>(flushed).lock_owner, 9u);

  fuse_release_in release{};
  release.fh = 8;
  release.flags = O_RDWR;
  release.release_flags = kReleaseFlockUnlock;
  const auto released = parse(request(FUSE_RELEASE, kSender, release));
  ASSERT_TRUE(std::holds_alternative<ReleaseRequest>(released));
  EXPECT_EQ(std::get<ReleaseRequest>(released).release_flags, kReleaseFlockUnlock);

  fuse_fsync_in fsync{};
  fsync.fsync_flags = FUSE_FSYNC_FDATASYNC;
  const auto synced = parse(request(FUSE_FSYNC, kSender, fsync));
  ASSERT_TRUE(std::holds_alternative<FsyncRequest>(synced));
  EXPECT_TRUE(std::get<FsyncRequest>(synced).bytes_only);
}

TEST(Parse, EveryCutOfANativeRequestIsRefusedOrMalformed) {
  const Bytes whole = request(FUSE_WRITE, kSender, write_in(0, 5), "hello");
  for (size_t length = 0; length < whole.size(); ++length) {
    Bytes cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(length));
    EXPECT_TRUE(std::holds_alternative<Malformed>(parse(cut))) << length;  // len says more
    if (length < sizeof(fuse_in_header)) continue;
    const auto len = static_cast<uint32_t>(length);
    std::memcpy(cut.data(), &len, sizeof(len));
    EXPECT_EQ(refused_with(parse(cut)), EINVAL) << length;
  }
}

TEST(Parse, ForgetsAloneAndInBatches) {
  const auto one = parse(request(FUSE_FORGET, kSender, fuse_forget_in{3}));
  ASSERT_TRUE(std::holds_alternative<ForgetRequest>(one));
  EXPECT_EQ(std::get<ForgetRequest>(one).nodeid, 7u);
  EXPECT_EQ(std::get<ForgetRequest>(one).lookups, 3u);

  const std::string entries(2 * sizeof(fuse_forget_one), '\1');
  const auto many = parse(request(FUSE_BATCH_FORGET, kSender, fuse_batch_forget_in{2, 0}, entries));
  ASSERT_TRUE(std::holds_alternative<ForgetRequest>(many));
  EXPECT_EQ(std::get<ForgetRequest>(many).entries.size(), entries.size());
  const auto lying =
      parse(request(FUSE_BATCH_FORGET, kSender, fuse_batch_forget_in{3, 0}, entries));
  EXPECT_TRUE(std::holds_alternative<Malformed>(lying));
}

TEST(Parse, InterruptNamesItsTarget) {
  const auto parsed = parse(request(FUSE_INTERRUPT, {41, 0, 0}, fuse_interrupt_in{40}));
  ASSERT_TRUE(std::holds_alternative<InterruptRequest>(parsed));
  EXPECT_EQ(std::get<InterruptRequest>(parsed).unique, 41u);
  EXPECT_EQ(std::get<InterruptRequest>(parsed).target, 40u);
}

TEST(Parse, NamesMustEnd) {
  EXPECT_EQ(refused_with(parse(request(FUSE_LOOKUP, kSender, "name"sv))), EINVAL);
  EXPECT_TRUE(
      std::holds_alternative<UpcallRequest>(parse(request(FUSE_LOOKUP, kSender, "name\0"sv))));
  const fuse_rename2_in rename{};
  EXPECT_EQ(refused_with(parse(request(FUSE_RENAME2, kSender, rename, "a\0b"sv))), EINVAL);
  EXPECT_TRUE(std::holds_alternative<UpcallRequest>(
      parse(request(FUSE_RENAME2, kSender, rename, "a\0b\0"sv))));
}

TEST(Parse, XattrValueMustBeThere) {
  const std::array<uint32_t, 2> fixed{4, 0};  // size, flags: the layout libfuse 3.14 reads
  EXPECT_EQ(refused_with(parse(request(FUSE_SETXATTR, kSender, fixed, "user.a\0abc"sv))), EINVAL);
  EXPECT_TRUE(std::holds_alternative<UpcallRequest>(
      parse(request(FUSE_SETXATTR, kSender, fixed, "user.a\0abcd"sv))));
}

TEST(Parse, OverlongUpcallIsRefused) {
  std::string name(kUpcallBytesMax, 'x');
  name.push_back('\0');
  EXPECT_EQ(refused_with(parse(request(FUSE_LOOKUP, kSender, name))), E2BIG);
}

TEST(Parse, WhatPyfuse3DoesNotKnowIsAnsweredHere) {
  for (const uint32_t opcode :
       {uint32_t{FUSE_BMAP}, uint32_t{FUSE_POLL}, uint32_t{FUSE_READDIR}, 53u, 9999u}) {
    EXPECT_EQ(refused_with(parse(request(opcode, kSender, std::array<char, 64>{}))), ENOSYS)
        << opcode;
  }
  EXPECT_EQ(refused_with(parse(request(FUSE_DESTROY, kSender))), 0);
  EXPECT_EQ(refused_with(parse(request(FUSE_INIT, kSender))), EIO);
}

TEST(Parse, CopiesThatTheKernelIsToMakeAreRefusedHere) {
  fuse_copy_file_range_in copy{};
  copy.off_in = copy.off_out = 8192;
  copy.len = 128u << 10;
  EXPECT_TRUE(
      std::holds_alternative<UpcallRequest>(parse(request(FUSE_COPY_FILE_RANGE, kSender, copy))));
  for (uint64_t fuse_copy_file_range_in::*field :
       {&fuse_copy_file_range_in::off_in, &fuse_copy_file_range_in::off_out,
        &fuse_copy_file_range_in::len}) {
    fuse_copy_file_range_in other = copy;
    --(other.*field);
    EXPECT_EQ(refused_with(parse(request(FUSE_COPY_FILE_RANGE, kSender, other))), EOPNOTSUPP);
  }
}

struct CallCase {
  uint32_t opcode;
  size_t fixed;
  std::string_view tail;
};

TEST(Parse, CallsReachPythonWholeAndEveryCutOfThemIsRefused) {
  for (const CallCase& call :
       {CallCase{FUSE_GETLK, sizeof(fuse_lk_in), ""}, CallCase{FUSE_SETLK, sizeof(fuse_lk_in), ""},
        CallCase{FUSE_SETLKW, sizeof(fuse_lk_in), ""},
        CallCase{FUSE_FALLOCATE, sizeof(fuse_fallocate_in), ""},
        CallCase{FUSE_LSEEK, sizeof(fuse_lseek_in), ""},
        CallCase{FUSE_SYNCFS, sizeof(fuse_syncfs_in), ""},
        CallCase{FUSE_TMPFILE, sizeof(fuse_create_in), "/\0"sv}, CallCase{kOpStatx, 24, ""}}) {
    const std::string body = std::string(call.fixed, '\0') + std::string(call.tail);
    for (size_t length = 0; length < body.size(); ++length) {
      const auto cut =
          parse(request(call.opcode, kSender, std::string_view(body).substr(0, length)));
      EXPECT_EQ(refused_with(cut), EINVAL) << call.opcode << " " << length;
    }
    const Bytes whole = request(call.opcode, kSender, body);
    const auto parsed = parse(whole);
    ASSERT_TRUE(std::holds_alternative<UpcallRequest>(parsed)) << call.opcode;
    EXPECT_TRUE(std::get<UpcallRequest>(parsed).is_call);
    EXPECT_EQ(std::get<UpcallRequest>(parsed).bytes.size(), whole.size());
    EXPECT_EQ(
        refused_with(parse(request(call.opcode, kSender, body + std::string(4096, 'x') + '\0'))),
        E2BIG);
  }
}

TEST(Parse, IoctlsOfInodeFlagsAndNoOthers) {
  fuse_ioctl_in in{};
  in.cmd = kIoctlSetFlags;
  in.in_size = 4;
  EXPECT_TRUE(
      std::holds_alternative<UpcallRequest>(parse(request(FUSE_IOCTL, kSender, in, "abcd"sv))));
  EXPECT_EQ(refused_with(parse(request(FUSE_IOCTL, kSender, in, "abc"sv))), EINVAL);
  in.cmd = 0x5401;  // TCGETS
  EXPECT_EQ(refused_with(parse(request(FUSE_IOCTL, kSender, in, "abcd"sv))), ENOTTY);
  EXPECT_EQ(refused_with(parse(request(FUSE_IOCTL, kSender, "short"sv))), EINVAL);
}

TEST(Parse, AnAnnouncementMayBeLongerThanOtherCalls) {
  fuse_ioctl_in in{};
  in.cmd = kIoctlAnnounce;
  in.in_size = kAnnounceSize;
  const std::string body(kAnnounceSize, 'a');
  EXPECT_TRUE(std::holds_alternative<UpcallRequest>(parse(request(FUSE_IOCTL, kSender, in, body))));
  const std::string longer(kAnnounceSize + 4096, 'a');
  EXPECT_EQ(refused_with(parse(request(FUSE_IOCTL, kSender, in, longer))), E2BIG);
}

TEST(Parse, BitsThatPyfuse3DoesNotShow) {
  fuse_setattr_in setattr{};
  setattr.valid = kFattrKillSuidgid | FATTR_SIZE;
  EXPECT_EQ(std::get<UpcallRequest>(parse(request(FUSE_SETATTR, kSender, setattr))).bits,
            kUpcallKillSuidgid);
  for (const uint32_t nothing : {0u, uint32_t{FATTR_FH}, uint32_t{FATTR_FH | FATTR_LOCKOWNER}}) {
    setattr.valid = nothing;  // chown(-1, -1), or the kernel is about to write
    EXPECT_EQ(std::get<UpcallRequest>(parse(request(FUSE_SETATTR, kSender, setattr))).bits,
              kUpcallKillSuidgid);
  }
  setattr.valid = FATTR_MODE;
  EXPECT_EQ(std::get<UpcallRequest>(parse(request(FUSE_SETATTR, kSender, setattr))).bits, 0u);
  const fuse_open_in open{O_RDWR, kOpenKillSuidgid};
  EXPECT_EQ(std::get<UpcallRequest>(parse(request(FUSE_OPEN, kSender, open))).bits,
            kUpcallKillSuidgid);
  const fuse_create_in create{O_RDONLY | O_CREAT, 0644, 022, 0};
  EXPECT_EQ(std::get<UpcallRequest>(parse(request(FUSE_CREATE, kSender, create, "a\0"sv))).bits,
            kUpcallOpenReadOnly);
}

}  // namespace
}  // namespace braidfs::fuse
