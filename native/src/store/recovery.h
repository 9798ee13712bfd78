// Replays the log into the object table after a target was not stopped cleanly.
// Used once, by StoreBody::open, before anybody else knows the store.
#pragma once
#include <string>

#include "store/body.h"

namespace braidfs::store {

class Recovery {
 public:
  // same_boot: the page cache lived on, so entries without a COMMIT still have their bytes.
  Recovery(StoreBody& body, bool same_boot) noexcept : body_(body), same_boot_(same_boot) {}

  // On failure `message` says why the target is refused.
  Status run(std::string& message);
  uint64_t dropped() const noexcept { return dropped_; }

 private:
  struct Fate {  // of one object, known after the first pass
    uint64_t committed = 0;
    uint64_t deleted = 0;
    std::vector<Punched> truncations;  // by entry; their pages may be gone already
  };

  void learn(const EntryView& entry);
  void replay(const EntryView& entry);
  bool cut_off_later(ObjectId id, const EntryRun& run, uint64_t sequence) const;
  Status object_for(const EntryView& entry, uint64_t deleted, ObjectPointer& object);
  void apply(const ObjectPointer& object, const EntryView& entry);
  void apply_header(const ObjectPointer& object, const EntryHeader& header);
  void apply_cut(const ObjectPointer& object, const EntryHeader& header);
  void apply_runs(const ObjectPointer& object, const EntryView& entry);
  void apply_run(const ObjectPointer& object, const EntryRun& run, uint64_t sequence,
                 std::span<const uint64_t> sums, std::span<const std::byte> bytes);
  Status finish_deleted();
  Status finish_object(const ObjectPointer& object);
  Status drop_tail(Object& object, uint64_t first_block);

  StoreBody& body_;
  const bool same_boot_;
  uint64_t dropped_ = 0;
  Status failure_ = Status::kOk;
  std::unordered_map<ObjectId, Fate, ObjectIdHash> fates_;
  std::unordered_map<ObjectId, ObjectPointer, ObjectIdHash> objects_;
};

}  // namespace braidfs::store
