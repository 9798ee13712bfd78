// The interface between the FUSE half (this folder) and the file-byte half (src/client) of the data
// path: the five requests that native parses and answers, their handler, and how answers are sent.
//
// Every lane has its own clone of /dev/fuse. The lane thread reads a request, parses it and calls
// the DataHandler; the handler answers at once or later through the Replier, with the channel (lane
// index) of the request: the kernel refuses an answer that is written to another clone. Each
// request is answered exactly once. Parsing is in parse.h, upcalls are in bridge.h.
#pragma once
#include <fcntl.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace braidfs::fuse {

// Index of the lane whose clone read the request.
using Channel = uint32_t;

// What the handler knows of the thread that calls it.
struct LaneContext {
  uint32_t index = 0;  // of the lane; equals the channel of its requests
};

// A request that is not answered yet.
struct Waiting {
  enum class Ends : uint8_t {
    kByFatalSignal,
    kWhenAsked,  // also by a signal with which people end a program, if it takes long
    kByAnySignal,
  };
  uint32_t pid = 0;  // of the thread that waits
  Ends ends = Ends::kByFatalSignal;
};

// Who sent a request and where the answer goes. pid 0: the kernel itself (write-back, read-ahead).
struct RequestHead {
  Channel channel = 0;
  uint64_t unique = 0;
  uint64_t nodeid = 0;  // the inode number; 1 is the root of the mount
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t pid = 0;
};

inline constexpr uint32_t kReadLockOwner = 1u << 1;  // read(2) on a direct handle: fills no page

// A write-only handle bypasses the kernel's page cache (docs/decisions/0029-write-only-handles.md).
inline bool writes_only(uint32_t open_flags) noexcept {
  return (open_flags & O_ACCMODE) == O_WRONLY;
}

struct ReadRequest {
  RequestHead head;
  uint64_t fh = 0;
  uint64_t offset = 0;  // offset + size never exceeds 2^63 - 1
  uint32_t size = 0;    // at most the negotiated max_write
  uint32_t open_flags = 0;
  uint32_t read_flags = 0;
  uint64_t lock_owner = 0;
  bool closes = false;  // its handle, opened for it alone, is closed after the answer
};

inline constexpr uint32_t kWriteFromCache =
    1u << 0;  // write-back of a shared mapping: any fh of the inode
inline constexpr uint32_t kWriteLockOwner = 1u << 1;
inline constexpr uint32_t kWriteKillSuidgid = 1u << 2;  // drop set-user-ID and set-group-ID bits

struct WriteRequest {
  RequestHead head;
  uint64_t fh = 0;
  uint64_t offset = 0;  // offset + payload.size() never exceeds 2^63 - 1
  uint32_t open_flags = 0;
  uint32_t write_flags = 0;  // kWrite*
  uint64_t lock_owner = 0;
  std::span<const std::byte> payload;  // lent for the duration of the call: copy what is kept
};

struct FlushRequest {
  RequestHead head;
  uint64_t fh = 0;
  uint64_t lock_owner = 0;
};

inline constexpr uint32_t kReleaseFlush = 1u << 0;
inline constexpr uint32_t kReleaseFlockUnlock = 1u << 1;

struct ReleaseRequest {
  RequestHead head;
  uint64_t fh = 0;
  uint32_t open_flags = 0;
  uint32_t release_flags = 0;  // kRelease*
  uint64_t lock_owner = 0;
};

struct FsyncRequest {
  RequestHead head;
  uint64_t fh = 0;
  bool bytes_only = false;  // fdatasync
};

// How much room there is for the bytes of further requests.
enum class Room : uint8_t {
  kPlenty,
  kLittle,  // only for one now and then, so that signals and closes get through
  kNone,
};

// A lane's answer to an OPEN for reading.
enum class Opening : uint8_t {
  kRefused,     // Python must answer it
  kKeepsPages,  // the kernel's pages of the file are right
  kDropsPages,
};

