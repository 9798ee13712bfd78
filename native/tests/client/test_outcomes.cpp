// What statuses mean (outcomes.h): the table as a whole, and every number that a server could send
// for every kind of call at every moment. A server may be hostile: nothing hangs, no success is
// made up.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <vector>

#include "client/outcomes.h"
#include "rig.h"

namespace braidfs::client::rig {
namespace {

constexpr uint64_t kFh = Rig::kFh;
constexpr std::array kOps{Op::kRead, Op::kSeek, Op::kWrite, Op::kPunch, Op::kCopy, Op::kSync};
constexpr uint32_t kNumbers = 1u << 16;  // that the wire has room for

static_assert(outcome_of(Op::kWrite, Status::kEnospc) == Outcome::kTell);
static_assert(outcome_of(Op::kRead, Status::kEnospc) == Outcome::kFail);
static_assert(outcome_of(Op::kSync, Status::kStaleIncarnation) == Outcome::kTell);
static_assert(outcome_of(Op::kWrite, Status::kNoObject) == Outcome::kFail);
static_assert(outcome_of(Op::kPunch, Status::kNotReady) == Outcome::kAgain);

TEST(Outcomes, OnlySuccessIsASuccessAndNoErrnoIsMadeUp) {
  constexpr std::array kShown{EIO, ENOSPC, EFBIG, EROFS, EOPNOTSUPP};
  for (const Op op : kOps) {
    for (uint32_t number = 1; number < kNumbers; ++number) {
      const auto status = static_cast<Status>(number);
      if (outcome_of(op, status) != Outcome::kTell) continue;
      EXPECT_TRUE(std::ranges::count(kShown, errno_of(status)))
          << number << " of op " << static_cast<int>(op);
    }
  }
}

// fscommon/errors.py says what may be asked again for everybody; tests/wire compares that with
// status.h.
TEST(Outcomes, WhatIsSafeToAskAgainIsAskedAgain) {
  for (const Op op : kOps) {
    for (uint32_t number = 0; number < kNumbers; ++number) {
      const auto status = static_cast<Status>(number);
      const Outcome outcome = outcome_of(op, status);
      const bool again = outcome == Outcome::kAgain || outcome == Outcome::kRenew;
      const bool by_view = status == Status::kStaleTruncateEpoch || status == Status::kDropped;
      EXPECT_EQ(again, retry_is_safe(status) || by_view) << number;
    }
  }
}

// ---- a server that says it ----

FakeTarget::Decide says(Op op, uint16_t number, int times) {
  auto left = std::make_shared<int>(times);
  return [=](const FrameHeader& header) -> FakeTarget::Decision {
    if (header.op != static_cast<uint8_t>(op) || *left <= 0) return {};
    --*left;
    return {FakeTarget::Fault::kStatus, static_cast<Status>(number)};
  };
}

std::vector<uint16_t> numbers_to_try() {
  std::vector<uint16_t> numbers{1, 2, 3, 500, 512, 999, 1015, 1016, 2000, 32767, 32768, 65535};
  for (uint16_t number = 4; number < 40; ++number) numbers.push_back(number);
  for (const uint16_t number : {95, 110, 122}) numbers.push_back(number);
  for (uint16_t number = 1000; number <= 1014; ++number) numbers.push_back(number);
  return numbers;
}

RigSettings impatient() {
  RigSettings settings;
  settings.core.timeout_ms = 400;
  settings.targets = 1;
  return settings;
}

bool heals(Op op, uint16_t number) {
  const Outcome outcome = outcome_of(op, static_cast<Status>(number));
  return outcome == Outcome::kAgain || outcome == Outcome::kRenew;
}

TEST(Outcomes, ARefusedWriteIsToldOrMadeGood) {
  Rig rig(impatient());
  rig.open(kFh, O_RDWR);
  uint32_t seed = 0;
  for (const uint16_t number : numbers_to_try()) {
    const Bytes bytes = pattern(5000, ++seed);
    rig.targets[0]->decide(says(Op::kWrite, number, 1));
    const Reply reply = rig.write(kFh, 0, bytes, O_DIRECT | O_DSYNC);
    EXPECT_EQ(reply.error == 0, heals(Op::kWrite, number)) << number;
    if (reply.error == 0) {
      EXPECT_EQ(rig.file(5000, true), bytes) << number;
    }
    (void)rig.fsync(kFh);
  }
}

TEST(Outcomes, ARefusedSyncIsNoSuccessUnlessItIsMadeGood) {
  Rig rig(impatient());
  rig.open(kFh, O_RDWR);
  uint32_t seed = 0;
  for (const uint16_t number : numbers_to_try()) {
    const Bytes bytes = pattern(5000, ++seed);
    ASSERT_EQ(rig.write(kFh, 0, bytes).count, bytes.size()) << number;
    rig.targets[0]->decide(says(Op::kSync, number, 1));
    const int error = rig.fsync(kFh);
    if (error == 0) {
      EXPECT_EQ(rig.file(5000, true), bytes) << number;
    }
    const bool goes_again =
        heals(Op::kSync, number) || static_cast<Status>(number) == Status::kStaleIncarnation;
    EXPECT_EQ(error == 0, goes_again) << number;
    (void)rig.fsync(kFh);
  }
}

TEST(Outcomes, ARefusedReadGivesNoOtherBytes) {
  Rig rig(impatient());
  const Bytes bytes = pattern(5000, 3);
  rig.targets[0]->put_object(Rig::kIno, 0, bytes);
  rig.open(kFh, O_RDWR, bytes.size(), 1);
  for (const uint16_t number : numbers_to_try()) {
    rig.targets[0]->decide(says(Op::kRead, number, 1));
    const Reply reply = rig.read(kFh, 0, 5000);
    EXPECT_EQ(reply.error == 0, heals(Op::kRead, number)) << number;
    if (reply.error == 0) {
      EXPECT_EQ(reply.bytes, bytes) << number;
    }
  }
}

TEST(Outcomes, WhoNeverStopsToRefuseIsGivenUp) {
  for (const Status status : {Status::kBusy, Status::kBadCapability, Status::kStaleTruncateEpoch,
                              Status::kStaleIncarnation, Status::kChecksum}) {
    RigSettings settings = impatient();
    settings.core.timeout_ms = 100;
    Rig rig(settings);
    rig.open(kFh, O_RDWR);
    rig.targets[0]->decide([=](const FrameHeader&) -> FakeTarget::Decision {
      return {FakeTarget::Fault::kStatus, status};
    });
    EXPECT_EQ(rig.write(kFh, 0, pattern(100, 1), O_DSYNC | O_DIRECT).error, EIO)
        << static_cast<int>(status);
    EXPECT_EQ(rig.drain(true), 0) << "nothing is left to be sent";
  }
}

// Any status, at any moment, for anything: a seed's worth.
TEST(Outcomes, AServerThatAnswersAnythingCannotMakeASuccess) {
  constexpr uint32_t kSeeds = 3;
  const std::vector<uint16_t> numbers = numbers_to_try();
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    Rig rig(impatient());
    rig.open(kFh, O_RDWR);
    auto random = std::make_shared<std::minstd_rand>(seed);
    rig.targets[0]->decide([=](const FrameHeader&) -> FakeTarget::Decision {
      if ((*random)() % 2 == 0) return {};
      return {FakeTarget::Fault::kStatus,
              static_cast<Status>(numbers[(*random)() % numbers.size()])};
    });
    Bytes last;
    for (uint32_t round = 0; round < 12; ++round) {
      const Bytes bytes = pattern(3000, seed * 100 + round);
      const bool is_written = rig.write(kFh, 0, bytes, round % 2 == 0 ? O_DIRECT : 0).error == 0;
      const bool is_synced = rig.fsync(kFh) == 0;
      if (is_written && is_synced) {
        EXPECT_EQ(rig.file(3000, true), bytes) << "seed " << seed;
      }
      const Reply reply = rig.read(kFh, 0, 3000);
      if (is_written && is_synced && reply.error == 0) {
        EXPECT_EQ(reply.bytes, bytes) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace braidfs::client::rig
