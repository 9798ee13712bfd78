// Which requests a storage server accepts: checks that need nothing but the frame. Pure, any
// thread. Two steps: shape() on the header alone, before memory is spent on body and payload;
// body_of() when the body is there. Sessions, targets and capabilities are checked by the lane.
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
  bool payload = false;          // a WRITE carries its bytes, nothing else does
  bool capability = false;       // needed unless the connection's purpose is kServer
  bool metaserver_only = false;  // refused on a kData connection
  bool range = false;            // offset and length name bytes of the object
  uint32_t rights = 0;
  bool source = false;  // a COPY names what it reads in its body
  uint32_t names_max =
      0;  // it names so many objects there, at most: the header's length says how many
  uint32_t name_bytes = 0;  // of each
  bool must_exist = false;  // may say that its object must be there
};

// nullptr: not an operation of the data wire.
const OpSpec* spec_of(uint8_t op);

// Anything but kOk means that the peer broke the protocol: it gets this answer and is closed.
Status shape(const FrameHeader& header, Purpose purpose);

// What a body of the right shape holds; the views are of the body.
struct RequestBody {
  std::optional<Capability> capability;
  std::span<const std::byte> sums;  // packed u64, one per block
  std::optional<CopySource> source;
  std::optional<Capability> source_capability;
};
// The objects of a DELETE_ALL whose header has the right shape; none: one of them cannot be.
std::vector<store::ObjectId> names_of(std::span<const std::byte> body);
// Those of a FETCH; none: one of them cannot be.
std::vector<FetchedObject> fetched_of(std::span<const std::byte> body);
// Whether the source of a COPY is a range of whole blocks that can be.
bool source_fits(const FrameHeader& header, const CopySource& source);

RequestBody body_of(const FrameHeader& header, std::span<const std::byte> body);

}  // namespace braidfs::server
