// Fuzzes the FUSE parser: whatever bytes a read of /dev/fuse returns, the parser stays inside them,
// and what it lends lies inside them, too.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "fuse/init.h"
#include "fuse/parse.h"
#include "fuse/protocol.h"

namespace {

using namespace braidfs::fuse;
using Bytes = std::span<const std::byte>;

void expect(bool truth) {
  if (!truth) std::abort();
}

bool inside(Bytes part, Bytes whole) {
  return part.empty() ||
         (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size());
}

struct Check {
  Bytes whole;
  template <typename T>
  void operator()(const T&) const {}
  void operator()(const WriteRequest& r) const { expect(inside(r.payload, whole)); }
  void operator()(const ForgetRequest& r) const {
    expect(inside(r.entries, whole) && r.entries.size() % sizeof(fuse_forget_one) == 0);
  }
  void operator()(const UpcallRequest& r) const {
    expect(inside(r.bytes, whole) && r.bytes.size() <= kUpcallBytesMax);
  }
  void operator()(const ReadRequest& r) const { expect(r.offset + r.size <= INT64_MAX); }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* start, size_t size) {
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), start, size);
  std::visit(Check{bytes}, parse_request(0, bytes, 1u << 20));
  if (size >= sizeof(uint32_t)) {  // the same with a correct length, to get further
    const auto length = static_cast<uint32_t>(size);
    std::memcpy(bytes.data(), &length, sizeof(length));
    std::visit(Check{bytes}, parse_request(0, bytes, 1u << 20));
  }
  const auto agreed = negotiate(bytes, {});
  if (agreed.error == 0) expect(!upcall_init(agreed).empty());
  return 0;
}
