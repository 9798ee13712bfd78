#include "simulated_device.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace braidfs::store::test {

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kSector = 512;

struct Path {
  std::string directory;
  std::string name;
};

Path split(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {"", path};
  return {path.substr(0, slash), path.substr(slash + 1)};
}

}  // namespace

void Bytes::read(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const uint64_t within = offset % kPage;
    const size_t length = std::min<size_t>(out.size(), kPage - within);
    const auto found = pages_.find(offset / kPage);
    if (found == pages_.end())
      std::memset(out.data(), 0, length);
    else
      std::memcpy(out.data(), found->second.data() + within, length);
    out = out.subspan(length);
    offset += length;
  }
}

void Bytes::write(uint64_t offset, std::span<const std::byte> in) {
  size_ = std::max(size_, offset + in.size());
  while (!in.empty()) {
    const uint64_t within = offset % kPage;
    const size_t length = std::min<size_t>(in.size(), kPage - within);
    auto [page, fresh] = pages_.try_emplace(offset / kPage);
    std::memcpy(page->second.data() + within, in.data(), length);
    in = in.subspan(length);
    offset += length;
  }
}

void Bytes::punch(uint64_t offset, uint64_t length) {
  const uint64_t end = offset + length;
  auto page = pages_.lower_bound(offset / kPage);
  while (page != pages_.end() && page->first * kPage < end) {
    const uint64_t start = page->first * kPage;
    const uint64_t from = std::max(offset, start) - start;
    const uint64_t to = std::min(end, start + kPage) - start;
    if (to - from == kPage) {
      page = pages_.erase(page);
    } else {
      std::memset(page->second.data() + from, 0, to - from);
      ++page;
    }
  }
}

void Bytes::resize(uint64_t size) {
  if (size < size_) punch(size, size_ - size);
  size_ = size;
}

void Bytes::flip(uint64_t offset, uint8_t bits) {
  pages_[offset / kPage][offset % kPage] ^= std::byte{bits};
}

void Bytes::zero(uint64_t offset, uint64_t length) {
  write(offset, std::vector<std::byte>(length));
}

std::vector<uint64_t> Bytes::page_offsets() const {
  std::vector<uint64_t> offsets;
  for (const auto& [index, page] : pages_) offsets.push_back(index * kPage);
  return offsets;
}

class SimulatedFile final : public File {
 public:
  SimulatedFile(Host& host, uint64_t generation, std::shared_ptr<Inode> inode)
      : host_(host), generation_(generation), inode_(std::move(inode)) {}

  int fd() const noexcept override { return -1; }

  int64_t readv(std::span<const iovec> parts, uint64_t offset, bool nowait) override {
    const std::lock_guard guard(host_.mu_);
    if (!host_.alive(generation_)) return -EIO;
    if (nowait && host_.misses()) return -EAGAIN;
    int64_t total = 0;
    for (const iovec& part : parts) {
      const uint64_t size = inode_->now.size();
      const size_t length = std::min<uint64_t>(part.iov_len, size - std::min(size, offset));
      inode_->now.read(offset, {static_cast<std::byte*>(part.iov_base), length});
      total += static_cast<int64_t>(length);
      offset += length;
      if (length != part.iov_len) break;
    }
    return total;
  }

  int64_t writev(std::span<const iovec> parts, uint64_t offset) override {
    const std::lock_guard guard(host_.mu_);
    if (!host_.step(generation_)) return -EIO;
    Change change{Change::kWrite, offset, 0, {}};
    for (const iovec& part : parts) {
      const auto* bytes = static_cast<const std::byte*>(part.iov_base);
      change.bytes.insert(change.bytes.end(), bytes, bytes + part.iov_len);
    }
    if (host_.allocated() + change.bytes.size() > host_.bytes_max) return -ENOSPC;
    inode_->now.write(offset, change.bytes);
    const auto written = static_cast<int64_t>(change.bytes.size());
    inode_->changes.push_back(std::move(change));
    return written;
  }

