#include "metaserver.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "braidfs/commit_flags.h"

namespace braidfs::world {

namespace {

constexpr size_t kAttributesBytes = 128;
constexpr size_t kLayoutHeadBytes = 32;

template <typename T>
void put(Bytes& bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
}

}  // namespace

uint64_t FileRecord::object_length(uint32_t stripe, uint64_t file_size) const noexcept {
  const uint64_t width = targets.size();
  uint64_t end = 0;
  for (uint64_t chunk = stripe; chunk * chunk_size < file_size; chunk += width)
    end =
        chunk / width * chunk_size + std::min<uint64_t>(chunk_size, file_size - chunk * chunk_size);
  return end;
}

Metaserver::Metaserver(Clockwork& clockwork, Network& network,
                       std::vector<std::unique_ptr<StorageHost>>& hosts, const KeyBytes& key,
                       Tampering* tampering)
    : clockwork_(clockwork),
      network_(network),
      hosts_(hosts),
      key_(key),
      tampering_(tampering),
      links_(hosts.size()) {}

FileRecord& Metaserver::create(uint64_t ino, std::vector<uint32_t> targets, uint32_t chunk_size) {
  return files_
      .emplace(
          ino,
          FileRecord{
              .ino = ino, .file_id = ino, .chunk_size = chunk_size, .targets = std::move(targets)})
      .first->second;
}

// ---- records (docs/INTERFACES.md, section 1) ----

Bytes Metaserver::attributes(uint64_t ino) const {
  const FileRecord& file = files_.at(ino);
  Bytes record(kAttributesBytes);
  put(record, 0, file.ino);
  put(record, 8, file.size);
  put(record, 80, file.version);
  put(record, 88, file.version);
  return record;
}

Bytes Metaserver::layout(uint64_t ino) const {
  const FileRecord& file = files_.at(ino);
  Bytes record(kLayoutHeadBytes + sizeof(uint32_t) * file.targets.size());
  put<uint8_t>(record, 0, 1);
  put<uint8_t>(record, 1, 1);
  put(record, 2, static_cast<uint16_t>(file.targets.size()));
  put(record, 4, file.chunk_size);
  put(record, 8, file.file_id);
  put(record, 16, file.epoch);
  put(record, 24, file.durable_stripes);
  for (size_t stripe = 0; stripe < file.targets.size(); ++stripe)
    put(record, kLayoutHeadBytes + sizeof(uint32_t) * stripe, file.targets[stripe]);
  return record;
}

Bytes Metaserver::capability(uint64_t ino, uint64_t session) const {
  const FileRecord& file = files_.at(ino);
  Capability capability;
  capability.file_id = file.file_id;
  capability.session = session;
  capability.rights = kRightRead | kRightWrite;
  capability.ino = ino;
  capability.stripe_width = static_cast<uint16_t>(file.targets.size());
  capability.truncate_epoch = file.epoch;
  for (size_t stripe = 0; stripe < file.targets.size(); ++stripe) {
    const uint64_t mark = target_mark(file.targets[stripe], capability.stripe_width);
    capability.target_marks |= mark << (stripe * target_mark_width(capability.stripe_width));
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> mac{};
  unsigned int length = 0;
  HMAC(EVP_sha256(), key_.data(), static_cast<int>(key_.size()),
       reinterpret_cast<const unsigned char*>(&capability),
       sizeof(capability) - sizeof(capability.mac), mac.data(), &length);
  std::memcpy(capability.mac, mac.data(), sizeof(capability.mac));
  const auto raw = std::as_bytes(std::span(&capability, 1));
  return {raw.begin(), raw.end()};
}

// ---- changes of files ----

void Metaserver::commit(uint64_t ino, const Commit& commit) {
  FileRecord& file = files_.at(ino);
  ++file.version;
  if ((commit.flags & kCommitSize) != 0) file.size = std::max(file.size, commit.size);
  if ((commit.flags & kCommitSynced) != 0 && commit.file_id == file.file_id)
    file.durable_stripes |= commit.stripes;
}

// A shrink has the targets cut. A file that ends empty gets other objects instead. Nobody sees size
// and epoch before all targets have answered.
void Metaserver::set_size(uint64_t ino, uint64_t size, uint64_t reach, std::function<void()> done) {
  FileRecord& file = files_.at(ino);
  const uint64_t former = std::max(file.size, reach);
  const uint32_t epoch = size < former ? file.epoch + 1 : file.epoch;
  clockwork_.trace.note("file %llu gets size %llu after %llu", static_cast<unsigned long long>(ino),
                        static_cast<unsigned long long>(size),
                        static_cast<unsigned long long>(former));
  const auto finish = [&file, size, epoch, done = std::move(done)] {
    ++file.version;
    file.size = size;
    file.epoch = epoch;
    done();
  };
  if (size < former && size == 0) {
    file.file_id = ++last_file_id_;
    file.durable_stripes = 0;
  }
  if (size >= former || size == 0) return finish();
  auto left = std::make_shared<size_t>(file.targets.size());
  for (uint32_t stripe = 0; stripe < file.targets.size(); ++stripe) {
    ask(file.targets[stripe], truncate_of(file, stripe, size, epoch),
        [left, finish](Status status) {
          if (status != Status::kOk) throw std::logic_error("a TRUNCATE was refused");
          if (--*left == 0) finish();
        });
  }
}

Frame Metaserver::truncate_of(const FileRecord& file, uint32_t stripe, uint64_t size,
                              uint32_t epoch) {
  Frame frame;
  frame.header.op = static_cast<uint8_t>(Op::kTruncate);
  frame.header.file_id = file.file_id;
  frame.header.stripe_index = stripe;
  frame.header.target = file.targets[stripe];
  frame.header.offset = file.object_length(stripe, size);
  frame.header.epoch = epoch;
  const bool is_durable = (file.durable_stripes >> stripe & 1) != 0;
  if (is_durable && frame.header.offset != 0) frame.header.flags |= kFlagMustExist;
  return frame;
}

// ---- requests to storage servers ----

void Metaserver::ask(uint32_t target, Frame frame, std::function<void(Status)> done) {
  for (uint32_t host = 0; host < hosts_.size(); ++host) {
    const auto& targets = hosts_[host]->targets();
    if (std::find(targets.begin(), targets.end(), target) == targets.end()) continue;
    links_[host].asked.push_back({std::move(frame), std::move(done)});
    if (links_[host].asked.size() == 1) send(host);
    return;
  }
}

void Metaserver::send(uint32_t host) {
  Link& link = links_[host];
  if (link.asked.empty()) return;
  const uint64_t attempt = ++link.attempt;
  if (!link.wire) return connect(host);
  Frame& frame = link.asked.front().frame;
  frame.header.request_id = ++last_request_;
  link.wire->send(Side::kClient, frame);
  clockwork_.agenda.after(kPatience, [this, host, attempt] {
    Link& silent = links_[host];
    if (silent.attempt != attempt || silent.asked.empty()) return;
    silent.wire.reset();
    send(host);
  });
}

// The server ends the requests of the former connection first.
void Metaserver::connect(uint32_t host) {
  Link& link = links_[host];
  auto wire = network_.connect("meta-" + std::to_string(host), host, tampering_);
  const uint64_t connection = ++last_connection_;
  const bool is_adopted = hosts_[host]->adopt({.socket = wire->plug_in(Side::kServer),
                                               .purpose = server::Purpose::kServer,
                                               .session = 0,
                                               .connection = connection,
                                               .previous = link.connection});
  if (!is_adopted) {
    wire->cut(VirtualTime::now(), VirtualTime::now());
    return again(host, milliseconds(300));
  }
  link.connection = connection;
  link.wire = wire;
  wire->received = [this, host, at = wire.get()](const Frame& frame) {
    if (links_[host].wire.get() == at) answered(host, frame);
  };
  wire->ended = [this, host, at = wire.get()] {
    if (links_[host].wire.get() != at) return;
    links_[host].wire.reset();
    again(host, milliseconds(100));
  };
  send(host);
}

void Metaserver::again(uint32_t host, Duration rest) {
  const uint64_t attempt = ++links_[host].attempt;
  clockwork_.agenda.after(rest, [this, host, attempt] {
    if (links_[host].attempt == attempt) send(host);
  });
}

void Metaserver::answered(uint32_t host, const Frame& reply) {
  Link& link = links_[host];
  if (link.asked.empty() || link.asked.front().frame.header.request_id != reply.header.request_id)
    return;
  if (reply.status() == Status::kNotReady || reply.status() == Status::kBusy)
    return again(host, milliseconds(200));
  const Asked asked = std::move(link.asked.front());
  link.asked.pop_front();
  ++link.attempt;
  asked.done(reply.status());
  send(host);
}

}  // namespace braidfs::world
