#include "fuse/reply_sizes.h"

#include <cstring>

#include "fuse/parse.h"
#include "fuse/protocol.h"

namespace braidfs::fuse {

namespace {

constexpr size_t kHead = sizeof(fuse_out_header);

void clip(std::span<std::byte> reply, size_t at, EofPages& eof_pages) noexcept {
  auto entry = load<fuse_entry_out>(reply.subspan(at));
  if (!entry || entry->nodeid == 0) return;
  const uint64_t size = eof_pages.clip(entry->nodeid, entry->attr.size);
  if (size == entry->attr.size) return;
  entry->attr.size = size;
  entry->attr_valid = 0;
  entry->attr_valid_nsec = 0;
  std::memcpy(reply.data() + at, &*entry, sizeof(*entry));
}

}  // namespace

std::optional<uint64_t> reply_size(const Upcall& upcall,
                                   std::span<const std::byte> reply) noexcept {
  if (upcall.opcode == FUSE_GETATTR && reply.size() == kHead + sizeof(fuse_attr_out)) {
    return load<fuse_attr_out>(reply.subspan(kHead))->attr.size;
  }
  if (upcall.opcode == kOpStatx && reply.size() >= kHead + kStatxSizeAt + sizeof(uint64_t)) {
    return load<uint64_t>(reply.subspan(kHead + kStatxSizeAt));
  }
  return std::nullopt;
}

void clip_sizes(const Upcall& upcall, std::span<std::byte> reply, EofPages& eof_pages) noexcept {
  if (upcall.opcode == FUSE_LOOKUP && reply.size() >= kHead + sizeof(fuse_entry_out)) {
    return clip(reply, kHead, eof_pages);
  }
  if (upcall.opcode != FUSE_READDIRPLUS) return;
  for (size_t at = kHead; at + FUSE_NAME_OFFSET_DIRENTPLUS <= reply.size();) {
    clip(reply, at, eof_pages);
    const auto length =
        load<uint32_t>(reply.subspan(at + offsetof(fuse_direntplus, dirent.namelen)));
    at += FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET_DIRENTPLUS + size_t{*length});
  }
}

}  // namespace braidfs::fuse
