// Small files that servers are told of before anybody reads them (client/fetch_ahead.h).
#include <fcntl.h>
#include <gtest/gtest.h>

#include "client/fetch_ahead.h"
#include "client/whole_reads.h"
#include "rig.h"

namespace braidfs::client::rig {
namespace {

using Outcome = FetchAhead::Outcome;
using namespace std::chrono_literals;

class Wanted : public ::testing::Test {
 protected:
  static Attributes file(uint64_t size) {
    Attributes attributes;
    attributes.size = size;
    return attributes;
  }
  void want(size_t count) {
    for (size_t number = 0; number < count; ++number) ahead_.want(file(1000), view_, now_);
  }
  FetchAhead::Batch take() {
    auto taken = ahead_.take(now_);
    EXPECT_EQ(taken.size(), 1u);
    return taken.empty() ? FetchAhead::Batch{} : std::move(taken.front());
  }
  uint64_t counter(std::string_view name) const {
    std::vector<std::pair<std::string, uint64_t>> all;
    ahead_.add_counters(all);
    return std::ranges::find(all, name, [](const auto& counter) { return counter.first; })->second;
  }

  static FileView view_on(uint32_t target) {
    FileView view;
    view.file_id = target;
    view.stripe_width = 1;
    view.chunk_size = 1u << 20;
    view.targets = {target};
    return view;
  }

  const FileView view_ = view_on(100);
  const FileView other_ = view_on(101);
  FetchAhead::Clock::time_point now_ = FetchAhead::Clock::now();
  FetchAhead ahead_;
};

TEST_F(Wanted, IsWhatIsSmallAndOfOneObject) {
  EXPECT_TRUE(FetchAhead::is_fit(file(1), view_));
  EXPECT_TRUE(FetchAhead::is_fit(file(limits::kFetchLengthMax), view_));
  EXPECT_FALSE(FetchAhead::is_fit(file(limits::kFetchLengthMax + 1), view_));
  EXPECT_FALSE(FetchAhead::is_fit(file(0), view_));
  FileView narrow = view_;
  narrow.chunk_size = 65536;
  EXPECT_TRUE(FetchAhead::is_fit(file(65536), narrow));
  EXPECT_FALSE(FetchAhead::is_fit(file(65537), narrow));
  FileView held = view_;
  held.inline_bytes = "abc";
  EXPECT_FALSE(FetchAhead::is_fit(file(3), held));
}

TEST_F(Wanted, GoesInOneRequestAtATimeToEachTarget) {
  want(limits::kFetchMax + 3);
  ahead_.want(file(5), other_, now_);
  const auto taken = ahead_.take(now_);
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].objects.size(), limits::kFetchMax);
  EXPECT_EQ(taken[0].objects.front().length, 1000u);
  EXPECT_EQ(taken[1].target, 101u);
  EXPECT_TRUE(ahead_.take(now_).empty()) << "one is under way";
  EXPECT_EQ(ahead_.ended(taken[1], Outcome::kTaken, now_), std::nullopt);
  EXPECT_EQ(ahead_.ended(taken[0], Outcome::kTaken, now_), now_) << "there is more";
  EXPECT_EQ(take().objects.size(), 3u);
  EXPECT_EQ(counter("fetch_ahead_files"), limits::kFetchMax + 1);
  EXPECT_FALSE(ahead_.any());
}

TEST_F(Wanted, IsForgottenWhenNobodyAsksForLong) {
  want(2);
  now_ += FetchAhead::kPatience + 1ms;
  want(1);
  EXPECT_EQ(take().objects.size(), 1u);
}

TEST_F(Wanted, IsForgottenWhereThereIsNoRoom) {
  want(limits::kFetchMax + 1);
  EXPECT_EQ(ahead_.ended(take(), Outcome::kRefused, now_), std::nullopt);
  EXPECT_EQ(counter("fetch_ahead_refused"), limits::kFetchMax + 1);
  want(1);
  EXPECT_FALSE(ahead_.any()) << "the target has its rest";
  now_ += FetchAhead::kRest;
  want(1);
  EXPECT_EQ(take().objects.size(), 1u);
}

TEST_F(Wanted, IsNotToldToServersThatDoNotKnowTheRequest) {
  want(1);
  EXPECT_EQ(ahead_.ended(take(), Outcome::kUnknown, now_), std::nullopt);
  now_ += FetchAhead::kRest;
  want(1);
  EXPECT_FALSE(ahead_.any());
  now_ += FetchAhead::kUnknownRest;
  want(1);
  EXPECT_TRUE(ahead_.any());
}

TEST_F(Wanted, IsToldAgainWhereTheConnectionWasLost) {
  want(2);
  const auto again = ahead_.ended(take(), Outcome::kUnreached, now_);
  ASSERT_EQ(again, now_ + FetchAhead::kUnreachedRest);
  EXPECT_TRUE(ahead_.take(now_).empty());
  now_ = *again;
  EXPECT_EQ(take().objects.size(), 2u);
}

TEST_F(Wanted, IsBounded) {
  want(FetchAhead::kWaitingMax + 10);
  size_t count = 0;
  while (ahead_.any()) {
    const auto batch = take();
    count += batch.objects.size();
    ahead_.ended(batch, Outcome::kTaken, now_);
  }
  EXPECT_EQ(count, FetchAhead::kWaitingMax);
}

class ToldServers : public ::testing::Test {
 protected:
  static constexpr size_t kSize = 50'000;  // one chunk

  ToldServers() {
    rig_.store_and_forget(content_);
    rig_.core->turn_fetch_ahead(true);
  }
  ~ToldServers() override { rig_.core->stop(0); }

  void read_files(size_t length) {
    for (uint64_t fh = 1000; fh <= 1000 + WholeReads::kScoreEnough; ++fh) {
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
    for (size_t file = 0; file < count; ++file) rig_.core->fetch_ahead(*attributes, *view);
    rig_.core->send_fetches();
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
  rig_.core->turn_fetch_ahead(false);
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
