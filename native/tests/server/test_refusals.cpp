// What a storage server does not accept: each limit, each forged or missing proof.
#include "peer.h"

namespace braidfs::server {
namespace {

class Refusals : public ServerTest {
 protected:
  // The peer broke the protocol: at most it gets an error, and it is disconnected.
  void expect_cut(const Frame& frame, Purpose purpose = Purpose::kData) {
    Peer peer = connect(purpose == Purpose::kData ? kSession : 0, 0, purpose);
    peer.send(frame);
    EXPECT_TRUE(peer.ends());
    Peer other = connect();
    EXPECT_EQ(other.status_of(plain(Op::kPing)), Status::kOk) << "others are not harmed";
  }
  void expect_bad_request(const Frame& frame, Purpose purpose = Purpose::kData) {
    Peer peer = connect(purpose == Purpose::kData ? kSession : 0, 0, purpose);
    EXPECT_EQ(peer.status_of(frame), Status::kBadRequest);
    EXPECT_TRUE(peer.ends());
  }
};

TEST_F(Refusals, WrongMagicVersionOrChecksum) {
  for (const size_t at : {0, 4, 20, 72}) {
    Peer peer = connect();
    Bytes raw = plain(Op::kPing).raw();
    raw[at] ^= std::byte{1};
    peer.send(raw);
    EXPECT_TRUE(peer.ends()) << "byte " << at;
  }
}

TEST_F(Refusals, UnknownOp) {
  Frame frame = plain(Op::kPing);
  frame.header.op = 64;  // LOOKUP is no data operation
  expect_bad_request(frame.seal());
}

TEST_F(Refusals, UnknownFlag) {
  Frame frame = plain(Op::kPing);
  frame.header.flags = 0x8000;
  expect_cut(frame.seal());
}

TEST_F(Refusals, FlagsThatDoNotFitTheOp) {
  for (const uint16_t flag : {kFlagReply, kFlagReplay, kFlagOneway, kFlagSums, kFlagMustExist}) {
    Frame frame = plain(Op::kPing);
    frame.header.flags = flag;
    expect_bad_request(frame.seal());
  }
}

TEST_F(Refusals, BodyOverTheLimit) {
  Frame frame = plain(Op::kRead);
  frame.header.body_length = limits::kFrameBodyLengthMax;
  braidfs::seal(frame.header);
  expect_cut(frame);
}

TEST_F(Refusals, PayloadOverTheLimit) {
  Frame frame = write(0, pattern(4096));
  frame.header.payload_length = limits::kFramePayloadLengthMax + 1;
  braidfs::seal(frame.header);
  expect_cut(frame);
}

TEST_F(Refusals, PayloadOnAReadIsNotReceived) {
  Frame frame = read(0, 4096);
  frame.payload = pattern(4096);
  expect_bad_request(frame.seal());
}

TEST_F(Refusals, WriteWhoseLengthIsNotItsPayloads) {
  Frame frame = write(0, pattern(4096));
  frame.header.length = 8192;
  expect_bad_request(frame.seal());
}

TEST_F(Refusals, WriteWithTooFewOrTooManySums) {
  Frame few = write(0, pattern(8192));
  few.body.resize(few.body.size() - 8);
  expect_bad_request(few.seal());
  Frame many = write(0, pattern(8192));
  many.body.resize(many.body.size() + 8);
  expect_bad_request(many.seal());
}

TEST_F(Refusals, EmptyRanges) {
  expect_bad_request(read(0, 0));
  expect_bad_request(write(0, {}));
  expect_bad_request(ranged(Op::kPunch, 0, 0));
}

TEST_F(Refusals, CopiesOfNoWholeBlocksOrWithoutASource) {
  expect_bad_request(copy(0, 100, 4096, kFile + 1));
  expect_bad_request(copy(0, 0, 5000, kFile + 1));
  expect_bad_request(copy(0, 0, 0, kFile + 1));
  expect_bad_request(ranged(Op::kCopy, 0, 4096));
  Frame frame = copy(0, 0, 4096, kFile + 1);
  frame.body.pop_back();
  expect_bad_request(frame.seal());
}

TEST_F(Refusals, ReadOverThePayloadLimit) {
  expect_bad_request(read(0, limits::kFramePayloadLengthMax + 1));
}

TEST_F(Refusals, RangesThatOverflow) {
  expect_bad_request(read(UINT64_MAX - 100, 4096));
  expect_bad_request(read(static_cast<uint64_t>(INT64_MAX) - 100, 4096));
  expect_bad_request(write(UINT64_MAX - 10, pattern(100)));
  Frame truncate = request(Op::kTruncate);
  truncate.header.offset = UINT64_MAX;
  expect_bad_request(truncate.seal(), Purpose::kServer);
}

TEST_F(Refusals, StripeIndexOverTheLimit) {
  Frame frame = read(0, 4096);
  frame.header.stripe_index = limits::kStripeWidthMax;
  expect_bad_request(frame.seal());
}

TEST_F(Refusals, DamagedBody) {
  Frame frame = read(0, 4096);
  frame.body[0] ^= std::byte{1};
  expect_cut(frame);
}

TEST_F(Refusals, MetaserverOpsFromAClient) {
  for (const Op op : {Op::kTruncate, Op::kDelete, Op::kFence}) expect_bad_request(plain(op));
  expect_bad_request(delete_all({{kFile, 0}}));
}

TEST_F(Refusals, DeleteAllOfNothingOfTooManyOrOfTooFewNames) {
  expect_bad_request(delete_all({}), Purpose::kServer);
  expect_bad_request(delete_all(std::vector<ObjectName>(limits::kDeleteAllMax + 1, {kFile, 0})),
                     Purpose::kServer);
  Frame frame = delete_all({{kFile, 0}});
  frame.header.length = 2;
  expect_bad_request(frame.seal(), Purpose::kServer);
}

TEST_F(Refusals, DeleteAllOfAStripeThatCannotBe) {
  Peer metaserver = connect_metaserver();
  const Frame frame = delete_all({{kFile, 0}, {kFile, limits::kStripeWidthMax}});
  EXPECT_EQ(metaserver.status_of(frame), Status::kBadRequest);
  EXPECT_EQ(metaserver.status_of(delete_all({{kFile, 0, 1}})), Status::kBadRequest);
}

TEST_F(Refusals, FetchOfNothingOfTooManyOrOfTooFewNames) {
  expect_bad_request(fetch({}));
  expect_bad_request(fetch(std::vector<Named>(limits::kFetchMax + 1)));
  Frame frame = fetch({{}});
  frame.header.length = 2;
  expect_bad_request(frame.seal());
}

TEST_F(Refusals, FetchOfWhatCannotBe) {
  Peer peer = connect();
  EXPECT_EQ(peer.status_of(fetch({{}, {.stripe_index = limits::kStripeWidthMax}})),
            Status::kBadRequest);
  EXPECT_EQ(peer.status_of(fetch({{.length = 0}})), Status::kBadRequest);
  EXPECT_EQ(peer.status_of(fetch({{.length = limits::kFetchLengthMax + 1}})), Status::kBadRequest);
  EXPECT_EQ(counter("fetched_objects"), 0u);
}

TEST_F(Refusals, DamagedPayloadIsSentAgain) {
  Peer peer = connect();
  const Bytes good = pattern(20000);
  Frame frame = write(100, good);
  frame.payload[15000] ^= std::byte{0x10};
  EXPECT_EQ(peer.status_of(frame), Status::kChecksum);
  EXPECT_EQ(counter("payload_checksum_errors"), 1u);
  EXPECT_EQ(peer.status_of(write(100, good)), Status::kOk);
}

TEST_F(Refusals, UnknownTargetLeavesTheConnectionUsable) {
  Peer peer = connect();
  Frame frame = write(0, pattern(100000));
  frame.header.target = 99;
  EXPECT_EQ(peer.status_of(frame.seal()), Status::kNoTarget);
  EXPECT_EQ(peer.status_of(plain(Op::kPing)), Status::kOk);
}

TEST_F(Refusals, NoCapability) {
  Peer peer = connect();
  EXPECT_EQ(peer.status_of(bare_write(0, pattern(4096)).seal()), Status::kBadCapability);
  for (const Op op : {Op::kSync, Op::kStat}) {
    EXPECT_EQ(peer.status_of(plain(op)), Status::kBadCapability);
  }
}

TEST_F(Refusals, ForgedCapability) {
  Peer peer = connect();
  EXPECT_EQ(peer.status_of(write(0, pattern(4096))), Status::kOk);  // the good one is cached now
  for (size_t at = 0; at < sizeof(Capability); ++at) {
    Frame frame = read(0, 4096);
    frame.body[at] ^= std::byte{4};
    EXPECT_EQ(peer.status_of(frame.seal()), Status::kBadCapability) << "byte " << at;
  }
  EXPECT_EQ(peer.status_of(read(0, 4096)), Status::kOk);
}

TEST_F(Refusals, CapabilityOfAnotherFileSessionOrRight) {
  Peer peer = connect();
  const auto answer = [&](Op op, const Capability& capability) {
    Frame frame = op == Op::kWrite ? bare_write(0, pattern(4096)) : request(op);
    frame.header.length = 4096;
    put_capability(frame, capability);
    return peer.status_of(frame.seal());
  };
  EXPECT_EQ(answer(Op::kRead, capability_for(kFile + 1)), Status::kBadCapability);
  EXPECT_EQ(answer(Op::kRead, capability_for(kFile, kSession + 1)), Status::kBadCapability);
  EXPECT_EQ(answer(Op::kRead, capability_for(kFile, kSession, kRightWrite)),
            Status::kBadCapability);
  EXPECT_EQ(answer(Op::kWrite, capability_for(kFile, kSession, kRightRead)),
            Status::kBadCapability);
  EXPECT_EQ(answer(Op::kWrite, capability_for(kFile, kSession, kRightWrite)), Status::kOk);
  EXPECT_EQ(counter("refused_capabilities"), 4u);
}

TEST_F(Refusals, ANewKeyVoidsWhatWasProved) {
  Peer peer = connect();
  EXPECT_EQ(peer.status_of(write(0, pattern(4096))), Status::kOk);
  server_->capability_key(Bytes(32, std::byte{1}));
  EXPECT_EQ(peer.status_of(read(0, 4096)), Status::kBadCapability);
}

TEST_F(Refusals, TheMetaserverNeedsNoCapability) {
  Peer metaserver = connect_metaserver();
  EXPECT_EQ(metaserver.status_of(bare_write(0, pattern(4096)).seal()), Status::kOk);
  EXPECT_EQ(metaserver.status_of(plain(Op::kSync)), Status::kOk);
}

// Otherwise each change of the map would make every client open every file in use again.
TEST_F(Refusals, AnyMapEpochIsServed) {
  Peer peer = connect();
  Frame frame = read(0, 4096);
  for (const uint32_t epoch : {0u, 1u, 6u, ~0u}) {
    frame.header.map_epoch = epoch;
    EXPECT_EQ(peer.status_of(frame.seal()), Status::kOk);
  }
}

}  // namespace
}  // namespace braidfs::server
