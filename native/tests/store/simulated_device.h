// A device that forgets. Every file has its bytes as programs see them and a list of changes that
// were not synced; cut() keeps an arbitrary subset of those changes, out of order, torn at sectors
// of 512 bytes, and does the same with the changes of each directory. kill() forgets nothing (page
// cache).
//
// It is deterministic for one seed. ANY THREAD. After die() every call fails with -EIO.
#pragma once
#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <unordered_map>
#include <vector>

#include "store/device.h"

namespace braidfs::store::test {

// Sparse bytes in pages of 4096.
class Bytes {
 public:
  void read(uint64_t offset, std::span<std::byte> out) const;
  void write(uint64_t offset, std::span<const std::byte> in);
  void punch(uint64_t offset, uint64_t length);
  void resize(uint64_t size);
  uint64_t size() const { return size_; }
  uint64_t allocated() const { return pages_.size() * 4096; }
  void flip(uint64_t offset, uint8_t bits);
  uint8_t mark = 0;                             // File::set_mark
  void zero(uint64_t offset, uint64_t length);  // they are written, not a hole
  std::vector<uint64_t> page_offsets() const;

 private:
  std::map<uint64_t, std::array<std::byte, 4096>> pages_;
  uint64_t size_ = 0;
};

struct Change {
  enum Kind : uint8_t { kWrite, kPunch, kResize, kMark } kind;
  uint64_t offset = 0;
  uint64_t length = 0;
  std::vector<std::byte> bytes;
};

struct Inode {
  Bytes now;
  Bytes durable;
  std::vector<Change> changes;
};

struct NameChange {
  std::string name;
  std::shared_ptr<Inode> inode;  // null: the file is unlinked
};

struct Directory {
  std::map<std::string, std::shared_ptr<Inode>> now;
  std::map<std::string, std::shared_ptr<Inode>> durable;
  std::vector<NameChange> changes;
};

// What survives a power cut, or what a killed process leaves: the same object is the host in both
// cases.
class Host {
 public:
  explicit Host(uint64_t seed) : random_(seed) {}

  std::shared_ptr<Device> boot(bool new_boot = false);  // this ends the device before
  void kill();                                          // the process ends, the page cache stays
  void cut();  // power: unsynced changes are dropped, reordered, torn
  void die();  // from now on every call of the present device fails
  // The host dies by itself before the n-th change from now (write, sync, rename ...).
  void die_after(uint64_t changes);
  bool dead() const;
  uint64_t changes() const;

  void become(
      const Host& other);  // files as they are there, sharing nothing; the devices before end
  std::shared_ptr<Inode> find(const std::string& path);
  void forget(const std::string& path);  // the file is lost
  void for_each_file(const std::string& prefix,
                     const std::function<void(const std::string&, Inode&)>& visit);
  uint64_t bytes_max = UINT64_MAX;  // beyond it: ENOSPC
  uint64_t allocated();
  uint64_t files_max = 0;  // beyond it: ENOSPC; 0: no limit
  uint64_t file_count() const;
  int open_result = 0;         // if it is negative, open returns it
  int sync_result = 0;         // fdatasync returns it
  bool ignores_syncs = false;  // of bytes: it says that they are durable
  // Of calls that may not wait, one in so many finds nothing in memory; 0: none.
  uint32_t misses_one_in = 0;
  std::atomic<bool> pages_cached = false;  // is_cached() returns it
  std::atomic<uint64_t> space_asked = 0;

 private:
  friend class SimulatedFile;
  friend class SimulatedDevice;
  bool alive(uint64_t generation) const { return !dead_ && generation == generation_; }
  bool step(uint64_t generation);  // counts a change; false if the host is dead
  bool misses();
  void sync(Inode& inode);
  void sync(Directory& directory);
  void lose(Inode& inode);
  void apply(Bytes& bytes, const Change& change, bool torn);

  mutable std::recursive_mutex mu_;
  std::mt19937_64 random_;
  std::map<std::string, Directory> directories_;
  uint64_t generation_ = 0;
  uint64_t boot_ = 1;
  uint64_t changes_ = 0;
  uint64_t die_at_ = UINT64_MAX;
  bool dead_ = false;
};

}  // namespace braidfs::store::test
