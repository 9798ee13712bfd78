// COPY: copies blocks of one object to another one, between targets of this server, without a
// client.
//
// Holes stay holes. The sums of whole blocks are copied along, so a damaged block is found and not
// copied. Threads: blocking, worker threads only.
#pragma once
#include <cstdint>

#include "braidfs/status.h"
#include "store/chunk_store.h"

namespace braidfs::server {

// What to copy. Offsets and length are whole blocks.
struct Copy {
  store::ChunkStore* from = nullptr;
  store::ChunkStore* to = nullptr;
  store::ObjectId source;
  store::ObjectId sink;
  uint64_t source_offset = 0;
  uint64_t sink_offset = 0;
  uint32_t length = 0;
  uint32_t epoch = 0;  // truncate epoch of the sink
  uint32_t source_epoch = 0;
  bool must_exist = false;       // a missing source is kNoObject; otherwise it is a hole
  bool sink_must_exist = false;  // a missing sink is kNoObject; otherwise it is created
};

// After a success the sink exists, whatever the source holds. It is durable after a SYNC of it,
// which may then be reported to the metaserver (durable_stripes). An error leaves the sink with the
// source's bytes up to some point, and as it was behind that.
Status copy_blocks(const Copy& copy);

}  // namespace braidfs::server
