#include "fuse/eof_pages.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "fuse/protocol.h"
#include "fuse/reply_sizes.h"

namespace braidfs::fuse {
namespace {

constexpr uint64_t kFile = 77;
constexpr uint64_t kOther = 78;

struct Reads {
  std::vector<std::byte> sent;  // the first byte of each reply
  EofPages cut{[this](Channel, auto reply) { sent.push_back(reply.front()); }};

  bool keeps(uint64_t nodeid, uint64_t size, uint8_t name) {
    const std::array reply{std::byte{name}, std::byte{0}};
    return cut.keeps(nodeid, size, 0, reply);
  }
  void end(uint64_t read) { cut.end(kFile, read); }
};

TEST(EofPages, ALargerSizeWaitsForThePagesThatWereCutBefore) {
  Reads reads;
  EXPECT_FALSE(reads.keeps(kFile, 10, 1));
  const uint64_t first = reads.cut.begin(kFile);
  EXPECT_FALSE(reads.keeps(kFile, 10, 1));  // it will look for the end after this
  EXPECT_TRUE(reads.cut.cut(kFile, first, 10));
  EXPECT_FALSE(reads.keeps(kFile, 10, 2));
  EXPECT_FALSE(reads.keeps(kOther, 11, 2));
  EXPECT_TRUE(reads.keeps(kFile, 11, 3));
  const uint64_t second = reads.cut.begin(kFile);
  EXPECT_TRUE(reads.cut.cut(kFile, second, 11));
  EXPECT_TRUE(reads.keeps(kFile, 12, 4));
  reads.end(first);
  EXPECT_EQ(reads.sent, std::vector{std::byte{3}});
  reads.end(second);
  EXPECT_EQ(reads.sent, (std::vector{std::byte{3}, std::byte{4}}));
  EXPECT_TRUE(reads.cut.empty());
}

TEST(EofPages, AnEndThatIsNotTheOneToldLastIsRefused) {
  Reads reads;
  const uint64_t read = reads.cut.begin(kFile);
  EXPECT_FALSE(reads.keeps(kFile, 20, 1));
  EXPECT_FALSE(reads.cut.cut(kFile, read, 10));
  EXPECT_FALSE(reads.keeps(kFile, 30, 1));  // nothing was noted
  EXPECT_FALSE(reads.keeps(kFile, 5, 1));   // truncated meanwhile
  EXPECT_TRUE(reads.cut.cut(kFile, read, 10));
  reads.end(read);
  EXPECT_TRUE(reads.cut.empty());
}

TEST(EofPages, AnAnswerThatMayNotWaitTellsTheSizeThatTheKernelHas) {
  Reads reads;
  struct {
    fuse_out_header header;
    fuse_entry_out entry;
  } reply{};
  reply.entry.nodeid = kFile;
  reply.entry.attr.size = 30;
  reply.entry.attr_valid = 9;
  const auto bytes = std::as_writable_bytes(std::span(&reply, 1));
  clip_sizes({.opcode = FUSE_LOOKUP}, bytes, reads.cut);
  EXPECT_EQ(reply.entry.attr.size, 30u);
  const uint64_t read = reads.cut.begin(kFile);
  EXPECT_TRUE(reads.cut.cut(kFile, read, 20));
  clip_sizes({.opcode = FUSE_LOOKUP}, bytes, reads.cut);
  EXPECT_EQ(reply.entry.attr.size, 20u);
  EXPECT_EQ(reply.entry.attr_valid, 0u);
  reads.end(read);
}

TEST(EofPages, SizesAreFoundInEachEntryOfAListing) {
  Reads reads;
  const uint64_t read = reads.cut.begin(kFile);
  EXPECT_TRUE(reads.cut.cut(kFile, read, 20));
  constexpr size_t kEntry = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET_DIRENTPLUS + 3);
  std::vector<std::byte> bytes(sizeof(fuse_out_header) + 3 * kEntry);
  for (size_t index = 0; index < 3; ++index) {
    fuse_entry_out entry{};
    entry.nodeid = index == 0 ? 0 : index == 1 ? kOther : kFile;
    entry.attr.size = 30;
    const uint32_t length = 3;
    std::byte* const at = bytes.data() + sizeof(fuse_out_header) + index * kEntry;
    std::memcpy(at, &entry, sizeof(entry));
    std::memcpy(at + offsetof(fuse_direntplus, dirent.namelen), &length, sizeof(length));
  }
  const auto size = [&](size_t index) {
    return load<fuse_entry_out>(std::span(bytes).subspan(sizeof(fuse_out_header) + index * kEntry))
        ->attr.size;
  };
  clip_sizes({.opcode = FUSE_READDIRPLUS}, bytes, reads.cut);
  EXPECT_EQ(size(0), 30u);
  EXPECT_EQ(size(1), 30u);
  EXPECT_EQ(size(2), 20u);
  std::vector<std::byte> cut_short(bytes.begin(), bytes.end() - 40);  // such an entry is left alone
  clip_sizes({.opcode = FUSE_READDIRPLUS}, cut_short, reads.cut);
  reads.end(read);
}

}  // namespace
}  // namespace braidfs::fuse
