// Which requests a storage server accepts: the checks that need nothing but the frame.
//
// There are two steps: shape() checks the header alone, before memory is spent on body and payload;
// body_of() splits the body when it is there. The lane checks sessions, targets and capabilities
// (connection.cpp). Pure: ANY THREAD.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "braidfs/frame.h"
#include "store/chunk_store.h"

namespace braidfs::server {

enum class Purpose : uint8_t { kData, kServer };

struct OpSpec {
  bool payload = false;          // only a WRITE has a payload
  bool capability = false;       // needed unless the connection's purpose is kServer
  bool metaserver_only = false;  // refused on a kData connection
  bool range = false;            // offset and length name bytes of the object
  uint32_t rights = 0;
  bool source = false;  // a COPY names its source in the body
  // The body names at most so many objects; the header's length says how many. 0: it names none.
  uint32_t names_max = 0;
  uint32_t name_bytes = 0;  // size of each name
  bool must_exist = false;  // the request may say that its object must exist
  bool undropped = false;   // refused for an object whose name was dropped, a COPY for either
};

// nullptr: the op is not part of the data protocol.
const OpSpec* spec_of(uint8_t op);

// Checks a header. Anything but kOk means that the peer broke the protocol: it gets this status,
// and its connection is closed.
Status shape(const FrameHeader& header, Purpose purpose);

// The parts of a body of the right shape; the views point into the body.
struct RequestBody {
  std::optional<Capability> capability;
  std::span<const std::byte> sums;  // packed u64, one per block
  std::optional<CopySource> source;
  std::optional<Capability> source_capability;
};
// The objects that a DELETE_ALL or a DROP_NAMES of the right shape names. Empty: one of them is not
// valid.
std::vector<store::ObjectId> names_of(std::span<const std::byte> body);
// The objects that a FETCH names. Empty: one of them is not valid.
std::vector<FetchedObject> fetched_of(std::span<const std::byte> body);
// True when the source of a COPY is a valid range of whole blocks.
bool source_fits(const FrameHeader& header, const CopySource& source);

// Splits the body of a request whose header has the right shape.
RequestBody body_of(const FrameHeader& header, std::span<const std::byte> body);

}  // namespace braidfs::server
