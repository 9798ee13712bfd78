// The one door from the chunk store to files. PosixDevice (device_posix.cpp) uses the kernel; tests
// use a simulated device that, at a power cut, forgets whatever was not synced.
//
// Functions that return a size or an int return a value >= 0, or a negative errno. ANY THREAD;
// several threads may use one File at the same time.
//
// Not here: which bytes go where (layout.h), when to sync (chunk_store.h).
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
  uint8_t mark = 0;        // of File::set_mark
};

class File {
 public:
  File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  virtual ~File() = default;

  // The descriptor for io_uring; -1 where there is none (simulated device).
  virtual int fd() const noexcept = 0;
  // Reads. nowait: reads only what is in memory now; -EAGAIN when nothing is. A short count means
  // the end of the file, or with nowait the end of what is cached.
  virtual int64_t readv(std::span<const iovec> parts, uint64_t offset, bool nowait) = 0;
  virtual int64_t writev(std::span<const iovec> parts, uint64_t offset) = 0;
  // begins to write back, waits for nothing
  virtual int write_out(uint64_t offset, uint64_t length) = 0;
  // fdatasync: when it returns 0, bytes, allocation and size are durable.
  virtual int sync() = 0;
  virtual int truncate(uint64_t size) = 0;
  // the range then reads as zeros; the size stays
  virtual int punch(uint64_t offset, uint64_t length) = 0;
  // Allocates space for later writes; the size stays.
  virtual int allocate(uint64_t offset, uint64_t length) = 0;
  virtual int figures(FileFigures& figures) = 0;
  // Stores a mark, 1 or 2, with the file. It survives changes of the file's bytes, and becomes
  // durable some time later.
  virtual int set_mark(uint8_t mark) = 0;
  // The first byte at or behind offset that may not lie in a hole; -ENXIO: there is none.
  virtual int64_t next_data(uint64_t offset) = 0;
  // Begins to read the range into the page cache, in one piece where possible; waits for nothing.
  virtual void will_need(uint64_t offset, uint64_t length) = 0;
  // True when the whole range is in the page cache. False when that is not known.
  virtual bool is_cached(uint64_t offset, uint64_t length) = 0;
};

// kDirect: an existing file with O_DIRECT. kCached: an existing file; -EAGAIN unless everything
// that the open needs is in memory.
enum class OpenMode : uint8_t { kExisting, kCreate, kDirect, kCached };

struct DeviceSpace {
  uint64_t bytes_total = 0;
  uint64_t bytes_free = 0;
  uint64_t files_total = 0;  // inodes; 0: the device has no fixed number of inodes
  uint64_t files_free = 0;
};

// All paths are relative to the device's root directory.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  // Opens a file. When descriptors are short (-EMFILE, -ENFILE), it calls make_room and tries
  // again, as long as make_room returns true.
  virtual int open(const std::string& path, OpenMode mode, std::shared_ptr<File>& file) = 0;
  // Closes files that are not in use; true when it closed any.
  std::function<bool()> make_room = [] { return false; };
  virtual int make_directory(const std::string& path) = 0;  // 0 as well when it exists
  virtual int rename(const std::string& from, const std::string& to) = 0;
  virtual int unlink(const std::string& path) = 0;
  virtual int sync_directory(const std::string& path) = 0;  // makes the directory's entries durable
  virtual int sync_all() = 0;                               // syncfs: every file and directory
  virtual int list(const std::string& path,
                   const std::function<void(std::string_view name)>& visit) = 0;
  virtual int space(DeviceSpace& space) = 0;
  // Held until the device is destroyed. -EWOULDBLOCK: another process holds it.
  virtual int lock(const std::string& path) = 0;
  virtual std::string boot_id() = 0;  // differs after every boot of the host
};

// Opens a device on the directory `root`, which must exist; -errno otherwise.
int open_posix_device(const std::string& root, std::shared_ptr<Device>& device);

}  // namespace braidfs::store
