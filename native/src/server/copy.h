// COPY: blocks of one object to another one, of targets of this server, without a client. Holes
// stay holes; the sums of whole blocks go along, so what was damaged is found, not copied.
// Blocking: worker threads only.
#pragma once
#include <cstdint>

#include "braidfs/status.h"
#include "store/chunk_store.h"

namespace braidfs::server {

// Offsets and length are whole blocks.
struct Copy {
  store::ChunkStore* from = nullptr;
  store::ChunkStore* to = nullptr;
  store::ObjectId source;
  store::ObjectId sink;
  uint64_t source_offset = 0;
  uint64_t sink_offset = 0;
  uint32_t length = 0;
  uint32_t epoch = 0;  // of the sink
  uint32_t source_epoch = 0;
  bool must_exist = false;       // a source that is not there is kNoObject, else a hole
  bool sink_must_exist = false;  // a sink that is not there is kNoObject, else made
};

// The sink is there after a success, whatever the source holds: a SYNC of it that is answered may
// be told to the metaserver (durable_stripes). Not durable before that SYNC. An error leaves the
// sink as it was up to somewhere, and the source's bytes before that.
Status copy_blocks(const Copy& copy);

}  // namespace braidfs::server