  int write_out(uint64_t, uint64_t) override { return 0; }
  void will_need(uint64_t, uint64_t) override {}
  int sync() override {
    const std::lock_guard guard(host_.mu_);
    if (!host_.step(generation_)) return -EIO;
    if (host_.sync_result != 0) return host_.sync_result;
    host_.sync(*inode_);
    return 0;
  }
  int truncate(uint64_t size) override {
    const std::lock_guard guard(host_.mu_);
    if (!host_.step(generation_)) return -EIO;
    inode_->now.resize(size);
    inode_->changes.push_back({Change::kResize, size, 0, {}});
    return 0;
  }
  int punch(uint64_t offset, uint64_t length) override {
    const std::lock_guard guard(host_.mu_);
    if (!host_.step(generation_)) return -EIO;
    inode_->now.punch(offset, length);
    inode_->changes.push_back({Change::kPunch, offset, length, {}});
    return 0;
  }
  int allocate(uint64_t, uint64_t) override { return 0; }
  int figures(FileFigures& figures) override {
    const std::lock_guard guard(host_.mu_);
    if (!host_.alive(generation_)) return -EIO;
    figures = {inode_->now.size(), inode_->now.allocated(), inode_->now.mark};
    return 0;
  }
  int set_mark(uint8_t mark) override {
    const std::lock_guard guard(host_.mu_);
    if (!host_.step(generation_)) return -EIO;
    inode_->now.mark = mark;
    inode_->changes.push_back({Change::kMark, mark, 0, {}});
    return 0;
  }
  int64_t next_data(uint64_t offset) override {
    const std::lock_guard guard(host_.mu_);
    if (!host_.alive(generation_)) return -EIO;
    for (const uint64_t page : inode_->now.page_offsets()) {
      if (page + kPage > offset) return static_cast<int64_t>(std::max(page, offset));
    }
    return -ENXIO;
  }
  bool is_cached(uint64_t, uint64_t) override { return host_.pages_cached; }

 private:
  Host& host_;
  const uint64_t generation_;
  std::shared_ptr<Inode> inode_;
};

class SimulatedDevice final : public Device {
 public:
  SimulatedDevice(Host& host, uint64_t generation) : host_(host), generation_(generation) {}

