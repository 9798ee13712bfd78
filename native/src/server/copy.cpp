#include "server/copy.h"

#include <algorithm>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "braidfs/frame.h"

namespace braidfs::server {

namespace {

constexpr uint32_t kPieceMax = 1u << 20;

constexpr std::align_val_t kAlignment{limits::kBlockSize};
struct Free {
  void operator()(std::byte* bytes) const { ::operator delete[](bytes, kAlignment); }
};

class Copier {
 public:
  explicit Copier(const Copy& copy)
      : copy_(copy),
        memory_(static_cast<std::byte*>(::operator new[](kPieceMax, kAlignment))),
        bytes_(memory_.get(), kPieceMax) {}

  Status run() {
    uint64_t done = 0;
    const Status made = copy_.to->make(copy_.sink, copy_.epoch, copy_.sink_must_exist);
    if (made != Status::kOk) return made;
    while (done < copy_.length) {
      uint64_t data = 0;
      Status status = next(done, false, data);
      if (status == Status::kNoObject && !copy_.must_exist) return clear(done, copy_.length);
      if (status == Status::kOk) status = clear(done, data);
      uint64_t hole = data;
      if (status == Status::kOk && data < copy_.length) status = next(data, true, hole);
      for (done = data; status == Status::kOk && done < hole;) {
        const auto piece = static_cast<uint32_t>(std::min<uint64_t>(kPieceMax, hole - done));
        status = move(done, piece);
        done += piece;
      }
      if (status != Status::kOk) return status;
    }
    return Status::kOk;
  }

 private:
  // The offset of the next block with data, or of the next hole, at or behind `from`; the end if
  // there is none.
  Status next(uint64_t from, bool hole, uint64_t& at) const {
    store::SeekResult found{.at = copy_.source_offset + from, .ended = false};
    const uint64_t end = copy_.source_offset + copy_.length;
    while (!found.ended && found.at < end) {
      const Status status =
          copy_.from->seek(copy_.source, copy_.source_epoch, found.at, hole, found);
      if (status != Status::kOk) return status;
    }
    at = round_down_to_block(std::min(found.at, end)) - copy_.source_offset;
    return Status::kOk;
  }

  Status clear(uint64_t begin, uint64_t end) const {
    if (begin == end) return Status::kOk;
    return copy_.to->punch(copy_.sink, copy_.sink_offset + begin, end - begin, copy_.epoch);
  }

  Status move(uint64_t done, uint32_t length) {
    sums_.resize(length / limits::kBlockSize);
    const store::ReadResult read = copy_.from->read({.object = copy_.source,
                                                     .offset = copy_.source_offset + done,
                                                     .length = length,
                                                     .buffer = bytes_.first(length)},
                                                    sums_);
    if (read.status != Status::kOk) return read.status;
    // On disk the last block of an object is whole, padded with zeros; it is copied as such.
    const auto whole = static_cast<uint32_t>(round_up_to_block(read.length));
    const auto bytes = bytes_.first(whole);
    std::fill(bytes.begin() + read.length, bytes.end(), std::byte{0});
    if (read.length < whole)
      hash_blocks(0, bytes, std::span(sums_).first(whole / limits::kBlockSize));
    if (whole > 0) {
      const Status written =
          copy_.to->write({.object = copy_.sink,
                           .epoch = copy_.epoch,
                           .offset = copy_.sink_offset + done,
                           .payload = bytes,
                           .sums = std::span(sums_).first(whole / limits::kBlockSize)});
      if (written != Status::kOk) return written;
    }
    return clear(done + whole, done + length);
  }

  const Copy& copy_;
  // aligned, so that the disk can be read directly into it
  std::unique_ptr<std::byte[], Free> memory_;
  std::span<std::byte> bytes_;
  std::vector<uint64_t> sums_;
};

}  // namespace

Status copy_blocks(const Copy& copy) { return Copier(copy).run(); }

}  // namespace braidfs::server
