#include "names/child_table.h"

#include <algorithm>

namespace braidfs::names {

namespace {

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

uint64_t version_of(const ChildTable::Child& child) {
  return record::field<uint64_t>(child.attributes, record::kChangeVersion);
}

}  // namespace

bool ChildTable::put(uint64_t directory, std::span<const std::byte> attributes,
                     std::span<const std::byte> layout, std::span<const std::byte> capability) {
  if (attributes.size() != record::kBytes) return false;
  Child child{.directory = directory, .layout = text_of(layout), .capability = text_of(capability)};
  std::ranges::copy(attributes, child.attributes.begin());
  const auto ino = record::field<uint64_t>(attributes, record::kIno);
  Group& in = group(ino);
  const std::scoped_lock lock(in.mu);
  const auto [there, is_new] = in.children.try_emplace(ino);
  if (is_new) count_.fetch_add(1, std::memory_order_relaxed);
  child.opened = there->second.opened && version_of(there->second) == version_of(child);
  bytes_.fetch_sub(bytes_of(there->second), std::memory_order_relaxed);
  bytes_.fetch_add(bytes_of(child), std::memory_order_relaxed);
  there->second = std::move(child);
  return true;
}

bool ChildTable::erase(Group& in, uint64_t ino) {
  const auto found = in.children.find(ino);
  if (found == in.children.end()) return false;
  if (!found->second.opened) unused_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_sub(bytes_of(found->second), std::memory_order_relaxed);
  in.children.erase(found);
  count_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

bool ChildTable::is_older(uint64_t ino, uint64_t change_version) {
  if (count() == 0) return false;
  Group& in = group(ino);
  const std::scoped_lock lock(in.mu);
  const auto found = in.children.find(ino);
  return found != in.children.end() && version_of(found->second) < change_version;
}

std::vector<uint64_t> ChildTable::of(uint64_t directory) {
  std::vector<uint64_t> found;
  for (Group& in : groups_) {
    const std::scoped_lock lock(in.mu);
    for (const auto& [ino, child] : in.children) {
      if (directory == 0 || child.directory == directory) found.push_back(ino);
    }
  }
  return found;
}

}  // namespace braidfs::names
