// The file beside a log segment that records what completed syncs promised (layout.h, Promise).
// Records are appended without a sync of their own.
//
// Threads: one thread at a time, the one that syncs the log.
#pragma once
#include <memory>
#include <vector>

#include "store/io.h"
#include "store/layout.h"

namespace braidfs::store {

class PromiseFile {
 public:
  PromiseFile(std::shared_ptr<File> file, uint64_t key) noexcept
      : file_(std::move(file)), key_(key) {}

  // Appends one record. If the device refuses it, the proof is lost, but not the sync; a record
  // that is not whole ends the file.
  void keep(uint64_t durable_sequence, std::span<const Promise> promises) {
    if (!file_) return;
    encode_promises(durable_sequence, promises, key_, encoded_);
    if (write_whole(*file_, encoded_, length_) < 0) file_.reset();
    length_ += encoded_.size();
  }

 private:
  std::shared_ptr<File> file_;
  const uint64_t key_;
  uint64_t length_ = 0;
  std::vector<std::byte> encoded_;
};

}  // namespace braidfs::store
