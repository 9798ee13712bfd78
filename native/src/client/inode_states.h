// The states of an inode that exclude each other, each as one enum. Inode (inode.h) has one member
// of each, under its mutex.
//
// Which combinations exist (x). Any LocalOpen may come with any Inlining.
//
//   |          | LocalOpen             | Inlining                                         |
//   | Lifetime | kNone  kKept  kGranted| kNo  kPossible  kHandingOver  kReportedMeanwhile |
//   |----------|-----------------------|--------------------------------------------------|
//   | kKnown   |   x      x       x    |  x       x           x                x          |
//   | kDropped |   x              x    |  x       x           x                x          |
//   | kGone    |   x                   |  x       x                                       |
//
// Python ends kKept before it drops the inode; of kGranted it knows nothing, but then a handle is
// open. Bytes that are handed over are in a piece or in a commit. Both make the inode busy, and
// what is busy does not become kGone.
//
// Every other boolean of Inode is a flag that any state may have, and any other flag beside it:
//
// - committing: a commit is under way; written bytes, a close, or a recall may need it.
// - used_during_recall: since Python set the lease last, reads or writes went on under a recalled
// one.
// - is_fetching: the first OPEN is fetching bytes. An interrupted one goes on fetching when its
//   handle is closed, so the next OPEN may make the file a probe as well.
// - is_probe: the file's READs are counted until its next close.
// - watched: a lane looks after the age of the pieces, until none is left.
// - sync_watched: a lane will sync what targets hold, until nothing is unsynced.
// - tells_synced: a replicated file was closed before everything was synced.
// - loss_logged: the log says that an object is lost; it is never taken back.
// - is_immutable(): the newest attributes say so.
// - error_reported_: no error waits to be reported; the error itself stays for other handles.
#pragma once
#include <cstdint>

namespace braidfs::client {

// Whether the entry of an inode in the table is still needed.
enum class Lifetime : uint8_t {
  kKnown,    // Python or a handle needs the entry.
  kDropped,  // Python needs it no more: it goes when nothing holds it (Inode::busy).
  kGone,     // It is out of the table: whoever still has it looks there again.
};

// Why an open for reading is answered by a lane, without an upcall (a local open in
// docs/GLOSSARY.md). Of an inode: why lanes may open it now. Of a handle: why a lane opened it.
enum class LocalOpen : uint8_t {
  kNone,     // No lane opens it: Python does, and knows every handle.
  kKept,     // Python keeps the file open (docs/decisions/0017-kept-open.md).
  kGranted,  // Its directory's grant includes it (0022-directory-grants.md), until its last handle
             // that a lane opened is closed; Python does not know that it is open.
  kCreated,  // Of handles only: a lane created the file (0013-delegation.md). Python knows the
             // handle from when it takes that delegated change.
};

// Whether the bytes of a new file may come to lie in its inode's record
// (docs/decisions/0037-inline-data.md).
enum class Inlining : uint8_t {
  kNo,                 // They come no more: the metaserver knows the file, or lost bytes of it.
  kPossible,           // The metaserver does not know the file yet; its bytes can come along.
  kHandingOver,        // Python has its bytes, and will say whether they were in time.
  kReportedMeanwhile,  // The same, but the metaserver has been told of the file meanwhile.
};

}  // namespace braidfs::client