// What is known of a file when it is opened.
enum class Sealing : uint8_t {
  kUnknown,  // a lane opens it, and its attributes are not leased
  kMutable,
  kImmutable,  // under a lease
  kAsOpened,   // as the metaserver has just said: the inode has its record
};

// How the kernel reads through a handle that it is about to get
// (docs/decisions/0041-passthrough.md).
struct PassthroughChoice {
  enum class Way : uint8_t {
    kByRequests,
    kPassthrough,  // from the backing file
    kUpcall,       // Python decides; the handle is closed
    kStale,        // its bytes differ from those of the open handles; it is closed
  };
  Way way = Way::kByRequests;
  uint32_t backing = 0;
};

// How a new file is opened. size_limit: it may grow to this size without asking about quotas.
struct NewHandle {
  uint64_t fh = 0;
  uint32_t open_flags = 0;
  uint64_t size_limit = ~uint64_t{0};
};

// A file gets this size, with this time of change.
struct CutRequest {
  uint64_t ino = 0;
  uint64_t fh = 0;
  uint64_t size = 0;
  int64_t time_ns = 0;
};

// The half that owns file bytes. Every call is made on the lane thread named by the context and
// must not block; two lanes may call at the same time. Requests of directories never come here
// (RELEASEDIR and FSYNCDIR are upcalls).
class DataHandler {
 public:
  virtual ~DataHandler() = default;
  virtual void read(LaneContext& lane, const ReadRequest& request) = 0;
  virtual void write(LaneContext& lane, const WriteRequest& request) = 0;
  virtual void flush(LaneContext& lane, const FlushRequest& request) = 0;
  virtual void release(LaneContext& lane, const ReleaseRequest& request) = 0;
  virtual void fsync(LaneContext& lane, const FsyncRequest& request) = 0;

  // A new file, which only this client may read and write, is opened with this handle (records:
  // docs/INTERFACES.md section 1). False when there is no room for it. Any lane.
  virtual bool born(std::span<const std::byte> /*attributes*/,
                    std::span<const std::byte> /*layout*/,
                    std::span<const std::byte> /*capability*/, const NewHandle& /*handle*/) {
    return false;
  }

  // Opens a file for reading with this handle, if that needs no other process. Any lane.
  virtual Opening open(uint64_t /*ino*/, uint64_t /*fh*/, uint32_t /*open_flags*/) {
    return Opening::kRefused;
  }

  // Like open() for a file that is not known yet and whose bytes are leased by its directory's
  // grant: its records (docs/INTERFACES.md section 1).
  virtual bool open_granted(std::span<const std::byte> /*attributes*/,
                            std::span<const std::byte> /*layout*/,
                            std::span<const std::byte> /*capability*/, uint64_t /*fh*/,
                            uint32_t /*open_flags*/) {
    return false;
  }

  // True: it answers the OPEN itself (Replier::reply_open) when the file's bytes are in the
  // kernel's pages. It does so at the first OPEN of a file that is small and likely to be read
  // whole. `fh`: as in open_granted().
  virtual bool fetch_opened(LaneContext& /*lane*/, const RequestHead& /*head*/, uint64_t /*fh*/) {
    return false;
  }

  // The kernel is about to get this handle; nothing may fail after this call. Called only if the
  // mount has passthrough. ANY THREAD.
  virtual PassthroughChoice choose_passthrough(uint64_t /*ino*/, uint64_t /*fh*/,
                                               Sealing /*sealing*/) {
    return {};
  }

  // Whether lanes know of newer size or times of this file than Python and the tables. ANY THREAD.
  virtual bool is_ahead(uint64_t /*ino*/) { return false; }

  // A lane is about to set the file's attributes (sets_mtime: mtime, too). Returns the file's size
  // and the time of its last write; neither is committed before. Nothing: only Python may set them
  // (another client may write, too, or a commit is in flight). ANY THREAD.
  struct Ahead {
    uint64_t size = 0;
    int64_t mtime_ns = 0;  // 0: everything that was written is committed
  };
  virtual std::optional<Ahead> before_setting(uint64_t /*ino*/, bool /*sets_mtime*/) {
    return std::nullopt;
  }