  int open(const std::string& path, OpenMode mode, std::shared_ptr<File>& file) override {
    const std::lock_guard guard(host_.mu_);
    if (!host_.alive(generation_)) return -EIO;
    if (host_.open_result < 0) return host_.open_result;
    if (mode == OpenMode::kCached && host_.misses()) return -EAGAIN;
    const Path parts = split(path);
    Directory& directory = host_.directories_[parts.directory];
    auto found = directory.now.find(parts.name);
    if (found == directory.now.end()) {
      if (mode != OpenMode::kCreate) return -ENOENT;
      if (host_.files_max != 0 && host_.file_count() >= host_.files_max) return -ENOSPC;
      if (!host_.step(generation_)) return -EIO;
      const auto inode = std::make_shared<Inode>();
      found = directory.now.emplace(parts.name, inode).first;
      directory.changes.push_back({parts.name, inode});
    }
    file = std::make_shared<SimulatedFile>(host_, generation_, found->second);
    return 0;
  }
  // Directories are durable at once: the store creates them once and syncs their parent.
  int make_directory(const std::string& path) override {
    const std::lock_guard guard(host_.mu_);
    if (!host_.step(generation_)) return -EIO;
    host_.directories_.try_emplace(path);
    return 0;
  }
  int rename(const std::string& from, const std::string& to) override {
    const std::lock_guard guard(host_.mu_);
    if (!host_.step(generation_)) return -EIO;
    Directory& directory = host_.directories_[split(from).directory];
    const auto found = directory.now.find(split(from).name);
    if (found == directory.now.end()) return -ENOENT;
    const auto inode = found->second;
    directory.now.erase(found);
    directory.now[split(to).name] = inode;
    directory.changes.push_back({split(to).name, inode});
    return 0;
  }
  int unlink(const std::string& path) override {
    const std::lock_guard guard(host_.mu_);
    if (!host_.step(generation_)) return -EIO;
    const Path parts = split(path);
    Directory& directory = host_.directories_[parts.directory];
    if (directory.now.erase(parts.name) == 0) return -ENOENT;
    directory.changes.push_back({parts.name, nullptr});
    return 0;
  }
  int sync_directory(const std::string& path) override {
    const std::lock_guard guard(host_.mu_);
    if (!host_.step(generation_)) return -EIO;
    host_.sync(host_.directories_[path]);
    return 0;
  }
  int sync_all() override {
    const std::lock_guard guard(host_.mu_);
    if (!host_.step(generation_)) return -EIO;
    if (host_.sync_result != 0) return host_.sync_result;
    for (auto& [path, directory] : host_.directories_) {
      host_.sync(directory);
      for (auto& [name, inode] : directory.now) host_.sync(*inode);
    }
    return 0;
  }
  int list(const std::string& path,
           const std::function<void(std::string_view name)>& visit) override {
    std::vector<std::string> names;
    {
      const std::lock_guard guard(host_.mu_);
      if (!host_.alive(generation_)) return -EIO;
      const auto found = host_.directories_.find(path);
      if (found == host_.directories_.end()) return -ENOENT;
      for (const auto& [name, inode] : found->second.now) names.push_back(name);
    }
    for (const std::string& name : names) visit(name);
    return 0;
  }
  int space(DeviceSpace& space) override {
    ++host_.space_asked;
    const std::lock_guard guard(host_.mu_);
    const uint64_t total = std::min<uint64_t>(host_.bytes_max, uint64_t{1} << 40);
    const uint64_t used = host_.bytes_max == UINT64_MAX ? 0 : host_.allocated();
    const uint64_t files = host_.files_max;
    space = {total, total - std::min(total, used), files,
             files - std::min(files, host_.file_count())};
    return 0;
  }
  int lock(const std::string&) override { return 0; }
  std::string boot_id() override { return "boot-" + std::to_string(host_.boot_); }

 private:
  Host& host_;
  const uint64_t generation_;
};

std::shared_ptr<Device> Host::boot(bool new_boot) {
  const std::lock_guard guard(mu_);
  if (new_boot) ++boot_;
  dead_ = false;
  die_at_ = UINT64_MAX;
  directories_.try_emplace("");
  return std::make_shared<SimulatedDevice>(*this, ++generation_);
}

void Host::kill() {
  const std::lock_guard guard(mu_);
  ++generation_;
}

void Host::die() {
  const std::lock_guard guard(mu_);
  dead_ = true;
}

void Host::die_after(uint64_t changes) {
  const std::lock_guard guard(mu_);
  die_at_ = changes_ + changes;
}

bool Host::dead() const {
  const std::lock_guard guard(mu_);
  return dead_;
}

uint64_t Host::changes() const {
  const std::lock_guard guard(mu_);
  return changes_;
}

bool Host::step(uint64_t generation) {
  if (!alive(generation)) return false;
  if (changes_ >= die_at_) dead_ = true;
  ++changes_;
  return !dead_;
}

bool Host::misses() { return misses_one_in != 0 && random_() % misses_one_in == 0; }

void Host::sync(Inode& inode) {
  if (ignores_syncs) return;
  for (const Change& change : inode.changes) apply(inode.durable, change, false);
  inode.changes.clear();
}

void Host::sync(Directory& directory) {
  if (directory.changes.empty()) return;
  directory.durable = directory.now;
  directory.changes.clear();
}

void Host::apply(Bytes& bytes, const Change& change, bool torn) {
  if (change.kind == Change::kPunch) return bytes.punch(change.offset, change.length);
  if (change.kind == Change::kResize) return bytes.resize(change.offset);
  if (change.kind == Change::kMark) {
    bytes.mark = static_cast<uint8_t>(change.offset);
    return;
  }
  if (!torn) return bytes.write(change.offset, change.bytes);
  const std::span<const std::byte> all = change.bytes;
  const bool mostly = random_() % 2 == 0;
  for (uint64_t at = 0; at < all.size();) {
    const uint64_t length =
        std::min<uint64_t>(kSector - (change.offset + at) % kSector, all.size() - at);
    const bool lost = mostly ? random_() % 8 == 0 : random_() % 2 == 0;
    if (!lost) bytes.write(change.offset + at, all.subspan(at, length));
    at += length;
  }
}

