#include "fuse/open_reply.h"

#include <cerrno>

#include "fuse/parse.h"
#include "fuse/protocol.h"

namespace braidfs::fuse {

namespace {

// The offset of fuse_open_out in the answer; 0: it has none.
size_t open_out_at(uint32_t opcode) noexcept {
  if (opcode == FUSE_OPEN) return sizeof(fuse_out_header);
  if (opcode == FUSE_CREATE || opcode == FUSE_TMPFILE)
    return sizeof(fuse_out_header) + sizeof(fuse_entry_out);
  return 0;
}

}  // namespace

void improve_open_reply(const Upcall& upcall, std::span<std::byte> reply) noexcept {
  const size_t at = open_out_at(upcall.opcode);
  if (at == 0 || reply.size() != at + sizeof(fuse_open_out)) return;
  auto out = load<fuse_open_out>(reply.subspan(at));
  if (!out) return;
  if ((upcall.bits & kUpcallOpenReadOnly) != 0) out->open_flags |= kFopenNoflush;
  if ((upcall.bits & kUpcallOpenDirect) != 0) out->open_flags |= kFopenDirectIo;
  if ((out->open_flags & kFopenDirectIo) != 0) out->open_flags |= kFopenParallelDirectWrites;
  std::memcpy(reply.data() + at, &*out, sizeof(*out));
}

fuse_open_out opened(uint64_t fh, bool keeps_pages) noexcept {
  fuse_open_out out{};
  out.fh = fh;
  out.open_flags = kFopenNoflush;
  if (keeps_pages) out.open_flags |= FOPEN_KEEP_CACHE;
  return out;
}

void pass_through(fuse_open_out& out, uint32_t backing) noexcept {
  out.open_flags &= kFopenDirectIo | kFopenParallelDirectWrites | kFopenNoflush;
  out.open_flags |= kFopenPassthrough;
  out.padding = backing;
}

std::span<std::byte> apply_choice(const Upcall& upcall, std::span<std::byte> reply,
                                  const ChoosePassthrough& choose) {
  constexpr size_t kAt = sizeof(fuse_out_header);
  if (!choose || upcall.opcode != FUSE_OPEN || reply.size() != kAt + sizeof(fuse_open_out))
    return reply;
  auto out = load<fuse_open_out>(reply.subspan(kAt));
  const PassthroughChoice choice = choose(upcall.nodeid, out->fh);
  if (choice.way == PassthroughChoice::Way::kPassthrough) {
    pass_through(*out, choice.backing);
    std::memcpy(reply.data() + kAt, &*out, sizeof(*out));
  } else if (choice.way != PassthroughChoice::Way::kByRequests) {
    const fuse_out_header header = answer_header(upcall.unique, ESTALE, 0);
    std::memcpy(reply.data(), &header, sizeof(header));
    return reply.first(kAt);
  }
  return reply;
}

}  // namespace braidfs::fuse