  // The file, which is open with this handle, gets another size. False: only Python can do that.
  // Any lane.
  virtual bool cut(LaneContext& /*lane*/, const CutRequest& /*request*/) { return false; }

  // The kernel may cache this mode and group of the file from now on. A write clears set-ID bits,
  // and the kernel must be told then. ANY THREAD.
  virtual void set_ids_put(uint64_t /*ino*/, uint32_t /*mode*/, uint32_t /*gid*/) {}

  // Whether the file is open here, or was written and not committed yet. ANY THREAD.
  virtual bool is_busy(uint64_t /*ino*/) { return false; }

  // The request with this unique, if it waits here, on any lane. ANY THREAD.
  virtual std::optional<Waiting> waiting(uint64_t unique) = 0;
  // The request shall wait no longer (interruptions.h): it is answered EINTR, or was just answered.
  // False: it does not wait here. ANY THREAD.
  virtual bool interrupt(uint64_t unique) = 0;

  // Called before each request is read.
  virtual Room room() const noexcept { return Room::kPlenty; }

  // The memory for the payload of the next WRITE: `size` bytes that begin on a page; empty: any
  // memory will do. write() then gets the payload there, and the handler may keep the memory if it
  // returns other memory the next time.
  virtual std::span<std::byte> receive_buffer(LaneContext& /*lane*/, size_t /*size*/) { return {}; }
};

// Sends answers to the kernel. ANY THREAD. The caller gets no result: an answer to a request that
// the kernel gave up (ENOENT), or on a connection that has ended (ENODEV), is void.
class Replier {
 public:
  virtual ~Replier() = default;
  // error: a positive errno; 0 means success without a body (FLUSH, RELEASE, FSYNC).
  virtual void reply_error(Channel channel, uint64_t unique, int error) noexcept = 0;
  // The bytes of a READ, in order, in at most kPiecesMax pieces; fewer than requested means end of
  // file.
  virtual void reply_data(Channel channel, uint64_t unique,
                          std::span<const iovec> pieces) noexcept = 0;
  // `count` bytes of a WRITE were written.
  virtual void reply_write(Channel channel, uint64_t unique, uint32_t count) noexcept = 0;

  // An OPEN for reading gets this handle.
  virtual void reply_open(Channel channel, uint64_t unique, uint64_t fh,
                          bool keeps_pages) noexcept = 0;
  // Stores the first bytes of a file as its first pages in the kernel (FUSE_NOTIFY_STORE). The call
  // waits for pages that a READ has locked: nobody may have the file open, except by an OPEN that
  // is not answered yet. False: not all are stored.
  virtual bool store_pages(uint64_t nodeid, std::span<const std::byte> bytes) noexcept = 0;

  static constexpr size_t kPiecesMax = 512;
};

// What the FUSE half reports: events 3, 6, 7 and 11 of docs/INTERFACES.md. ANY THREAD; must not
// block.
class SessionObserver {
 public:
  virtual ~SessionObserver() = default;
  virtual void upcall_interrupted(uint32_t slot) = 0;
  // A request that pyfuse3 does not know; Bridge::answer(slot) must follow. `body`: what is behind
  // its header, valid during the call. `outcome`: for FLUSH, its errno so far. A RELEASE comes with
  // slot 0 and its fh as body, and must not be answered.
  virtual void called(uint32_t slot, const RequestHead& head, uint32_t opcode,
                      std::span<const std::byte> body, int outcome) = 0;
  virtual void unmounted() = 0;
  // A mark among the notifications was reached: the kernel has all those before it.
  virtual void notified(uint64_t /*token*/) {}
  virtual void log(int level,
                   std::string_view text) = 0;  // 10 debug, 20 info, 30 warning, 40 error
};

}  // namespace braidfs::fuse
