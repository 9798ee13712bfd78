// Fuzzes the receiving side of a storage server without its sockets: FrameParser, then the
// admission checks and the payload sums, on streams cut at every place. Half of the inputs are raw.
// In the other half each header and body gets its correct checksum, so that the code behind the
// checksums is reached.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "net/frame_parser.h"
#include "server/admission.h"

namespace {

using Bytes = std::vector<std::byte>;

constexpr uint32_t kPayloadMax = 8u << 10;
constexpr uint32_t kBodyMax = 4096;

void require(bool holds) {
  if (!holds) std::abort();
}

class Input {
 public:
  explicit Input(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool empty() const { return rest_.empty(); }
  std::span<const std::byte> take(size_t count) {
    const auto taken = rest_.first(std::min(count, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  uint8_t byte() {
    const auto taken = take(1);
    return taken.empty() ? uint8_t{0} : static_cast<uint8_t>(taken[0]);
  }

 private:
  std::span<const std::byte> rest_;
};

void append(Bytes& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

// Appends a frame as a peer with correct checksums could send it.
void append_sealed(Bytes& stream, Input& input) {
  braidfs::FrameHeader header;
  const auto raw = input.take(sizeof header);
  std::memcpy(&header, raw.data(), raw.size());
  header.magic = braidfs::kFrameMagic;
  header.version = braidfs::kFrameVersion;
  header.flags &= braidfs::kFlagsKnown;
  header.reserved = 0;
  header.body_length %= kBodyMax + 16;
  header.payload_length %= kPayloadMax + 16;
  Bytes body(header.body_length);
  std::ranges::copy(input.take(body.size()), body.begin());
  header.body_checksum = body.empty() ? 0 : braidfs::xxh3(body);
  seal(header);
  append(stream, std::as_bytes(std::span(&header, 1)));
  append(stream, body);
  Bytes payload(header.payload_length);
  std::ranges::copy(input.take(payload.size()), payload.begin());
  append(stream, payload);
}

class Sink final : public braidfs::net::FrameSink {
 public:
  braidfs::net::PayloadPlace payload_buffer(const braidfs::FrameHeader& header,
                                            std::span<const std::byte> body) override {
    using braidfs::net::Verdict;
    check_head(header, body);
    require(header.payload_length > 0 && header.payload_length <= kPayloadMax);
    if ((header.request_id & 1) != 0 && !paused_) {
      paused_ = true;
      return {.verdict = Verdict::kPause};
    }
    paused_ = false;
    if ((header.request_id & 2) != 0) return {.verdict = Verdict::kDiscard};
    if ((header.request_id & 12) == 12) return {.verdict = Verdict::kRefuse};
    payload_.assign(header.payload_length, std::byte{0});
    return {.verdict = Verdict::kTake, .bytes = payload_};
  }

  bool frame(const braidfs::FrameHeader& header, std::span<const std::byte> body,
             std::span<std::byte> payload) override {
    check_head(header, body);
    require(payload.size() == header.payload_length);
    require(payload.empty() || payload.data() == payload_.data());
    admit(header, body, payload);
    return header.request_id != 0;
  }

 private:
  static void check_head(const braidfs::FrameHeader& header, std::span<const std::byte> body) {
    require(body.size() == header.body_length && body.size() <= kBodyMax);
    require(header.body_checksum == (body.empty() ? 0 : braidfs::xxh3(body)));
    require(reinterpret_cast<uintptr_t>(body.data()) % 8 == 0);
  }

  static void admit(const braidfs::FrameHeader& header, std::span<const std::byte> body,
                    std::span<const std::byte> payload) {
    using namespace braidfs::server;
    const auto purpose = (header.epoch & 1) != 0 ? Purpose::kServer : Purpose::kData;
    if (shape(header, purpose) != braidfs::Status::kOk) return;
    const RequestBody parts = body_of(header, body);
    check_names(header, purpose, body);
    if (payload.empty()) return;
    std::vector<uint64_t> sums(braidfs::blocks_touched(header.offset, header.length));
    require(parts.sums.size() == 8 * sums.size());
    std::memcpy(sums.data(), parts.sums.data(), parts.sums.size());
    (void)braidfs::first_mismatch(header.offset, payload, sums);
  }

  // All of the names, or none.
  static void check_names(const braidfs::FrameHeader& header, braidfs::server::Purpose purpose,
                          std::span<const std::byte> body) {
    using braidfs::Op;
    const auto op = static_cast<Op>(header.op);
    if (op != Op::kDeleteAll && op != Op::kDropNames) return;
    require(purpose == braidfs::server::Purpose::kServer);
    require(header.length <= braidfs::limits::kDropNamesMax || op == Op::kDeleteAll);
    const auto names = braidfs::server::names_of(body);
    require(names.empty() || names.size() == header.length);
  }

  Bytes payload_;
  bool paused_ = false;
};

// One "recvmsg" of at most `count` bytes. False when the parser wants no more.
bool feed(braidfs::net::FrameParser& parser, Sink& sink, std::span<const std::byte>& stream,
          size_t count) {
  using braidfs::net::ParseResult;
  std::array<iovec, 2> places{};
  const size_t used = parser.wanted(places);
  if (used == 0) return false;
  size_t filled = 0;
  count = std::min(count, stream.size());
  for (size_t index = 0; index < used && filled < count; ++index) {
    const size_t part = std::min(places[index].iov_len, count - filled);
    std::memcpy(places[index].iov_base, stream.data() + filled, part);
    filled += part;
  }
  stream = stream.subspan(filled);
  ParseResult result = parser.received(filled, sink);
  while (result == ParseResult::kPaused) result = parser.resume(sink);
  return result == ParseResult::kMore;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* begin, size_t size) {
  Input input(std::as_bytes(std::span(begin, size)));
  const uint8_t mode = input.byte();
  const size_t cut = size_t{input.byte()} * input.byte() + 1;
  Bytes stream;
  if ((mode & 1) != 0) {
    while (!input.empty()) append_sealed(stream, input);
  } else {
    append(stream, input.take(size));
  }
  Sink sink;
  braidfs::net::FrameParser parser(kBodyMax, kPayloadMax);
  std::span<const std::byte> rest(stream);
  while (!rest.empty() && feed(parser, sink, rest, cut)) {
  }
  return 0;
}
