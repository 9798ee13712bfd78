// Fuzzes the records of a file that metaservers send: a record that is accepted is complete, and
// has its bytes where the contract says (docs/INTERFACES.md, section 1).
#include <cstdint>
#include <cstdlib>
#include <span>

#include "client/records.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace braidfs;
  const auto bytes = std::as_bytes(std::span(data, size));
  if (bytes.size() < sizeof(Capability)) return 0;
  const auto layout = bytes.subspan(sizeof(Capability));
  const auto view = client::decode_view(layout, bytes.first(sizeof(Capability)));
  if (!view) return 0;
  const size_t tail = view->inline_bytes.size();
  if (layout.size() != 32 + 4 * view->targets.size() + tail || tail > limits::kInlineLengthMax ||
      view->targets.size() != view->stripe_width) {
    std::abort();
  }
  return 0;
}
