// Names that were dropped, objects of replicas, and epochs that were raised.

#include "peer.h"

namespace braidfs::server {
namespace {

constexpr uint32_t kCopied = object_number(0, 1);  // a replica that was made later

class DroppedNamesOfTargets : public ServerTest {
 protected:
  // The same frame for another object of the file, without a capability.
  static Frame of_object(Frame frame, uint32_t object, uint32_t epoch = 0) {
    frame.header.stripe_index = object;
    frame.header.epoch = epoch;
    return frame.seal();
  }
  static Frame bare_copy(uint32_t from, uint32_t to) {
    Frame frame = request(Op::kCopy);
    frame.header.length = 4096;
    frame.header.stripe_index = to;
    const CopySource source{.file_id = kFile, .stripe_index = from, .target = kTarget};
    const auto named = std::as_bytes(std::span(&source, 1));
    frame.body.assign(named.begin(), named.end());
    return frame.seal();
  }
  static Frame bare(Op op, uint32_t length = 0) {
    Frame frame = request(op);
    frame.header.length = length;
    return frame;
  }
  // Each request that names an object, and that a dropped one refuses.
  static std::vector<Frame> all_of(uint32_t object) {
    return {of_object(bare_write(0, pattern(100)), object),
            of_object(bare(Op::kRead, 100), object),
            of_object(bare(Op::kSync), object),
            of_object(bare(Op::kPunch, 4096), object),
            of_object(bare(Op::kSeek), object),
            of_object(bare(Op::kTruncate), object, 9),
            of_object(bare(Op::kRaiseEpoch), object, 9)};
  }
};

TEST_F(DroppedNamesOfTargets, OnlyWhatWasNamedIsRefused) {
  Peer metaserver = connect_metaserver();
  Peer client = connect();
  for (const uint32_t object : {0u, kCopied, 1u}) {
    const Frame write = of_object(bare_write(0, pattern(8192)), object);
    ASSERT_EQ(metaserver.status_of(write), Status::kOk);
  }
  ASSERT_EQ(metaserver.status_of(drop_names({{kFile, kCopied}, {kFile + 1, 0}})), Status::kOk);
  for (const Frame& frame : all_of(kCopied)) {
    EXPECT_EQ(metaserver.status_of(frame), Status::kDropped) << int{frame.header.op};
  }
  EXPECT_EQ(metaserver.status_of(bare_copy(kCopied, 2)), Status::kDropped);
  EXPECT_EQ(metaserver.status_of(bare_copy(0, kCopied)), Status::kDropped);
  EXPECT_EQ(metaserver.status_of(bare_copy(0, 2)), Status::kOk);
  for (const Frame& frame : all_of(1)) {
    EXPECT_EQ(metaserver.status_of(frame), Status::kOk) << int{frame.header.op};
  }
  EXPECT_TRUE(client.ask(read(0, 8192)).payload == pattern(8192));
  EXPECT_EQ(client.status_of(write(0, pattern(100), kFile + 1)), Status::kDropped);
  EXPECT_EQ(client.status_of(read(0, 100, kFile + 1)), Status::kDropped);
  EXPECT_EQ(metaserver.status_of(of_object(bare(Op::kStat), kCopied)), Status::kOk);
  EXPECT_EQ(metaserver.status_of(of_object(bare(Op::kDelete), kCopied)), Status::kOk);
  EXPECT_EQ(metaserver.status_of(of_object(bare(Op::kStat), kCopied)), Status::kNoObject);
  EXPECT_EQ(counter("name_drops"), 1u);
}

TEST_F(DroppedNamesOfTargets, ADroppedObjectIsNotFetchedAhead) {
  Peer client = connect();
  Peer metaserver = connect_metaserver();
  for (const uint64_t file : {kFile, kFile + 1}) {
    ASSERT_EQ(client.status_of(write(0, pattern(8192), file)), Status::kOk);
  }
  ASSERT_EQ(metaserver.status_of(drop_names({{kFile, 0}})), Status::kOk);
  EXPECT_EQ(client.status_of(fetch({{kFile, 8192}, {kFile + 1, 4096}})), Status::kOk);
  ASSERT_TRUE(eventually([&] { return counter("fetched_objects") >= 1; }));
  EXPECT_EQ(counter("fetched_bytes"), 4096u) << "the other one would come first";
}

TEST_F(DroppedNamesOfTargets, AreHeardBeforeThereIsASessionTable) {
  launch({.lane_count = 1, .io = IoEngine::kSyscall}, false);
  Peer metaserver = connect_metaserver();
  EXPECT_EQ(metaserver.status_of(of_object(bare(Op::kRaiseEpoch), 0, 1)), Status::kNotReady);
  EXPECT_EQ(metaserver.status_of(drop_names({{kFile, 0}})), Status::kOk);
  const store::ObjectId other{kFile + 1, 0};
  EXPECT_TRUE(server_->drop_names(kTarget, {&other, 1}));
  EXPECT_FALSE(server_->drop_names(kTarget + 1, {&other, 1}));
  server_->sessions(std::array{kSession});
  Peer client = connect();
  EXPECT_EQ(client.status_of(read(0, 100)), Status::kDropped);
  EXPECT_EQ(client.status_of(read(0, 100, kFile + 1)), Status::kDropped);
  EXPECT_EQ(client.status_of(read(0, 100, kFile + 2)), Status::kOk);
}

TEST_F(DroppedNamesOfTargets, ATargetThatHasLeftTheClusterServesNobody) {
  Peer client = connect();
  ASSERT_EQ(client.status_of(write(0, pattern(100))), Status::kOk);
  EXPECT_FALSE(server_->target_retire(kTarget + 1));
  EXPECT_TRUE(server_->target_retire(kTarget));
  EXPECT_EQ(client.status_of(read(0, 100)), Status::kDropped);
  EXPECT_EQ(client.status_of(write(0, pattern(100), kFile + 1)), Status::kDropped);
  const store::ObjectId name{kFile, 0};
  EXPECT_TRUE(server_->drop_names(kTarget, {&name, 1}));
}

TEST_F(DroppedNamesOfTargets, ALateCopyDoesNotMakeADeletedReplicaAgain) {
  Peer metaserver = connect_metaserver();
  for (const bool all : {false, true}) {
    const uint32_t object = object_number(0, all ? 2 : 1);
    const Frame write = of_object(bare_write(0, pattern(100)), object);
    ASSERT_EQ(metaserver.status_of(write), Status::kOk);
    const Frame one = of_object(bare(Op::kDelete), object);
    ASSERT_EQ(metaserver.status_of(all ? delete_all({{kFile, object}}) : one), Status::kOk);
    for (const Frame& frame : all_of(object)) {
      EXPECT_EQ(metaserver.status_of(frame), Status::kDropped) << int{frame.header.op};
    }
  }
  EXPECT_EQ(metaserver.status_of(of_object(bare(Op::kDelete), 0)), Status::kOk);
  EXPECT_EQ(metaserver.status_of(of_object(bare(Op::kRead, 100), 0)), Status::kOk) << "a hole";
  server_->stop(1000);
  for (const net::UniqueFd& file : object_files()) FAIL() << "an object is left: " << file.get();
}

TEST_F(DroppedNamesOfTargets, ARaisedEpochRefusesWhatWasSentBefore) {
  Peer metaserver = connect_metaserver();
  ASSERT_EQ(metaserver.status_of(of_object(bare_write(0, pattern(9000)), 0, 3)), Status::kOk);
  const Reply raised = metaserver.ask(of_object(bare(Op::kRaiseEpoch), 0, 7));
  EXPECT_EQ(raised.status(), Status::kOk);
  EXPECT_EQ(raised.header.offset, 1u) << "the incarnation";
  EXPECT_EQ(metaserver.status_of(of_object(bare(Op::kRaiseEpoch), 0, 5)), Status::kOk);
  EXPECT_EQ(metaserver.status_of(of_object(bare(Op::kRaiseEpoch), 0, 7)), Status::kOk);
  const auto refused = {bare_write(0, pattern(100)), bare(Op::kSync), bare(Op::kPunch, 4096),
                        bare(Op::kSeek)};
  for (const Frame& frame : refused) {
    EXPECT_EQ(metaserver.status_of(of_object(frame, 0, 6)), Status::kStaleTruncateEpoch)
        << int{frame.header.op};
    EXPECT_EQ(metaserver.status_of(of_object(frame, 0, 7)), Status::kOk) << int{frame.header.op};
  }
  EXPECT_EQ(counter("epoch_raises"), 3u);
  Frame lost = of_object(bare(Op::kRaiseEpoch), 1, 4);
  lost.header.flags = kFlagMustExist;
  EXPECT_EQ(metaserver.status_of(lost.seal()), Status::kNoObject);
  EXPECT_EQ(metaserver.status_of(of_object(bare(Op::kRaiseEpoch), 1, 4)), Status::kOk);
  EXPECT_EQ(metaserver.status_of(of_object(bare_write(0, pattern(100)), 1, 3)),
            Status::kStaleTruncateEpoch)
      << "a missing object was made";
}

TEST_F(DroppedNamesOfTargets, ClientsMayNotDropOrRaise) {
  Peer first = connect();
  EXPECT_EQ(first.status_of(drop_names({{kFile, 0}})), Status::kBadRequest);
  EXPECT_TRUE(first.ends());
  Peer second = connect();
  EXPECT_EQ(second.status_of(of_object(bare(Op::kRaiseEpoch), 0, 1)), Status::kBadRequest);
  EXPECT_TRUE(second.ends());
}

TEST_F(DroppedNamesOfTargets, DropOfNothingOfTooManyOrOfWhatCannotBe) {
  const std::vector<ObjectName> most(limits::kDropNamesMax, {kFile, kCopied});
  Peer good = connect_metaserver();
  EXPECT_EQ(good.status_of(drop_names(most)), Status::kOk);
  EXPECT_EQ(good.status_of(drop_names({{kFile, limits::kStripeWidthMax}})), Status::kBadRequest);
  EXPECT_EQ(good.status_of(drop_names({{kFile, 0, 1}})), Status::kBadRequest);
  std::vector<ObjectName> more = most;
  more.push_back({kFile, 0});
  for (const Frame& frame : {drop_names({}), drop_names(more)}) {
    Peer peer = connect_metaserver();
    EXPECT_EQ(peer.status_of(frame), Status::kBadRequest);
    EXPECT_TRUE(peer.ends());
  }
}

TEST(DroppedNames, DeletedOnesAreForgottenInTheEndAndDroppedOnesAreNot) {
  DroppedNames names;
  const store::ObjectId dropped{1, 0};
  const store::ObjectId deleted{2, object_number(0, 1)};
  EXPECT_FALSE(names.has(dropped));
  names.deleted({3, 0});
  EXPECT_EQ(names.count(), 0u) << "the file is gone, nobody makes it again";
  EXPECT_TRUE(names.drop({&dropped, 1}));
  names.deleted(deleted);
  names.deleted(deleted);
  EXPECT_TRUE(names.has(deleted));
  for (uint64_t file = 10; file < 10 + DroppedNames::kDeletedMax; ++file) {
    names.deleted({file, object_number(1, 2)});
  }
  EXPECT_FALSE(names.has(deleted));
  EXPECT_TRUE(names.has(dropped));
  EXPECT_TRUE(names.has({10, object_number(1, 2)}));
  EXPECT_EQ(names.count(), DroppedNames::kDeletedMax + 1);
  names.deleted(dropped);
  EXPECT_TRUE(names.has(dropped));
  EXPECT_FALSE(names.has({10, object_number(1, 2)}));
}

TEST(DroppedNames, AreBounded) {
  DroppedNames names;
  std::vector<store::ObjectId> many;
  for (uint64_t file = 0; file < DroppedNames::kNamesMax; ++file) many.push_back({file, 0});
  EXPECT_TRUE(names.drop(many));
  EXPECT_TRUE(names.drop(many)) << "they are known";
  const store::ObjectId one{DroppedNames::kNamesMax, 0};
  EXPECT_FALSE(names.drop({&one, 1}));
  EXPECT_FALSE(names.has(one));
}

}  // namespace
}  // namespace braidfs::server
