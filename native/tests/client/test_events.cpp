// When Python is told: at once, or a little later of what nobody waits for.
#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>

#include "client/events.h"

namespace braidfs::client {
namespace {

bool readable(const EventQueue& queue, std::chrono::milliseconds within) {
  pollfd one{.fd = queue.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&one, 1, static_cast<int>(within.count())) == 1;
}

constexpr std::chrono::milliseconds kNow{0};
constexpr std::chrono::milliseconds kSoon{5000};

TEST(EventQueue, WhatSomebodyWaitsForIsToldAtOnce) {
  EventQueue queue;
  EXPECT_FALSE(readable(queue, kNow));
  queue.put({.kind = EventKind::kCommit, .token = 7});
  EXPECT_TRUE(readable(queue, kNow));
  queue.put({.kind = EventKind::kRelease});
  EXPECT_EQ(queue.reap(1).at(0).token, 7u);
  EXPECT_TRUE(readable(queue, kNow)) << "there is more";
  EXPECT_EQ(queue.reap(10).size(), 1u);
  EXPECT_FALSE(readable(queue, kNow));
}

TEST(EventQueue, WhatNobodyWaitsForIsToldALittleLater) {
  EventQueue queue;
  for (const EventKind kind : {EventKind::kRelease, EventKind::kChangesWait}) {
    const auto began = std::chrono::steady_clock::now();
    queue.put({.kind = kind});
    EXPECT_TRUE(readable(queue, kSoon));
    EXPECT_GE(std::chrono::steady_clock::now() - began, EventQueue::kPatience);
    EXPECT_EQ(queue.reap(10).size(), 1u);
    EXPECT_FALSE(readable(queue, kNow));
  }
}

TEST(EventQueue, ItIsToldTogetherWithWhatSomebodyWaitsFor) {
  EventQueue queue;
  queue.put({.kind = EventKind::kRelease});
  queue.put({.kind = EventKind::kDone});
  EXPECT_TRUE(readable(queue, kNow));
  const auto both = queue.reap(10);
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0].kind, EventKind::kRelease) << "in order";
  EXPECT_FALSE(readable(queue, 2 * EventQueue::kPatience)) << "its timer is off";
}

TEST(EventQueue, WhatIsTakenBeforeItIsToldIsNotToldAgain) {
  EventQueue queue;
  queue.put({.kind = EventKind::kRelease});
  EXPECT_EQ(queue.reap(10).size(), 1u);
  EXPECT_FALSE(readable(queue, 2 * EventQueue::kPatience));
  queue.put({.kind = EventKind::kRelease});
  EXPECT_TRUE(readable(queue, kSoon));
}

}  // namespace
}  // namespace braidfs::client
