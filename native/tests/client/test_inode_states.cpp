// The states of an inode (inode_states.h): which steps between them its methods take.
#include <gtest/gtest.h>

#include "client/inode.h"
#include "client/tables.h"

namespace braidfs::client {
namespace {

TEST(InodeStates, OneThatIsOutOfTheTableIsNeverNeededAgain) {
  Inode inode(7);
  inode.set_dropped(true);
  EXPECT_EQ(inode.lifetime, Lifetime::kDropped);
  inode.set_dropped(false);
  EXPECT_EQ(inode.lifetime, Lifetime::kKnown);
  inode.lifetime = Lifetime::kGone;
  for (const bool is_dropped : {true, false}) {
    inode.set_dropped(is_dropped);
    EXPECT_EQ(inode.lifetime, Lifetime::kGone);
  }
}

TEST(InodeStates, BytesThatAreHandedOverStayInTheRecordWhenTheFileIsReportedMeanwhile) {
  struct Step {
    Inlining before;
    Inlining after;
    bool is_handing_over;
  };
  for (const Step& step :
       {Step{Inlining::kNo, Inlining::kNo, false}, Step{Inlining::kPossible, Inlining::kNo, false},
        Step{Inlining::kHandingOver, Inlining::kReportedMeanwhile, true},
        Step{Inlining::kReportedMeanwhile, Inlining::kReportedMeanwhile, true}}) {
    Inode inode(7);
    inode.inlining = step.before;
    inode.end_inlining();
    EXPECT_EQ(inode.inlining, step.after);
    EXPECT_EQ(inode.is_handing_over(), step.is_handing_over);
    EXPECT_TRUE(inode.may_have_set_ids()) << "others may have set some, once the file is known";
  }
}

TEST(InodeStates, NobodyElseSetsIdsOfAFileThatIsNotReported) {
  Inode inode(7);
  for (const Inlining inlining : {Inlining::kPossible, Inlining::kHandingOver}) {
    inode.inlining = inlining;
    EXPECT_FALSE(inode.may_have_set_ids());
  }
}

TEST(InodeStates, ALeaseRequestIsUnderWayUntilItIsAnswered) {
  Inode inode(7);
  EXPECT_FALSE(inode.asking.is_under_way());
  ++inode.asking.begun;
  EXPECT_TRUE(inode.asking.is_under_way());
  inode.asking.ended = inode.asking.begun;
  EXPECT_FALSE(inode.asking.is_under_way());
}

// Only handles of kept and granted files are counted as local ones: a file that a lane created is
// known to Python from when it takes that delegated change.
TEST(InodeStates, HandlesAreLocalWhereALaneOpenedAFileOfSomebodyElse) {
  const auto is_local = [](LocalOpen why) {
    Handle handle;
    handle.local_open = why;
    return handle.is_local();
  };
  EXPECT_FALSE(is_local(LocalOpen::kNone));
  EXPECT_TRUE(is_local(LocalOpen::kKept));
  EXPECT_TRUE(is_local(LocalOpen::kGranted));
  EXPECT_FALSE(is_local(LocalOpen::kCreated));
}

}  // namespace
}  // namespace braidfs::client
