#include "mutants.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "metaserver.h"

namespace braidfs::world {

namespace {

// The answer that a server gives to a request that it has carried out.
Frame answer_to(const Frame& request, uint64_t incarnation) {
  Frame reply;
  reply.header.op = request.header.op;
  reply.header.flags = kFlagReply;
  reply.header.request_id = request.header.request_id;
  reply.header.file_id = request.header.file_id;
  reply.header.stripe_index = request.header.stripe_index;
  reply.header.target = request.header.target;
  reply.header.offset = incarnation;
  return reply;
}

// Knows in which incarnation targets answered last.
class Forging : public Tampering {
 public:
  explicit Forging(Clockwork& clockwork) : clockwork_(clockwork) {}

 protected:
  // The reply to a request that never arrives, or is answered too early.
  void answer(Wire& wire, const Frame& request) {
    wire.forge(Side::kServer, answer_to(request, newest_[request.header.target]));
  }
  bool knows(const Frame& request) const { return newest_.contains(request.header.target); }
  void note(Side from, const Frame& frame) {
    if (from == Side::kServer && frame.header.offset != 0)
      newest_[frame.header.target] = std::max(newest_[frame.header.target], frame.header.offset);
  }
  static bool is(const Frame& frame, Side from, Op op) {
    return from == Side::kClient && frame.op() == op;
  }

  Clockwork& clockwork_;
  std::map<uint32_t, uint64_t> newest_;
};

class EarlyAcknowledgement final : public Forging {
 public:
  using Forging::Forging;
  bool pass(Wire& wire, Side from, Frame& frame) override {
    const auto early = answered_.find({&wire, frame.header.request_id});
    if (from == Side::kServer && early != answered_.end()) {
      answered_.erase(early);
      return false;
    }
    note(from, frame);
    if (!is(frame, from, Op::kWrite) || !knows(frame) || !clockwork_.chance.one_in(4)) return true;
    answered_.emplace(std::pair(&wire, frame.header.request_id), true);
    answer(wire, frame);
    clockwork_.agenda.after(
        clockwork_.chance.up_to(milliseconds(200)),
        [self = wire.shared_from_this(), frame] { self->forge(Side::kClient, frame); });
    return false;
  }

 private:
  std::map<std::pair<Wire*, uint64_t>, bool> answered_;
};

class LateRepetition final : public Tampering {
 public:
  explicit LateRepetition(Clockwork& clockwork) : clockwork_(clockwork) {}
  bool pass(Wire& wire, Side from, Frame& frame) override {
    if (from != Side::kClient || frame.op() != Op::kWrite || !clockwork_.chance.one_in(4))
      return true;
    clockwork_.agenda.after(
        clockwork_.chance.up_to(seconds(1)),
        [self = wire.shared_from_this(), frame] { self->forge(Side::kClient, frame); });
    return true;
  }

 private:
  Clockwork& clockwork_;
};

class Undone final : public Forging {
 public:
  Undone(Clockwork& clockwork, Op op) : Forging(clockwork), op_(op) {}
  bool pass(Wire& wire, Side from, Frame& frame) override {
    note(from, frame);
    if (!is(frame, from, op_) || (op_ == Op::kSync && !knows(frame))) return true;
    answer(wire, frame);
    return false;
  }

 private:
  const Op op_;
};

class ReplyForgotten final : public Tampering {
 public:
  explicit ReplyForgotten(Clockwork& clockwork) : clockwork_(clockwork) {}
  bool pass(Wire&, Side from, Frame& frame) override {
    return from != Side::kServer || frame.op() != Op::kWrite || !clockwork_.chance.one_in(30);
  }

 private:
  Clockwork& clockwork_;
};

class SyncOfAnyIncarnation final : public Tampering {
 public:
  bool pass(Wire&, Side from, Frame& frame) override {
    if (from == Side::kClient && frame.op() == Op::kSync) frame.header.offset = 0;
    return true;
  }
};

class IncarnationHidden final : public Tampering {
 public:
  bool pass(Wire&, Side from, Frame& frame) override {
    if (from == Side::kServer && frame.header.offset != 0)
      frame.header.offset = first_.emplace(frame.header.target, frame.header.offset).first->second;
    if (from == Side::kClient && frame.op() == Op::kSync) frame.header.offset = 0;
    return true;
  }

