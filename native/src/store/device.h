// The one door from the chunk store to files. PosixDevice (device_posix.cpp) is the kernel; the
// tests have a simulated device that forgets at a power cut whatever was not synced.
//
// Results of size or int are >= 0, or a negative errno. ANY THREAD; a File may be used by several
// threads at once. What is not here: which bytes go where (layout.h), when to sync (chunk_store.h).
#pragma once
#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace braidfs::store {

struct FileFigures {
  uint64_t size = 0;
  uint64_t allocated = 0;  // bytes of device space
  uint8_t mark = 0;        // File::set_mark
};

class File {
 public:
  File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  virtual ~File() = default;

  // The descriptor for io_uring; -1 where there is none (simulated device).
  virtual int fd() const noexcept = 0;
  // nowait: only what is in memory now; -EAGAIN when nothing is. A short count is the end of the
  // file, or with nowait the end of what is cached.
  virtual int64_t readv(std::span<const iovec> parts, uint64_t offset, bool nowait) = 0;
  virtual int64_t writev(std::span<const iovec> parts, uint64_t offset) = 0;
  virtual int write_out(uint64_t offset, uint64_t length) = 0;  // begins; waits for nothing
  virtual int sync() = 0;  // fdatasync: bytes, allocation and size are durable when it returns 0
  virtual int truncate(uint64_t size) = 0;
  virtual int punch(uint64_t offset, uint64_t length) = 0;     // reads as zeros; size stays
  virtual int allocate(uint64_t offset, uint64_t length) = 0;  // space for later writes; size stays
  virtual int figures(FileFigures& figures) = 0;
  // 1 or 2, kept beside the file's bytes, whatever becomes of these; durable some time later.
  virtual int set_mark(uint8_t mark) = 0;
  // The first byte at or behind offset that may be other than a hole; -ENXIO: there is none.
  virtual int64_t next_data(uint64_t offset) = 0;
  // Begins to read this into the page cache, in one piece where it can; waits for nothing.
  virtual void will_need(uint64_t offset, uint64_t length) = 0;
  // All of it lies in the page cache. False where nobody knows.
  virtual bool is_cached(uint64_t offset, uint64_t length) = 0;
};

// kDirect: existing, O_DIRECT. kCached: existing, -EAGAIN unless all that it takes is in memory.
enum class OpenMode : uint8_t { kExisting, kCreate, kDirect, kCached };

struct DeviceSpace {
  uint64_t bytes_total = 0;
  uint64_t bytes_free = 0;
  uint64_t files_total = 0;  // inodes; 0: it makes as many as it has bytes for
  uint64_t files_free = 0;
};

// All paths are relative to the device's root directory.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  // Where descriptors are short (-EMFILE, -ENFILE) it asks make_room, and again, as long as that
  // says true.
  virtual int open(const std::string& path, OpenMode mode, std::shared_ptr<File>& file) = 0;
  std::function<bool()> make_room = [] { return false; };  // closes files that nobody uses just now
  virtual int make_directory(const std::string& path) = 0;  // one that exists is 0
  virtual int rename(const std::string& from, const std::string& to) = 0;
  virtual int unlink(const std::string& path) = 0;
  virtual int sync_directory(const std::string& path) = 0;  // its entries are durable
  virtual int sync_all() = 0;                               // syncfs: every file and directory
  virtual int list(const std::string& path,
                   const std::function<void(std::string_view name)>& visit) = 0;
  virtual int space(DeviceSpace& space) = 0;
  virtual int lock(const std::string& path) = 0;  // held until the device goes; -EWOULDBLOCK
  virtual std::string boot_id() = 0;              // differs after every boot of the host
};

// root must be a directory that exists; -errno otherwise.
int open_posix_device(const std::string& root, std::shared_ptr<Device>& device);

}  // namespace braidfs::store
