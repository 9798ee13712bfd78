// Layout records of replicated files (version 2): what is taken from them, and what is refused.
#include "client/records.h"

#include <gtest/gtest.h>

#include <functional>

#include "rig.h"

namespace braidfs::client::rig {
namespace {

constexpr uint64_t kFileId = 7;

// Two stripes with three places: generations 0, 2 and a vacant place; 9 was given out last.
LayoutFields fields() {
  return {.file_id = kFileId,
          .chunk_size = 64u << 10,
          .epoch = 3,
          .durable_stripes = 2,
          .rows = {{},
                   {100, object_number(0, 0)},
                   {101, object_number(0, 2)},
                   {102, object_number(1, 1)},
                   {},
                   {}},
          .places = 3};
}

std::optional<FileView> decoded(const Bytes& record) {
  return decode_view(record, capability_record(kFileId));
}

TEST(Records, ReplicasComeFirstAndVacantPlacesAreLeftOut) {
  const auto view = decoded(layout_record(fields()));
  ASSERT_TRUE(view);
  EXPECT_TRUE(view->is_replicated);
  EXPECT_EQ(view->stripe_width, 2u);
  EXPECT_EQ(view->truncate_epoch, 3u);
  ASSERT_EQ(view->replicas(0).size(), 2u);
  EXPECT_EQ(view->replicas(0)[0], (Replica{100, 0}));
  EXPECT_EQ(view->replicas(0)[1], (Replica{101, 2u << 8}));
  ASSERT_EQ(view->replicas(1).size(), 1u);
  EXPECT_EQ(view->replicas(1)[0], (Replica{102, 1u << 8 | 1}));
  EXPECT_TRUE(view->is_mirrored(0));
  EXPECT_FALSE(view->is_mirrored(1));
  EXPECT_FALSE(view->has(0, {102, 0}));
  EXPECT_FALSE(view->has(2, {100, 0}));
}

TEST(Records, OneReplicaIsWhatItWas) {
  const auto view =
      decoded(layout_record({.file_id = kFileId, .targets = 3, .chunk_size = 64u << 10}));
  ASSERT_TRUE(view);
  EXPECT_FALSE(view->is_replicated);
  EXPECT_EQ(view->rows.size(), 3u);
  EXPECT_EQ(view->first_replica(2), (Replica{102, 2}));
  EXPECT_FALSE(view->is_mirrored(2));
}

TEST(Records, BytesOfTheFileMayFollow) {
  Bytes record = layout_record(fields());
  record[20] = std::byte{1};
  EXPECT_FALSE(decoded(record)) << "there are none";
  record.resize(record.size() + 5, std::byte{'x'});
  const auto view = decoded(record);
  ASSERT_TRUE(view);
  EXPECT_EQ(view->inline_bytes, "xxxxx");
}

// As fscommon/layout/layout.py refuses them.
TEST(Records, HostileRecordsAreRefused) {
  const auto refused = [](const std::function<void(LayoutFields&)>& change) {
    LayoutFields changed = fields();
    change(changed);
    return !decoded(layout_record(changed));
  };
  EXPECT_TRUE(refused([](LayoutFields& to) { to.rows[1].target = 101; })) << "two on one target";
  EXPECT_TRUE(refused([](LayoutFields& to) { to.rows[3] = {}; })) << "a stripe without a replica";
  EXPECT_TRUE(refused([](LayoutFields& to) { to.rows[3].object_number = 10u << 8; }))
      << "a generation that was never given out";
  EXPECT_TRUE(refused([](LayoutFields& to) { to.rows[0].object_number = 10u << 8; }))
      << "of a vacant place, too";
  const auto spoilt = [](size_t at, uint8_t value) {
    Bytes record = layout_record(fields());
    record[at] = std::byte{value};
    return !decoded(record);
  };
  EXPECT_TRUE(spoilt(0, 1)) << "version";
  EXPECT_TRUE(spoilt(0, 3));
  EXPECT_TRUE(spoilt(1, 0)) << "places";
  EXPECT_TRUE(spoilt(1, 5));
  EXPECT_TRUE(spoilt(1, 2)) << "another length";
  EXPECT_TRUE(spoilt(2, 0)) << "stripes";
  EXPECT_TRUE(spoilt(2, 3)) << "another length";
  EXPECT_TRUE(spoilt(35, 1)) << "a generation beyond 24 bits";
  EXPECT_TRUE(spoilt(36, 0)) << "wanted replicas";
  EXPECT_TRUE(spoilt(36, 4));
  EXPECT_TRUE(spoilt(37, 1));
  EXPECT_TRUE(spoilt(39, 1));
  EXPECT_FALSE(spoilt(36, 3)) << "this is none";
  for (size_t length = 0; length < layout_record(fields()).size(); ++length) {
    Bytes record = layout_record(fields());
    record.resize(length);
    EXPECT_FALSE(decoded(record)) << length;
  }
}

TEST(Records, OnePlaceMeansThatTheReplicaWasMoved) {
  LayoutFields one = fields();
  one.rows = {{100, object_number(0, 2)}};
  one.places = 1;
  Bytes record = layout_record(one);
  const auto view = decoded(record);
  ASSERT_TRUE(view);
  EXPECT_TRUE(view->is_replicated);
  EXPECT_FALSE(view->is_mirrored(0));
  for (const size_t at : {32u, 44u}) record[at] = record[at + 1] = std::byte{0};
  EXPECT_FALSE(decoded(record)) << "it has a record of version 1";
}

}  // namespace
}  // namespace braidfs::client::rig
