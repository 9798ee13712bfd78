// Two lanes at once, in every order of one interruption: lane A does so much of its turn as it
// takes to come to its n-th lock, then lane B does all of its own. What each test is about was once
// decided under one lock and relied on under the next.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "stage.h"

namespace braidfs::client::rig {
namespace {

constexpr size_t kBlock = limits::kBlockSize;
constexpr int kLocksMax = 80;  // more than a turn takes

Bytes filled(size_t length, int with) { return Bytes(length, std::byte(with)); }

class Script final : public Stage {
 public:
  explicit Script(uint32_t sync_after_ms = 60'000) : Stage({.sync_after_ms = sync_after_ms}) {}

  using Stage::commits_waiting;
  using Stage::core;
  using Stage::fsync;
  using Stage::read;
  using Stage::resize;
  using Stage::run;
  using Stage::run_turn;
  using Stage::write;

  struct Answer {
    int error = 0;
    Bytes bytes{};
    Bytes durable{};  // what was so of the object, just then
  };
  bool is_answered(uint64_t unique) const { return answers_.contains(unique); }
  const Answer& answer(uint64_t unique) { return answers_[unique]; }
  const Bytes& object() { return target(0).store.objects[{kIno, 0}]; }
  uint64_t held() { return core().memory().account(Buffer::Account::kHeld); }

  bool serve(uint32_t lane) {
    Connection* const from = connection(0, lane);
    return from != nullptr && Stage::serve(target(0), *from);
  }
  bool deliver(uint32_t lane) {
    Connection* const from = connection(0, lane);
    return from != nullptr && Stage::deliver(*from);
  }
  void hang_up() { Stage::hang_up(target(0)); }
  void lose_power() {
    hang_up();
    target(0).store.lose_unsynced();
  }
  void truncate(size_t length, uint32_t epoch) {
    target(0).store.truncate({kIno, 0}, length, epoch);
  }

  // One round of everybody, but of targets only what these lanes are connected to.
  void round(const std::vector<uint32_t>& served) {
    for (uint32_t lane = 0; lane < settings().lanes; ++lane) run_turn(lane);
    python();
    commits_waiting_max = std::max(commits_waiting_max, commits_waiting());
    for (const uint32_t lane : served) {
      serve(lane);
      deliver(lane);
    }
    answer_commit();
    schedule().advance(std::chrono::milliseconds(5));
  }
  bool until(const std::function<bool()>& is_true, const std::vector<uint32_t>& served = {0, 1}) {
    for (int rounds = 0; rounds < 2000 && !is_true(); ++rounds) round(served);
    return is_true();
  }
  // The lane's request is at the target, which has not looked at it.
  void bring(uint32_t lane) {
    for (int rounds = 0; rounds < 20; ++rounds) round({});
    EXPECT_NE(connection(0, lane), nullptr);
  }
  // The same, while the other lane does nothing.
  void bring_only(uint32_t lane) {
    for (int rounds = 0; rounds < 20; ++rounds) {
      run_turn(lane);
      python();
    }
  }
  // The lane is connected, and has seen what the target's incarnation is.
  void look(uint32_t lane, uint64_t unique) {
    read(lane, unique, 0, kBlock);
    ASSERT_TRUE(until([&] { return is_answered(unique); }));
  }
  // An answer lies at the lane, which has not looked at it.
  void look_later(uint32_t lane, uint64_t unique) {
    read(lane, unique, 0, kBlock);
    bring(lane);
    ASSERT_TRUE(serve(lane));
    ASSERT_TRUE(deliver(lane));
  }

  size_t commits_waiting_max = 0;

 private:
  void replied(uint64_t unique, int error, Bytes bytes) noexcept override {
    answers_[unique] = {error, std::move(bytes), target(0).store.durable[{kIno, 0}]};
  }
  std::map<uint64_t, Answer> answers_;
};

// Calls test(locks) for all of them; the lane of a turn is interrupted at each of its locks once.
void at_each_lock(const std::function<void(int locks)>& test) {
  if (!Schedule::works()) GTEST_SKIP() << "a sanitizer owns the mutexes of this build";
  for (int locks = 0; locks < kLocksMax && !testing::Test::HasFailure(); ++locks) {
    SCOPED_TRACE("interrupted at lock " + std::to_string(locks));
    test(locks);
  }
}

void run_locks(Script& script, uint32_t lane, int locks) {
  for (int lock = 0; lock < locks; ++lock) script.run(lane);
}

// What was settled a moment ago is queued again by a loss that another lane sees: a SYNC taken
// after that must not be one of "whatever incarnation", for which the piece is not there.
TEST(Windows, ALossBetweenSettledAndSync) {
  at_each_lock([](int locks) {
    Script script;
    script.look(1, 2);
    script.write(0, 4, 0, filled(kBlock, 7), O_DIRECT);
    ASSERT_TRUE(script.until([&] { return script.held() > 0; }));
    script.lose_power();
    script.look_later(1, 6);
    script.fsync(0, 8);
    run_locks(script, 0, locks);
    script.run_turn(1);
    for (int rounds = 0; rounds < 60 && !script.is_answered(8); ++rounds) script.round({0});
    ASSERT_TRUE(script.until([&] { return script.is_answered(8); }));
    EXPECT_EQ(script.answer(8).error, 0);
    EXPECT_EQ(script.answer(8).durable, filled(kBlock, 7));
  });
}

// A WRITE's answer by the former incarnation is looked at while another lane goes over what was
// lost.
TEST(Windows, AnAcknowledgementWhileALossIsSeenTo) {
  at_each_lock([](int locks) {
    Script script;
    script.write(0, 2, 32 * kBlock, filled(kBlock, 2), O_DIRECT);
    ASSERT_TRUE(
        script.until([&] { return script.held() > 0; }));  // from now on an incarnation is known
    script.write(0, 4, 0, filled(kBlock, 7), O_DIRECT);
    script.bring(0);
    ASSERT_TRUE(script.serve(0));
    ASSERT_TRUE(script.deliver(0));
    script.lose_power();
    script.write(1, 8, 64 * kBlock, filled(kBlock, 1), O_DIRECT);
    script.bring_only(1);
    ASSERT_TRUE(script.serve(1));
    ASSERT_TRUE(script.deliver(1));
    run_locks(script, 1, locks);
    script.run_turn(0);
    script.read(0, 10, 0, kBlock);
    ASSERT_TRUE(script.until([&] { return script.is_answered(10); }));
    EXPECT_EQ(script.answer(10).bytes, filled(kBlock, 7));
    script.fsync(0, 12);
    ASSERT_TRUE(script.until([&] { return script.is_answered(12); }));
    EXPECT_EQ(script.answer(12).error, 0);
    EXPECT_EQ(Bytes(script.answer(12).durable.begin(), script.answer(12).durable.begin() + kBlock),
              filled(kBlock, 7));
  });
}

// A SYNC on its way does not cover an older piece that is acknowledged before its answer comes.
TEST(Windows, AnOlderPieceIsAcknowledgedWhileASyncIsUnderWay) {
  if (!Schedule::works()) GTEST_SKIP() << "a sanitizer owns the mutexes of this build";
  Script script(1);
  script.look(0, 2);
  script.look(1, 4);
  script.write(0, 6, 0, filled(kBlock, 7), O_DIRECT);
  script.write(1, 8, kBlock, filled(kBlock, 8), O_DIRECT);
  script.bring(1);
  ASSERT_TRUE(script.serve(1));
  ASSERT_TRUE(script.deliver(1));
  script.bring(1);  // what is synced after a while
  ASSERT_TRUE(script.serve(1));
  ASSERT_TRUE(script.serve(0));
  ASSERT_TRUE(script.deliver(0));
  script.run_turn(0);
  ASSERT_TRUE(script.deliver(1));
  script.run_turn(1);
  script.lose_power();
  script.fsync(0, 10);
  ASSERT_TRUE(script.until([&] { return script.is_answered(10); }));
  EXPECT_EQ(script.answer(10).error, 0);
  Bytes both = filled(kBlock, 7);
  both.resize(2 * kBlock, std::byte{8});
  EXPECT_EQ(script.answer(10).durable, both);
}

// What was overwritten whole is forgotten; if the target loses what overwrote it, an fsync of
// before waits for that.
TEST(Windows, WhatOverwroteItIsLost) {
  if (!Schedule::works()) GTEST_SKIP() << "a sanitizer owns the mutexes of this build";
  Script script;
  script.write(1, 2, kBlock, filled(kBlock, 6), O_DIRECT);
  script.bring(1);  // there it stays for the time being
  script.write(0, 4, 0, filled(kBlock, 7), O_DIRECT);
  ASSERT_TRUE(script.until([&] { return script.held() > 0; }, {0}));
  script.fsync(1, 6);  // of both
  script.bring(1);
  const uint64_t held = script.held();
  script.write(0, 8, 0, filled(kBlock, 8), O_DIRECT);
  script.bring(0);
  ASSERT_TRUE(script.serve(0));
  ASSERT_TRUE(script.deliver(0));
  script.run_turn(0);
  ASSERT_EQ(script.held(), held) << "it took the place of the first one";
  script.lose_power();
  ASSERT_TRUE(script.until([&] { return script.is_answered(6); }, {1}));
  EXPECT_EQ(script.answer(6).error, 0);
  Bytes all = filled(kBlock, 8);
  all.resize(2 * kBlock, std::byte{6});
  EXPECT_EQ(script.answer(6).durable, all);
}

TEST(Windows, OneCommitAtATime) {
  at_each_lock([](int locks) {
    Script script;
    script.write(0, 2, 0, filled(kBlock, 7), O_DIRECT);
    ASSERT_TRUE(script.until([&] { return script.held() > 0; }));
    script.fsync(0, 4);
    script.bring(0);
    script.serve(0);
    script.deliver(0);
    script.fsync(1, 6);
    run_locks(script, 0, locks);
    script.run_turn(1);
    ASSERT_TRUE(script.until([&] { return script.is_answered(4) && script.is_answered(6); }));
    EXPECT_EQ(script.commits_waiting_max, 1u);
  });
}

// ---- what is cut off while its WRITE is on its way ----

TEST(Windows, AWriteThatIsSentAgainBringsNothingBackThatWasCutOff) {
  if (!Schedule::works()) GTEST_SKIP() << "a sanitizer owns the mutexes of this build";
  Script script;
  script.look(0, 2);
  script.write(0, 4, 0, filled(3 * kBlock, 7), O_DIRECT);
  script.bring(0);
  script.hang_up();  // nobody knows whether it came
  script.truncate(kBlock, 1);
  script.resize(kBlock, 1);
  script.fsync(0, 6);
  ASSERT_TRUE(script.until([&] { return script.is_answered(6); }));
  EXPECT_EQ(script.answer(6).error, 0);
  EXPECT_EQ(script.answer(6).durable, filled(kBlock, 7));
  EXPECT_EQ(script.object(), filled(kBlock, 7));
}

TEST(Windows, ALateAcknowledgementBringsNothingBackEither) {
  Script script;
  script.look(0, 2);
  script.write(0, 4, 0, filled(3 * kBlock, 7), O_DIRECT);
  script.bring(0);
  ASSERT_TRUE(script.serve(0));
  script.truncate(kBlock, 1);
  script.resize(kBlock, 1);
  ASSERT_TRUE(script.deliver(0));
  script.run_turn(0);
  ASSERT_GT(script.held(), 0u);
  script.lose_power();
  script.fsync(0, 6);
  ASSERT_TRUE(script.until([&] { return script.is_answered(6); }));
  EXPECT_EQ(script.answer(6).error, 0);
  EXPECT_EQ(script.object(), filled(kBlock, 7));
}

// A WRITE whose piece never left, since it had to wait for another one's end, is answered as well.
TEST(Windows, WhoWaitsForAPieceThatIsGivenUpIsTold) {
  Script script;
  script.look(0, 2);
  script.write(0, 4, 0, filled(kBlock, 7), O_DIRECT);
  script.write(1, 6, 0, filled(kBlock, 8), O_DSYNC);
  script.bring(0);
  EXPECT_FALSE(script.is_answered(6));
  EXPECT_TRUE(script.core().inode_lost(Stage::kIno));
  ASSERT_TRUE(script.until([&] { return script.is_answered(6); }, {}));
  EXPECT_EQ(script.answer(6).error, EIO);
}

}  // namespace
}  // namespace braidfs::client::rig
