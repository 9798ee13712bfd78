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
  const size_t rows = view->rows.size();
  const size_t size = view->is_replicated ? 40 + 8 * rows : 32 + 4 * rows;
  if (layout.size() != size + tail || tail > limits::kInlineLengthMax ||
      rows != size_t{view->stripe_width} * view->places) {
    std::abort();
  }
  for (uint32_t stripe = 0; stripe < view->stripe_width; ++stripe) {
    const auto replicas = view->replicas(stripe);
    if (replicas.size() > limits::kReplicaPlacesMax) std::abort();
    for (const client::Replica& replica : replicas) {
      const bool is_vacant = view->is_replicated && replica.target == client::FileView::kVacant;
      if (is_vacant || stripe_of(replica.object_number) != stripe) std::abort();
    }
  }
  return 0;
}
