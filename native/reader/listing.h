// One folder: its files with their sizes and inode numbers, and its folders. No threads and no
// Python here.
// Threads: any.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace braidfs::reader {

// Files and folders are each sorted by the bytes of their names, where a folder's ends with a
// slash.
struct Listing {
  std::uint64_t inode = 0;             // of the folder itself
  std::string paths;                   // of all files, each behind the prefix, one after another
  std::vector<std::uint64_t> offsets;  // where each path begins, and the end of the last one
  std::vector<std::uint64_t> sizes;    // of each file, in bytes
  std::vector<std::uint64_t> inodes;   // of each file; 0 for a symbolic link to one
  std::vector<std::string> folders;    // each name ends with a slash
  std::vector<std::uint64_t> places;   // of each folder: how many files come before it
};

struct Wish {
  std::string_view prefix;  // stands before each name in `paths`
  // Files are wanted whose names end with one of these, in small letters (ASCII capitals of names
  // are equal to them); all if there are none.
  std::span<const std::string_view> ends;
  // The device of a mount that tells sizes together with names: what it told is believed, and no
  // file is asked for again. 0: none.
  std::uint64_t device = 0;
};

// Lists the folder of that name into an empty listing. Files are regular ones, and symbolic links
// to such. Files that vanish meanwhile and links that lead nowhere are left out. Returns 0 or an
// errno.
int list_folder(const char* folder, const Wish& wish, Listing& listing);

}  // namespace braidfs::reader
