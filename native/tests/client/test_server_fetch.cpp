// Small files that servers are told of before anybody reads them (client/server_fetch.h).
#include <fcntl.h>
#include <gtest/gtest.h>

#include "client/server_fetch.h"
#include "rig.h"

namespace braidfs::client::rig {
namespace {

using prefetch::WholeSmallFiles;

class ToldServers : public ::testing::Test {
 protected:
  static constexpr size_t kSize = 50'000;  // one chunk

  ToldServers() {
    rig_.store_and_forget(content_);
    rig_.core->prefetch(64u << 20, false);
  }
  ~ToldServers() override { rig_.core->stop(0); }

  void read_files(size_t length) {
    for (uint64_t fh = 1000; fh <= 1000 + WholeSmallFiles::kScoreEnough; ++fh) {
      ASSERT_TRUE(rig_.core->open_granted(rig_.attributes(kSize, 2), rig_.layout(),
                                          rig_.capability(), fh, O_RDONLY));
      ASSERT_EQ(rig_.start_fetch(fh), 0u) << "only servers fetch";
      for (int lane = 0; lane < 2; ++lane)
        ASSERT_EQ(rig_.read(fh, 0, length).bytes.size(), length);  // connects both
      rig_.release(fh);
      ASSERT_TRUE(rig_.forgets_inodes());
    }
  }
  void opened_ahead(size_t count) {
    const auto attributes = decode_attributes(rig_.attributes(kSize, 2));
    const auto view = decode_view(rig_.layout(), rig_.capability());
    for (size_t file = 0; file < count; ++file)
      want_in_server_caches(rig_.core->context(), *attributes, *view);
    tell_servers(rig_.core->context());
  }

  const Bytes content_ = pattern(kSize, 3);
  Rig rig_;
};

TEST_F(ToldServers, WhenFilesAreReadWhole) {
  opened_ahead(2);
  EXPECT_EQ(rig_.targets[0]->count(Op::kFetch), 0u) << "nothing is known yet";
  read_files(kSize);
  opened_ahead(3);
  ASSERT_TRUE(eventually([&] { return rig_.targets[0]->fetched().size() == 5; }));
  const FetchedObject object = rig_.targets[0]->fetched().back();
  EXPECT_EQ(object.capability.file_id, rig_.file_id);
  EXPECT_EQ(object.stripe_index, 0u);
  EXPECT_EQ(object.length, kSize);
  EXPECT_EQ(rig_.targets[1]->count(Op::kFetch), 0u);
  EXPECT_TRUE(eventually([&] { return rig_.counter("fetch_ahead_files") == 5; }));
}

TEST_F(ToldServers, NothingWhenBeginningsAloneAreRead) {
  read_files(4096);
  opened_ahead(3);
  read_files(4096);
  EXPECT_EQ(rig_.targets[0]->count(Op::kFetch), 0u);
}

TEST_F(ToldServers, NothingWhenItIsOff) {
  rig_.core->prefetch(0, false);
  read_files(kSize);
  opened_ahead(3);
  EXPECT_EQ(rig_.read(Rig::kFh, 0, 1).error, EBADF);  // a way to the lanes and back
  EXPECT_EQ(rig_.targets[0]->count(Op::kFetch), 0u);
}

TEST_F(ToldServers, AgainWhenTheConnectionEnds) {
  read_files(kSize);
  std::atomic<int> lost = 0;
  rig_.targets[0]->decide([&](const FrameHeader& header) {
    const bool is_first = header.op == static_cast<uint8_t>(Op::kFetch) && lost++ == 0;
    return is_first ? FakeTarget::Decision{FakeTarget::Fault::kHangUpBefore}
                    : FakeTarget::Decision{};
  });
  opened_ahead(3);
  EXPECT_TRUE(eventually([&] { return rig_.targets[0]->fetched().size() == 3; }));
}

TEST_F(ToldServers, AndNotAgainOneThatDoesNotKnowTheRequest) {
  read_files(kSize);
  rig_.targets[0]->decide([](const FrameHeader& header) {
    const bool is_fetch = header.op == static_cast<uint8_t>(Op::kFetch);
    return is_fetch ? FakeTarget::Decision{FakeTarget::Fault::kStatus, Status::kBadRequest}
                    : FakeTarget::Decision{};
  });
  opened_ahead(3);
  EXPECT_TRUE(eventually([&] { return rig_.counter("fetch_ahead_refused") == 3; }));
  opened_ahead(3);
  ASSERT_TRUE(rig_.core->open_granted(rig_.attributes(kSize, 2), rig_.layout(), rig_.capability(),
                                      2000, O_RDONLY));
  EXPECT_EQ(rig_.read(2000, 0, kSize).bytes, content_);
  EXPECT_EQ(rig_.targets[0]->count(Op::kFetch), 1u);
}

}  // namespace
}  // namespace braidfs::client::rig
