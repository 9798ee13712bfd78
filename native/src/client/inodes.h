// The inodes that native knows: their records, what was written to them, and when they are
// forgotten.
//
// An inode is here from the first record that Python or a lane puts until Python drops it and
// nothing holds it any more (Inode::busy). Invariant: one that has left the table is `gone`, and
// whoever still has it looks here again. Threads: ANY THREAD; the tables' mutexes, and inodes'
// below them. Not here: handles (open_files.h), what becomes possible when bytes are gone
// (pieces.h).
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "client/commits.h"
#include "client/inode.h"
#include "client/leases.h"
#include "client/tables.h"
#include "fuse/request.h"

namespace braidfs::client {

using Bytes = std::span<const std::byte>;

// Records of one file as Python hands them over (docs/INTERFACES.md, section 1), decoded.
struct FileRecords {
  Attributes attributes{};
  FileViewPtr view{};
};
// Nothing: they are malformed.
std::optional<FileRecords> decode_file(Bytes attributes, Bytes layout, Bytes capability);

class Inodes {
 public:
  Inodes(Commits& commits, const Leases& leases) : commits_(commits), leases_(leases) {}

  InodePtr find(uint64_t ino) { return table_.find(ino); }
  std::vector<InodePtr> all() { return table_.all(); }
  size_t count() const noexcept { return table_.count(); }

  // False: malformed records, or the table is full.
  bool put(Bytes attributes, Bytes layout, Bytes capability);
  bool put(const FileRecords& records);
  // False also of an unknown inode, or a view that is older than its own (Inode::view_put).
  bool view_put(uint64_t ino, Bytes layout, Bytes capability);
  void drop(uint64_t ino);
  // Forgets the inode if Python dropped it and nothing holds it any more.
  void idle(const InodePtr& inode);

  std::optional<Written> written(uint64_t ino);
  std::optional<Written> take_written(uint64_t ino);
  // What a drain has taken before is on its way to the metaserver, or to Python.
  bool commits(uint64_t ino);
  void size_limit(uint64_t ino, uint64_t limit);  // Inode::kUnlimited: none
  // A replicated file was closed. True: not all of it is known to be durable on all replicas, and a
  // SYNCED event follows when it is.
  bool closed_unsynced(uint64_t ino);
  // A process before this one took along what was written to it: its handles are told EIO.
  bool fail(uint64_t ino);
  void set_ids_put(uint64_t ino, uint32_t mode, uint32_t gid);

  // fuse::DataHandler has what these say.
  bool is_ahead(uint64_t ino);
  bool is_busy(uint64_t ino);
  std::optional<fuse::DataHandler::Ahead> before_setting(uint64_t ino, bool sets_mtime);

  // Python takes the delegated creation of a file: what was committed with it until now. What comes
  // later is committed as ever, and its RELEASE is reported if it is open. spare_open: then nothing
  // is taken.
  std::optional<names::BirthSince> birth_take(uint64_t ino, bool spare_open);
  // The metaserver has been told of these files as they are: nothing more can come along with that.
  void creations_reported(std::span<const uint64_t> inos);

  // Whether lanes may cut the file by themselves, which they may not as long as anybody paused it.
  enum class CutState : uint8_t { kUnknown, kReported, kUnreported };
  CutState pause_cuts(uint64_t ino, bool paused);

 private:
  Commits& commits_;
  const Leases& leases_;
  InodeTable table_{kInodesMax};
};

}  // namespace braidfs::client
