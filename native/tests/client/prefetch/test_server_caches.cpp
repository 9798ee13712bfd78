// ServerCaches: which server is told of which files, and when (client/prefetch/server_caches.h).
#include <gtest/gtest.h>

#include <algorithm>

#include "client/prefetch/server_caches.h"

namespace braidfs::client::prefetch {
namespace {

using Outcome = ServerCaches::Outcome;
using namespace std::chrono_literals;

class ServerCachesTest : public ::testing::Test {
 protected:
  static Attributes file(uint64_t size) {
    Attributes attributes;
    attributes.size = size;
    return attributes;
  }
  void want(size_t count) {
    for (size_t number = 0; number < count; ++number) servers_.want(file(1000), view_, now_);
  }
  ServerCaches::Batch take() {
    auto taken = servers_.take(now_);
    EXPECT_EQ(taken.size(), 1u);
    return taken.empty() ? ServerCaches::Batch{} : std::move(taken.front());
  }
  uint64_t counter(std::string_view name) const {
    std::vector<std::pair<std::string, uint64_t>> all;
    servers_.add_counters(all);
    return std::ranges::find(all, name, [](const auto& counter) { return counter.first; })->second;
  }

  static FileView view_on(uint32_t target) {
    FileView view;
    view.file_id = target;
    view.stripe_width = 1;
    view.chunk_size = 1u << 20;
    view.rows = {{target, 0}};
    return view;
  }

  static FileView view_of_two(uint64_t file_id) {
    FileView view = view_on(100);
    view.file_id = file_id;
    view.rows = {{100, 0}, {101, 3u << 8}};
    view.places = 2;
    view.is_replicated = true;
    return view;
  }

  const FileView view_ = view_on(100);
  const FileView other_ = view_on(101);
  Clock::time_point now_ = Clock::now();
  ServerCaches servers_;
};

TEST_F(ServerCachesTest, GoesInOneRequestAtATimeToEachTarget) {
  want(limits::kFetchMax + 3);
  servers_.want(file(5), other_, now_);
  const auto taken = servers_.take(now_);
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].objects.size(), limits::kFetchMax);
  EXPECT_EQ(taken[0].objects.front().length, 1000u);
  EXPECT_EQ(taken[1].target, 101u);
  EXPECT_TRUE(servers_.take(now_).empty()) << "one is under way";
  EXPECT_EQ(servers_.ended(taken[1], Outcome::kTaken, now_), std::nullopt);
  EXPECT_EQ(servers_.ended(taken[0], Outcome::kTaken, now_), now_) << "there is more";
  EXPECT_EQ(take().objects.size(), 3u);
  EXPECT_EQ(counter("fetch_ahead_files"), limits::kFetchMax + 1);
  EXPECT_FALSE(servers_.any());
}

TEST_F(ServerCachesTest, IsForgottenWhenNobodyAsksForLong) {
  want(2);
  now_ += ServerCaches::kPatience + 1ms;
  want(1);
  EXPECT_EQ(take().objects.size(), 1u);
}

TEST_F(ServerCachesTest, IsForgottenWhereThereIsNoRoom) {
  want(limits::kFetchMax + 1);
  EXPECT_EQ(servers_.ended(take(), Outcome::kRefused, now_), std::nullopt);
  EXPECT_EQ(counter("fetch_ahead_refused"), limits::kFetchMax + 1);
  want(1);
  EXPECT_FALSE(servers_.any()) << "the target has its rest";
  now_ += ServerCaches::kRest;
  want(1);
  EXPECT_EQ(take().objects.size(), 1u);
}

TEST_F(ServerCachesTest, IsNotToldToServersThatDoNotKnowTheRequest) {
  want(1);
  EXPECT_EQ(servers_.ended(take(), Outcome::kUnknown, now_), std::nullopt);
  now_ += ServerCaches::kRest;
  want(1);
  EXPECT_FALSE(servers_.any());
  now_ += ServerCaches::kUnknownRest;
  want(1);
  EXPECT_TRUE(servers_.any());
}

TEST_F(ServerCachesTest, IsToldAgainWhereTheConnectionWasLost) {
  want(2);
  const auto again = servers_.ended(take(), Outcome::kUnreached, now_);
  ASSERT_EQ(again, now_ + ServerCaches::kUnreachedRest);
  EXPECT_TRUE(servers_.take(now_).empty());
  now_ = *again;
  EXPECT_EQ(take().objects.size(), 2u);
}

TEST_F(ServerCachesTest, GoesToTheReplicaThatWillBeRead) {
  for (uint64_t file_id = 1; file_id < 20; ++file_id) {
    servers_.want(file(file_id), view_of_two(file_id), now_);
    const uint32_t usual = usual_place(file_id, 2);
    const auto batch = take();
    EXPECT_EQ(batch.target, 100 + usual);
    ASSERT_EQ(batch.objects.size(), 1u);
    EXPECT_EQ(batch.objects[0].stripe_index, usual == 0 ? 0u : 3u << 8);
    servers_.ended(batch, Outcome::kTaken, now_);
  }
  servers_.is_near(101);
  for (uint64_t file_id = 1; file_id < 20; ++file_id) {
    servers_.want(file(file_id), view_of_two(file_id), now_);
    const auto batch = take();
    EXPECT_EQ(batch.target, 101u) << "it is on this host";
    servers_.ended(batch, Outcome::kTaken, now_);
  }
  servers_.is_near(100);
  for (uint64_t file_id = 1; file_id < 20; ++file_id) {
    servers_.want(file(file_id), view_of_two(file_id), now_);
    const auto batch = take();
    EXPECT_EQ(batch.target, 100 + usual_place(file_id, 2)) << "both are on this host";
    servers_.ended(batch, Outcome::kTaken, now_);
  }
}

TEST_F(ServerCachesTest, IsBounded) {
  want(ServerCaches::kWaitingMax + 10);
  size_t count = 0;
  while (servers_.any()) {
    const auto batch = take();
    count += batch.objects.size();
    servers_.ended(batch, Outcome::kTaken, now_);
  }
  EXPECT_EQ(count, ServerCaches::kWaitingMax);
}

}  // namespace
}  // namespace braidfs::client::prefetch
