// What the kernel is told of handles with which it reads by itself.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "fuse/open_reply.h"

namespace braidfs::fuse {
namespace {

constexpr uint64_t kUnique = 44;

struct Reply {
  fuse_out_header header;
  fuse_open_out body;
};

std::vector<std::byte> opened(uint32_t open_flags) {
  const Reply reply{{sizeof(Reply), 0, kUnique}, {.fh = 9, .open_flags = open_flags, .padding = 0}};
  const auto bytes = std::as_bytes(std::span(&reply, 1));
  return {bytes.begin(), bytes.end()};
}

Upcall upcall(uint32_t opcode) {
  Upcall call{};
  call.unique = kUnique;
  call.opcode = opcode;
  call.nodeid = 7;
  return call;
}

ChoosePassthrough answers(PassthroughChoice choice) {
  return [choice](uint64_t nodeid, uint64_t fh) {
    EXPECT_EQ(nodeid, 7u);
    EXPECT_EQ(fh, 9u);
    return choice;
  };
}

TEST(OpenReply, PassesThroughWithoutWhatTheKernelRefusesBeside) {
  auto reply = opened(FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR | kFopenNoflush | kFopenDirectIo);
  const auto sent =
      apply_choice(upcall(FUSE_OPEN), reply, answers({PassthroughChoice::Way::kPassthrough, 3}));
  ASSERT_EQ(sent.size(), sizeof(Reply));
  const auto out = load<fuse_open_out>(sent.subspan(sizeof(fuse_out_header)));
  EXPECT_EQ(out->fh, 9u);
  EXPECT_EQ(out->open_flags, kFopenPassthrough | kFopenNoflush | kFopenDirectIo);
  EXPECT_EQ(out->padding, 3u);
}

TEST(OpenReply, OtherBytesAreStale) {
  auto reply = opened(FOPEN_KEEP_CACHE);
  const auto sent =
      apply_choice(upcall(FUSE_OPEN), reply, answers({.way = PassthroughChoice::Way::kStale}));
  ASSERT_EQ(sent.size(), sizeof(fuse_out_header));
  const auto header = load<fuse_out_header>(sent);
  EXPECT_EQ(header->len, sizeof(fuse_out_header));
  EXPECT_EQ(header->error, -ESTALE);
  EXPECT_EQ(header->unique, kUnique);
}

TEST(OpenReply, StaysAsItIsOtherwise) {
  const auto before = opened(FOPEN_KEEP_CACHE);
  const auto untouched = [&](uint32_t opcode, size_t size, const ChoosePassthrough& choose) {
    auto reply = before;
    const auto sent = apply_choice(upcall(opcode), std::span(reply).first(size), choose);
    return sent.size() == size && reply == before;
  };
  const ChoosePassthrough nobody = [](uint64_t, uint64_t) -> PassthroughChoice {
    ADD_FAILURE();
    return {};
  };
  EXPECT_TRUE(untouched(FUSE_OPEN, sizeof(Reply), answers({})));
  EXPECT_TRUE(untouched(FUSE_OPEN, sizeof(Reply), {}));
  EXPECT_TRUE(untouched(FUSE_OPEN, sizeof(fuse_out_header), nobody));  // an error
  EXPECT_TRUE(untouched(FUSE_OPENDIR, sizeof(Reply), nobody));
}

}  // namespace
}  // namespace braidfs::fuse
