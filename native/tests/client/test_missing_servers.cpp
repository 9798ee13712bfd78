// Since when storage servers have not been there, as all lanes together have found.
#include "client/missing_servers.h"

#include <gtest/gtest.h>

namespace braidfs::client {
namespace {

using std::chrono::seconds;

class Missing : public ::testing::Test {
 protected:
  static constexpr uint32_t kNode = 7;
  static Clock::time_point at(int second) { return Clock::time_point{} + seconds(100 + second); }
  void fails(int began, int ended) {
    servers_.attempt_begins(kNode, at(began));
    servers_.failed(kNode, at(began), at(ended));
    servers_.attempt_ends(kNode);
  }
  MissingServers servers_;
};

TEST_F(Missing, FromTheFirstOfItsFailuresOn) {
  EXPECT_EQ(servers_.since(kNode, at(0)), std::nullopt);
  fails(1, 2);
  fails(4, 4);
  fails(6, 6);
  EXPECT_EQ(servers_.since(kNode, at(8)), at(1));
  EXPECT_EQ(servers_.since(kNode + 1, at(8)), std::nullopt);
}

TEST_F(Missing, SilenceBeganBeforeTheFirstAttempt) {
  fails(5, 6);
  servers_.failed(kNode, at(0), at(7));
  EXPECT_EQ(servers_.since(kNode, at(8)), at(0));
}

TEST_F(Missing, NotWhenNobodyHasTriedForAWhile) {
  fails(1, 2);
  EXPECT_EQ(servers_.since(kNode, at(5)), std::nullopt);
  fails(6, 7);
  EXPECT_EQ(servers_.since(kNode, at(8)), at(6)) << "it may have been there meanwhile";
}

TEST_F(Missing, WhileAnAttemptIsUnderWay) {
  fails(1, 2);
  servers_.attempt_begins(kNode, at(3));
  EXPECT_EQ(servers_.since(kNode, at(30)), at(1));
  servers_.attempt_ends(kNode);
  EXPECT_EQ(servers_.since(kNode, at(30)), std::nullopt);
}

TEST_F(Missing, NotWhenItIsFound) {
  fails(1, 2);
  servers_.found(kNode);
  EXPECT_EQ(servers_.since(kNode, at(2)), std::nullopt);
  fails(3, 4);
  EXPECT_EQ(servers_.since(kNode, at(4)), at(3));
}

TEST_F(Missing, NotForTheTimeInWhichTheProcessDidNotRun) {
  fails(1, 2);
  servers_.excuse(seconds(2), at(4));
  EXPECT_EQ(servers_.since(kNode, at(4)), at(3));
  servers_.excuse(seconds(2), at(4));
  EXPECT_EQ(servers_.since(kNode, at(4)), at(4)) << "never later than now";
}

}  // namespace
}  // namespace braidfs::client
