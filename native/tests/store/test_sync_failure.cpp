// A device whose fdatasync fails: SYNC reports it every time, and bytes that may not be durable are
// never called durable. Reads go on; a restart finds what the device has.
#include "fixture.h"

namespace braidfs::store::test {
namespace {

const ObjectId kId{7, 0};
const ObjectId kOther{8, 0};

TEST(SyncFailure, TheObjectRefusesWritesAndSyncsUntilARestart) {
  Host host{1};
  std::vector<std::string> logged;
  StoreConfig config = small_config();
  config.on_log = [&](int level, const std::string& text) {
    if (level >= 40) logged.push_back(text);
  };
  auto store = open_store(host.boot(), config);
  const Bytes8 synced = pattern(1, 4096), lost = pattern(2, 4096);
  ASSERT_EQ(put(*store, kId, 0, synced), Status::kOk);
  ASSERT_EQ(store->sync(kId), Status::kOk);
  ASSERT_EQ(put(*store, kId, 4096, lost), Status::kOk);
  host.sync_result = -EIO;
  EXPECT_EQ(store->sync(kId), Status::kEio);
  host.sync_result = 0;
  EXPECT_EQ(store->sync(kId), Status::kEio)
      << "the kernel would say 0 now: its dirty pages are gone";
  EXPECT_EQ(put(*store, kId, 8192, lost), Status::kEio);
  EXPECT_EQ(get(*store, kId, 0, 4096).bytes, synced);
  ASSERT_EQ(logged.size(), 1u);
  EXPECT_NE(logged[0].find(object_path(kId)), std::string::npos);
  EXPECT_GE(store->figures().errors, 1u);

  EXPECT_EQ(put(*store, kOther, 0, synced), Status::kOk) << "other objects are not concerned";
  EXPECT_EQ(store->sync(kOther), Status::kOk);
  host.cut();
  auto again = open_store(host.boot(true), config);
  EXPECT_EQ(get(*again, kId, 0, 4096).bytes, synced);
  EXPECT_EQ(get(*again, kOther, 0, 4096).bytes, synced);
  EXPECT_EQ(put(*again, kId, 4096, lost), Status::kOk);
  EXPECT_EQ(again->sync(kId), Status::kOk);
}

}  // namespace
}  // namespace braidfs::store::test