 private:
  std::map<uint32_t, uint64_t> first_;
};

// As if the server did not compare: the WRITE says that it is of the newest epoch.
class StaleEpochTaken final : public Tampering {
 public:
  explicit StaleEpochTaken(const std::unique_ptr<Metaserver>& metaserver)
      : metaserver_(metaserver) {}
  bool pass(Wire&, Side from, Frame& frame) override {
    if (from != Side::kClient || frame.op() != Op::kWrite) return true;
    Capability capability;
    std::memcpy(&capability, frame.body.data(), sizeof(capability));
    const FileRecord& file = metaserver_->file(capability.ino);
    if (file.file_id != frame.header.file_id) return true;
    const Bytes newest = metaserver_->records(capability.ino, capability.session).capability;
    std::copy(newest.begin(), newest.end(), frame.body.begin());
    frame.header.epoch = file.epoch;
    return true;
  }

 private:
  const std::unique_ptr<Metaserver>& metaserver_;
};

// One replica has the WRITE. The others get it later, or never.
class OneReplicaEnough final : public Forging {
 public:
  OneReplicaEnough(Clockwork& clockwork, const std::unique_ptr<Metaserver>& metaserver)
      : Forging(clockwork), metaserver_(metaserver) {}
  bool pass(Wire& wire, Side from, Frame& frame) override {
    note(from, frame);
    if (!is(frame, from, Op::kWrite) || wire.client() == 0 || !knows(frame) || is_first(frame))
      return true;
    answer(wire, frame);
    if (clockwork_.chance.one_in(2)) return false;
    clockwork_.agenda.after(
        clockwork_.chance.up_to(milliseconds(500)),
        [self = wire.shared_from_this(), frame] { self->forge(Side::kClient, frame); });
    return false;
  }

 private:
  bool is_first(const Frame& frame) const {
    for (const auto& [ino, file] : metaserver_->files()) {
      if (file.file_id != frame.header.file_id) continue;
      return file.names_of(stripe_of(frame.header.stripe_index)).front().target ==
             frame.header.target;
    }
    return true;
  }
  const std::unique_ptr<Metaserver>& metaserver_;
};

}  // namespace

const char* name_of(Mutant mutant) {
  constexpr std::array<const char*, static_cast<size_t>(Mutant::kCount)> kNames{
      "none",
      "early acknowledgement",
      "late repetition",
      "sync undone",
      "sync of any incarnation",
      "incarnation hidden",
      "former connection unnamed",
      "stale epoch taken",
      "truncate undone",
      "power loss unnoticed",
      "disk lies",
      "held bytes dropped",
      "reply forgotten",
      "one replica is enough",
      "dropped name answered",
      "last replica dropped",
      "incarnation not kept",
      "close not refused",
      "no fence",
      "not made whole",
      "added unclaimed",
      "added unraised"};
  return kNames[static_cast<size_t>(mutant)];
}

std::unique_ptr<Tampering> tampering_of(Mutant mutant, Clockwork& clockwork,
                                        const std::unique_ptr<Metaserver>& metaserver) {
  switch (mutant) {
    case Mutant::kEarlyAcknowledgement:
      return std::make_unique<EarlyAcknowledgement>(clockwork);
    case Mutant::kLateRepetition:
      return std::make_unique<LateRepetition>(clockwork);
    case Mutant::kSyncUndone:
      return std::make_unique<Undone>(clockwork, Op::kSync);
    case Mutant::kSyncOfAnyIncarnation:
      return std::make_unique<SyncOfAnyIncarnation>();
    case Mutant::kIncarnationHidden:
      return std::make_unique<IncarnationHidden>();
    case Mutant::kStaleEpochTaken:
      return std::make_unique<StaleEpochTaken>(metaserver);
    case Mutant::kReplyForgotten:
      return std::make_unique<ReplyForgotten>(clockwork);
    case Mutant::kTruncateUndone:
      return std::make_unique<Undone>(clockwork, Op::kTruncate);
    case Mutant::kOneReplicaEnough:
      return std::make_unique<OneReplicaEnough>(clockwork, metaserver);
    case Mutant::kDroppedNameAnswered:
      return std::make_unique<Undone>(clockwork, Op::kDropNames);
    default:
      return nullptr;
  }
}

}  // namespace braidfs::world
