// The files of copies.h, in one folder. Each copy has one file with exactly the bytes of the
// original, and a small one with the XXH3 of each slice, under a checksum. A copy counts when both
// have their final names, which they get last. Results are 0 or -errno. ANY THREAD.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/disk.h"
#include "cache/format.h"
#include "net/unique_fd.h"

namespace braidfs::cache {

// Identifies the bytes of a whole file.
struct WholeFile {
  uint64_t ino = 0;
  uint64_t stamp = 0;
  uint64_t size = 0;
  bool operator==(const WholeFile&) const = default;
};

using Cluster = std::array<std::byte, 16>;
// One per slice.
using SliceSums = std::vector<uint64_t>;

std::vector<std::byte> encode(const WholeFile& file, const Cluster& cluster, const SliceSums& sums);
// What a file of sums holds. decode_sums() returns nothing for a torn or changed file, and for one
// of another filesystem.
struct Summed {
  WholeFile file;
  SliceSums sums;
};
std::optional<Summed> decode_sums(std::span<const std::byte> bytes, const Cluster& cluster);

// Memory for one slice that a disk can read directly: it begins on a page.
class SlicePages {
 public:
  SlicePages() : bytes_(make_pages(kHeadBytes + kSliceBytes)) {}
  std::span<std::byte> all() noexcept { return {bytes_.get(), kHeadBytes + kSliceBytes}; }
  const RecordHead& head() const noexcept {
    return *reinterpret_cast<const RecordHead*>(bytes_.get());
  }
  std::span<std::byte> slice() noexcept { return all().subspan(kHeadBytes); }

 private:
  Pages bytes_;
};

class CopyFiles {
 public:
  CopyFiles(std::string directory, const Cluster& cluster)
      : directory_(std::move(directory)), cluster_(cluster) {}

  int make_directory() const;
  // Space that a copy of `size` bytes takes on the disk.
  static uint64_t place_bytes(uint64_t size) noexcept;

  struct Known {
    WholeFile file;
    timespec made{};
  };
  // Returns the copies that look complete; removes everything else in the folder.
  std::vector<Known> sweep() const;

  // Begins a copy; its space is reserved. Nothing of it counts before finish().
  int begin(const WholeFile& file, net::UniqueFd& part) const;
  // `pages` is padded to whole blocks.
  static int write_slice(int part, uint32_t slice, std::span<const std::byte> pages);
  int finish(const WholeFile& file, const SliceSums& sums, int part) const;
  void remove(const WholeFile& file) const noexcept;  // also what was begun of it

  // True when the copy's bytes are what they should be; reads past the page cache. `is_running` is
  // called before each slice; when it returns false, the result is empty.
  template <typename IsRunning>
  std::optional<bool> is_sound(const WholeFile& file, SlicePages& pages,
                               IsRunning is_running) const {
    net::UniqueFd bytes;
    const auto summed = read_sums(name_of(file));
    if (!summed || summed->file != file || open_past_pages(file, bytes) != 0) return false;
    for (uint32_t slice = 0; slice < slice_count(file.size); ++slice) {
      if (!is_running()) return std::nullopt;
      if (!is_slice(bytes.get(), *summed, slice, pages)) return false;
    }
    return true;
  }
  // Opens the copy for the kernel to read. -EINVAL: it has another size.
  int open(const WholeFile& file, net::UniqueFd& bytes) const;

 private:
  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  static std::string name_of(const WholeFile& file);
  std::optional<Summed> read_sums(const std::string& name) const;
  int open_past_pages(const WholeFile& file, net::UniqueFd& bytes) const;
  static bool is_slice(int bytes, const Summed& summed, uint32_t slice, SlicePages& pages);
  std::optional<Known> inspect(const std::string& name) const;

  const std::string directory_;
  const Cluster cluster_;
};

}  // namespace braidfs::cache
