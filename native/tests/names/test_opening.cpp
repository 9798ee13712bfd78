// OPENs that lanes answer, and READs of a sealed tree, which name no handle.
#include <fcntl.h>
#include <gtest/gtest.h>

#include "names_fixture.h"

namespace braidfs::names {
namespace {

using namespace testing;

TEST_F(NamesTest, AnOpenForReadingOfAKeptFileIsNoUpcall) {
  start();
  echo_.kept_ = 9;
  const Bytes opened = ask(0, request(FUSE_OPEN, {30, 9, 1}, fuse_open_in{O_NONBLOCK, 0}));
  EXPECT_EQ(out_header(opened).error, 0);
  EXPECT_GE(at<fuse_open_out>(opened, 16).fh, uint64_t{1} << 62);
  EXPECT_EQ(at<fuse_open_out>(opened, 16).open_flags, FOPEN_KEEP_CACHE | fuse::kFopenNoflush);
  uint64_t unique = 32;
  for (const uint32_t flags : {O_WRONLY, O_RDWR, O_DIRECT, O_TRUNC}) {
    upcall(0, request(FUSE_OPEN, {unique, 9, 1}, fuse_open_in{flags, 0}));
    unique += 2;
  }
  upcall(0, request(FUSE_OPEN, {unique, 8, 1}, fuse_open_in{0, 0}));  // another file
  session_.locked(9, true);
  upcall(0, request(FUSE_OPEN, {unique + 2, 9, 1}, fuse_open_in{0, 0}));
}

TEST_F(NamesTest, OnASealedTreeAReadOpensItsFileByItself) {
  session_.seal();
  names_.seal();
  start();
  EXPECT_EQ(out_header(ask(0, request(FUSE_OPEN, {30, 9, 1}, fuse_open_in{}))).error, -ENOSYS);
  EXPECT_EQ(out_header(ask(1, request(FUSE_FLUSH, {32, 9, 1}, fuse_flush_in{}))).error, -ENOSYS);

  fuse_read_in read{};
  read.offset = 4096;
  read.size = 10;
  echo_.kept_ = 9;
  const Bytes kept = ask(1, request(FUSE_READ, {34, 9, 1}, read));
  EXPECT_EQ(text_of(kept), "4096+10");
  EXPECT_TRUE(echo_.read_.closes);
  EXPECT_GE(echo_.read_.fh, uint64_t{1} << 62);

  ASSERT_TRUE(testing::send(lanes_[1].ours.get(), request(FUSE_READ, {36, 8, 1}, read)));
  EXPECT_EQ(observer_.next(), "call 15 1000 40 0");
  Bytes opened;
  const uint64_t fh = 77;
  testing::append(opened, &fh, sizeof(fh));
  testing::append(opened, &read, sizeof(read));
  ASSERT_TRUE(session_.answer(observer_.slot(), 0, opened));
  EXPECT_EQ(text_of(receive(lanes_[1].ours.get())), "4096+10");
  EXPECT_TRUE(echo_.read_.closes);
  EXPECT_EQ(echo_.read_.fh, 77u);
}

TEST(Known, WhatIsSealedIsKnownByLeasesAlone) {
  AttributeTable attributes;
  ChildTable children;
  const Known known{attributes, children};
  const auto now = AttributeTable::Clock::now();
  record::Record record{};
  record::set_field(record, record::kIno, uint64_t{7});
  record::set_field(record, record::kFlags, record::kInodeImmutable);
  EXPECT_EQ(known.sealing(7, now), fuse::Sealing::kUnknown);
  attributes.put(record, std::chrono::hours(1), now);
  EXPECT_EQ(known.sealing(7, now), fuse::Sealing::kUnknown);
  attributes.put(record, std::chrono::hours(1), now, true);
  EXPECT_EQ(known.sealing(7, now), fuse::Sealing::kUnknown) << "the leases have ended";
  attributes.believe(now + std::chrono::hours(1));
  EXPECT_EQ(known.sealing(7, now), fuse::Sealing::kImmutable);
  record::set_field(record, record::kFlags, uint32_t{0});
  attributes.put(record, std::chrono::hours(1), now, true);
  EXPECT_EQ(known.sealing(7, now), fuse::Sealing::kMutable);
  attributes.drop(7);
  EXPECT_EQ(known.sealing(7, now), fuse::Sealing::kUnknown);
}

}  // namespace
}  // namespace braidfs::names
