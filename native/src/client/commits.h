// What was written and the metaserver does not know yet, or is not durable: commits under way, and
// the record that outlives this process (open_record.h).
//
// A COMMIT event has a token, by which Python answers it. Invariant: each token stands for one
// drain until it is answered, which happens once. Threads: ANY THREAD, guarded by mu_, a leaf. Not
// here: what a commit contains (drain.h), the size and time of one inode (inode.h).
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "client/inode.h"
#include "client/open_record.h"

namespace braidfs::client {

class DrainOperation;

class Commits {
 public:
  // Notes size and time that were committed with a delegated change in the tables of attributes.
  using NoteWritten = std::function<void(uint64_t ino, const Written& written)>;

  void written_noter(NoteWritten note) {
    note_written_ = std::move(note);
  }  // before the first request
  void note_written(const Inode& inode) {
    if (note_written_) note_written_(inode.ino(), inode.in_commit);
  }

  uint64_t begin(std::shared_ptr<DrainOperation> operation);  // the token of its event
  std::shared_ptr<DrainOperation> end(uint64_t token);        // nullptr: unknown
  bool none();

  OpenRecord& record() noexcept { return record_; }
  // Something was written that is not durable. LOCKED inode.
  void note_unclean(Inode& inode) noexcept {
    if (inode.noted == OpenRecord::kNone) {
      inode.noted = record_.put({.ino = inode.ino(), .kind = OpenRecord::Kind::kUnclean});
    }
  }

  // New files of at most so many bytes may lie in their inode's record; 0: none may. It is called
  // before the first request.
  void inline_length(uint32_t length_max) noexcept { inline_length_max_ = length_max; }
  uint32_t inline_length_max() const noexcept { return inline_length_max_; }

 private:
  OpenRecord record_;
  NoteWritten note_written_;
  std::atomic<uint32_t> inline_length_max_ = 0;
  std::mutex mu_;
  std::map<uint64_t, std::shared_ptr<DrainOperation>> under_way_;  // guarded by mu_
  uint64_t token_ = uint64_t{1} << 62;  // guarded by mu_; apart from Python's own tokens
};

}  // namespace braidfs::client
