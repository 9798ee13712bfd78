// What the cluster map says of a target (link.h): it shortens the patience with a silent
// connection, and ends the backoff of one that is to be made.
#include <fcntl.h>
#include <gtest/gtest.h>

#include "rig.h"

namespace braidfs::client::rig {
namespace {

constexpr uint64_t kFh = Rig::kFh;
using Fault = FakeTarget::Fault;

RigSettings one_target() {
  RigSettings settings;
  settings.targets = 1;
  settings.lanes = 1;
  settings.core.silence_ms_max = 20'000;  // a third of it is more than any of these tests waits
  return settings;
}

// From now on requests are not answered; PINGs are, if so said.
void fall_silent(Rig& rig, bool answers_pings) {
  rig.targets[0]->decide([=](const FrameHeader& header) -> FakeTarget::Decision {
    const bool is_ping = header.op == static_cast<uint8_t>(Op::kPing);
    return is_ping && answers_pings ? FakeTarget::Decision{} : FakeTarget::Decision{Fault::kForget};
  });
}

TEST(Silence, WhatTheMapCallsDownIsProbedAtOnce) {
  Rig rig(one_target());
  rig.open(kFh, O_RDWR, 5000);
  fall_silent(rig, true);
  const uint64_t unique = rig.start_read(kFh, 0, 5000);
  ASSERT_TRUE(eventually([&] { return rig.targets[0]->count(Op::kRead) == 1; }));
  rig.core->target_state(100, false);
  EXPECT_TRUE(eventually([&] { return rig.targets[0]->count(Op::kPing) == 1; }));
  EXPECT_FALSE(rig.replier.wait_for(unique, 100));
  EXPECT_EQ(rig.targets[0]->count(Op::kRead), 1u) << "it answers: nothing is sent again";
  rig.targets[0]->decide({});
  rig.targets[0]->hang_up();
  EXPECT_EQ(rig.replier.wait(unique).bytes, Bytes(5000));
}

TEST(Silence, WhatTheMapCallsDownAndSaysNothingIsLeftSooner) {
  RigSettings settings = one_target();
  settings.core.silence_ms_max = 6'000;
  Rig rig(settings);
  rig.open(kFh, O_RDWR, 5000);
  fall_silent(rig, false);
  const uint64_t unique = rig.start_read(kFh, 0, 5000);
  ASSERT_TRUE(eventually([&] { return rig.targets[0]->count(Op::kRead) == 1; }));
  rig.core->target_state(100, false);
  EXPECT_TRUE(eventually([&] { return rig.targets[0]->count(Op::kRead) >= 2; }))
      << "after 0.6 s, not 1.8";
  rig.targets[0]->decide({});
  rig.targets[0]->hang_up();
  EXPECT_EQ(rig.replier.wait(unique).bytes, Bytes(5000));
}

// Without the word that it is up again the lane would ask after its backoff, of seconds by then.
TEST(Silence, WhatIsUpAgainIsAskedAtOnce) {
  Rig rig(one_target());
  rig.open(kFh, O_RDWR, 5000);
  rig.core->target_state(100, false);
  rig.set_connecting(false);
  const uint64_t unique = rig.start_read(kFh, 0, 5000);
  EXPECT_FALSE(rig.replier.wait_for(unique, 1700)) << "the next try is two seconds away";
  rig.set_connecting(true);
  rig.core->target_state(100, true);
  const auto reply = rig.replier.wait_for(unique, 1000);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->bytes, Bytes(5000));
}

// One of two is still down: so is the node, as far as patience goes.
TEST(Silence, StatesAreOfTargetsAndTheirNodeHasTheWorst) {
  Rig rig(one_target());
  rig.core->target_put(200, 10);
  rig.open(kFh, O_RDWR, 5000);
  rig.core->target_state(100, false);
  rig.core->target_state(200, false);
  rig.core->target_state(200, false);
  rig.core->target_state(100, true);
  rig.core->target_state(9999, false);  // nobody's
  rig.core->target_state(9999, true);
  EXPECT_EQ(rig.read(kFh, 0, 5000).bytes, Bytes(5000));
  rig.core->target_state(200, true);
  EXPECT_EQ(rig.read(kFh, 0, 5000).bytes, Bytes(5000));
}

}  // namespace
}  // namespace braidfs::client::rig
