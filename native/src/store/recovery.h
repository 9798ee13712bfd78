// Replays the log into the object table, after a target that was not stopped cleanly.
//
// Threads: used once, by StoreBody::open, before anybody else knows the store.
#pragma once
#include <string>

#include "store/body.h"

namespace braidfs::store {

class Recovery {
 public:
  // same_boot: the host has not restarted, so the page cache survived, and entries without a COMMIT
  // still have their bytes.
  Recovery(StoreBody& body, bool same_boot) noexcept : body_(body), same_boot_(same_boot) {}

  // Replays. On failure `message` says why the target is refused.
  Status run(std::string& message);
  uint64_t dropped() const noexcept { return dropped_; }
  bool lossy() const noexcept { return lossy_; }  // more than the dropped entries may be missing

 private:
  struct Fate {  // what the first pass found out about one object
    uint64_t committed = 0;
    uint64_t deleted = 0;
    uint64_t promised = 0;             // to callers that waited for a sync
    std::vector<Punched> truncations;  // by entry; the pages behind them may be gone already
  };

  void learn(const EntryView& entry);
  void replay(const EntryView& entry);
  bool cut_off_later(ObjectId id, uint32_t group, uint64_t sequence) const;
  Status load_log(std::string& message);
  void learn(const Promise& promise);
  Status object_for(ObjectId id, const Fate& fate, bool may_be_new, ObjectPointer& object);
  void apply(const ObjectPointer& object, const EntryView& entry);
  Status check_promises();
  void mark_lost(const ObjectPointer& object, uint64_t sequence);
  void apply_header(const ObjectPointer& object, const EntryHeader& header);
  void apply_cut(const ObjectPointer& object, const EntryHeader& header);
  void apply_runs(const ObjectPointer& object, const EntryView& entry);
  void apply_run(const ObjectPointer& object, const EntryRun& run, uint64_t sequence,
                 std::span<const uint64_t> sums, std::span<const std::byte> bytes, bool whole);
  Status finish_deleted();
  Status finish_object(const ObjectPointer& object);
  Status drop_tail(Object& object, uint64_t first_block);

  StoreBody& body_;
  const bool same_boot_;
  uint64_t dropped_ = 0;
  bool lossy_ = false;
  Status failure_ = Status::kOk;
  std::unordered_map<ObjectId, Fate, ObjectIdHash> fates_;
  std::unordered_map<ObjectId, ObjectPointer, ObjectIdHash> objects_;
};

}  // namespace braidfs::store
