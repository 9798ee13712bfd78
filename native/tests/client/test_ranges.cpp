// The mapping between a file and its objects that PUNCH and SEEK rest on.
#include "client/ranges.h"

#include <gtest/gtest.h>

namespace braidfs::client {
namespace {

FileView view_of(uint32_t width) {
  FileView view;
  view.stripe_width = width;
  view.chunk_size = 64u << 10;
  view.rows.resize(width);
  return view;
}

TEST(Ranges, FirstByteOfAStripeAtOrBehindAnOffset) {
  const FileView view = view_of(3);
  const uint64_t chunk = view.chunk_size;
  EXPECT_EQ(object_offset_from(view, 0, 100), 100u);
  EXPECT_EQ(object_offset_from(view, 1, 100), 0u);
  EXPECT_EQ(object_offset_from(view, 0, chunk), chunk);  // chunk 3
  EXPECT_EQ(object_offset_from(view, 1, chunk + 5), 5u);
  EXPECT_EQ(object_offset_from(view, 2, 5 * chunk + 7), chunk + 7);
  EXPECT_EQ(object_offset_from(view, 1, 5 * chunk + 7), 2 * chunk);
}

TEST(Ranges, TheMappingIsItsOwnInverseAndMisses0Bytes) {
  for (const uint32_t width : {1u, 2u, 5u}) {
    const FileView view = view_of(width);
    for (uint64_t offset = 0; offset < 12 * view.chunk_size; offset += view.chunk_size / 4 + 1) {
      uint64_t nearest = ~uint64_t{0};
      for (uint32_t stripe = 0; stripe < width; ++stripe) {
        const uint64_t at = file_offset_of(view, stripe, object_offset_from(view, stripe, offset));
        EXPECT_GE(at, offset);
        nearest = std::min(nearest, at);
      }
      EXPECT_EQ(nearest, offset);
    }
  }
}

}  // namespace
}  // namespace braidfs::client