// Any subset of the changes may have arrived. Writes in another order have the same result as
// dropping some of them, if they do not overlap, so the surviving writes to one place keep their
// order.
void Host::lose(Inode& inode) {
  const uint64_t mood = random_() % 4;
  for (const Change& change : inode.changes) {
    const uint64_t dice = random_() % 8;
    const bool dropped = mood == 0 || (mood != 1 && dice < 3);
    if (dropped) continue;
    apply(inode.durable, change, mood == 2 || dice == 7);
  }
  inode.changes.clear();
  inode.now = inode.durable;
}

void Host::cut() {
  const std::lock_guard guard(mu_);
  ++generation_;
  // An inode may be named twice: losing it twice has the same effect as once.
  std::vector<std::shared_ptr<Inode>> inodes;
  for (auto& [path, directory] : directories_) {
    for (auto& [name, inode] : directory.now) inodes.push_back(inode);
    for (auto& [name, inode] : directory.durable) inodes.push_back(inode);
    for (NameChange& change : directory.changes) {
      if (change.inode) inodes.push_back(change.inode);
      if (random_() % 2 == 0) continue;
      if (change.inode)
        directory.durable[change.name] = change.inode;
      else
        directory.durable.erase(change.name);
    }
    directory.changes.clear();
    directory.now = directory.durable;
  }
  for (const auto& inode : inodes) lose(*inode);
}

void Host::become(const Host& other) {
  const std::lock_guard guard(mu_);
  std::unordered_map<const Inode*, std::shared_ptr<Inode>> copies;
  const auto copy_of = [&](const std::shared_ptr<Inode>& inode) {
    auto& copy = copies[inode.get()];
    if (!copy) copy = std::make_shared<Inode>(*inode);
    return copy;
  };
  directories_ = other.directories_;
  for (auto& [path, directory] : directories_) {
    for (auto& [name, inode] : directory.now) inode = copy_of(inode);
    for (auto& [name, inode] : directory.durable) inode = copy_of(inode);
    for (NameChange& change : directory.changes) {
      if (change.inode) change.inode = copy_of(change.inode);
    }
  }
  boot_ = other.boot_;
  ++generation_;
}

void Host::forget(const std::string& path) {
  const std::lock_guard guard(mu_);
  const Path parts = split(path);
  directories_[parts.directory].now.erase(parts.name);
  directories_[parts.directory].durable.erase(parts.name);
}

std::shared_ptr<Inode> Host::find(const std::string& path) {
  const std::lock_guard guard(mu_);
  const Path parts = split(path);
  Directory& directory = directories_[parts.directory];
  const auto found = directory.now.find(parts.name);
  return found == directory.now.end() ? nullptr : found->second;
}

void Host::for_each_file(const std::string& prefix,
                         const std::function<void(const std::string&, Inode&)>& visit) {
  const std::lock_guard guard(mu_);
  for (auto& [path, directory] : directories_) {
    if (path.compare(0, prefix.size(), prefix) != 0) continue;
    for (auto& [name, inode] : directory.now) visit(path + "/" + name, *inode);
  }
}

uint64_t Host::file_count() const {
  uint64_t count = 0;
  for (const auto& [_, directory] : directories_) count += directory.now.size();
  return count;
}

uint64_t Host::allocated() {
  const std::lock_guard guard(mu_);
  if (bytes_max == UINT64_MAX) return 0;
  uint64_t bytes = 0;
  for (auto& [path, directory] : directories_)
    for (auto& [name, inode] : directory.now) bytes += inode->now.allocated();
  return bytes;
}

}  // namespace braidfs::store::test
