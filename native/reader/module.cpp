// The Python module _braidfs_reader. Only this file knows Python: it checks what it is given, so
// that pool.cpp can trust its batches.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "listing.h"
#include "pool.h"

namespace nb = nanobind;
using braidfs::reader::Batch;
using braidfs::reader::Listing;
using braidfs::reader::Pool;
using braidfs::reader::Row;
using braidfs::reader::Task;

namespace {

constexpr int kThreadsMax = 256;

// A contiguous buffer of Python, held until the end of a call.
class Buffer {
 public:
  Buffer(nb::handle object, int flags) {
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw nb::python_error();
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  char* begin() const { return static_cast<char*>(view_.buf); }
  std::size_t size() const { return static_cast<std::size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

// The names in a buffer in which each one ends with a NUL.
std::vector<const char*> split_names(const Buffer& names, std::size_t count) {
  std::vector<const char*> found;
  found.reserve(count);
  const char* at = names.begin();
  const char* const end = at + names.size();
  while (at != end) {
    const void* stop = std::memchr(at, 0, static_cast<std::size_t>(end - at));
    if (stop == nullptr) throw std::invalid_argument("the last name does not end with a NUL");
    found.push_back(at);
    at = static_cast<const char*>(stop) + 1;
  }
  if (found.size() != count) {
    throw std::invalid_argument("there are " + std::to_string(found.size()) + " names for " +
                                std::to_string(count) + " rows");
  }
  return found;
}

std::span<Row> rows_of(const Buffer& table) {
  if (table.size() == 0) return {};  // it may lie anywhere
  if (table.size() % sizeof(Row) != 0 || reinterpret_cast<std::uintptr_t>(table.begin()) % 8 != 0) {
    throw std::invalid_argument("the table is not made of rows of three numbers of 64 bits");
  }
  return {reinterpret_cast<Row*>(table.begin()), table.size() / sizeof(Row)};
}

void check_places(std::span<const Row> rows, std::size_t arena) {
  const auto size = static_cast<std::int64_t>(arena);
  for (const Row& row : rows) {
    if (row.place < 0 || row.room < 0 || row.place > size || row.room > size - row.place) {
      throw std::invalid_argument("a row of the table lies outside of the arena");
    }
  }
}

// True: go on. Called without the GIL.
bool no_signal_came() {
  const nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals() == 0;
}

void run(Pool& pool, Batch& batch, int threads) {
  if (threads < 1 || threads > kThreadsMax) {
    throw std::invalid_argument("threads is from 1 to " + std::to_string(kThreadsMax));
  }
  if (!pool.is_of_this_process()) {
    throw std::runtime_error("this pool of threads is another process's: a fork made a copy of it");
  }
  bool finished = true;
  {
    const nb::gil_scoped_release released;
    finished = pool.run(batch, threads, no_signal_came);
  }
  if (!finished) throw nb::python_error();
}

void find_sizes(Pool& pool, nb::handle names, nb::handle table, int threads) {
  const Buffer names_buffer(names, PyBUF_SIMPLE);
  const Buffer table_buffer(table, PyBUF_WRITABLE);
  const auto rows = rows_of(table_buffer);
  const auto pointers = split_names(names_buffer, rows.size());
  Batch batch(Task::kSizes, pointers, rows, nullptr);
  run(pool, batch, threads);
}

void read_files(Pool& pool, nb::handle names, nb::handle table, nb::handle arena, int threads) {
  const Buffer names_buffer(names, PyBUF_SIMPLE);
  const Buffer table_buffer(table, PyBUF_WRITABLE);
  const Buffer arena_buffer(arena, PyBUF_WRITABLE);
  const auto rows = rows_of(table_buffer);
  const auto pointers = split_names(names_buffer, rows.size());
  check_places(rows, arena_buffer.size());
  Batch batch(Task::kRead, pointers, rows, reinterpret_cast<std::byte*>(arena_buffer.begin()));
  run(pool, batch, threads);
}

nb::bytes packed(const std::vector<std::uint64_t>& numbers) {
  return nb::bytes(numbers.data(), numbers.size() * sizeof(std::uint64_t));
}

std::string_view view_of(const nb::bytes& given) { return {given.c_str(), given.size()}; }

[[noreturn]] void raise_os_error(int error, const nb::bytes& path) {
  const auto name = nb::steal(
      PyUnicode_DecodeFSDefaultAndSize(path.c_str(), static_cast<Py_ssize_t>(path.size())));
  if (name.is_valid()) {
    errno = error;
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, name.ptr());
  }
  throw nb::python_error();
}

nb::tuple list_folder(const nb::bytes& folder, const nb::bytes& prefix, const nb::tuple& ends,
                      std::uint64_t device) {
  if (view_of(folder).find('\0') != std::string_view::npos) {
    throw std::invalid_argument("a path with a NUL in it");
  }
  std::vector<nb::bytes> held;  // also while other threads run
  std::vector<std::string_view> views;
  for (nb::handle end : ends) {
    if (!nb::isinstance<nb::bytes>(end)) throw nb::type_error("ends of names are bytes");
    held.push_back(nb::borrow<nb::bytes>(end));
  }
  for (const nb::bytes& end : held) views.push_back(view_of(end));
  Listing listing;
  int error = 0;
  {
    const nb::gil_scoped_release released;
    error = braidfs::reader::list_folder(folder.c_str(), {view_of(prefix), views, device}, listing);
  }
  if (error != 0) raise_os_error(error, folder);
  nb::list folders;
  nb::list places;
  for (const std::string& one : listing.folders) folders.append(nb::bytes(one.data(), one.size()));
  for (const std::uint64_t one : listing.places) places.append(nb::int_(one));
  return nb::make_tuple(listing.inode, nb::bytes(listing.paths.data(), listing.paths.size()),
                        packed(listing.offsets), packed(listing.sizes), packed(listing.inodes),
                        folders, places);
}

}  // namespace

NB_MODULE(_braidfs_reader, module) {
  nb::set_leak_warnings(false);  // a pool lives as long as its process
  module.doc() =
      "Threads that read batches of whole files, and listings of folders, for braidfs.data.";
  module.def(
      "list_folder", &list_folder, nb::arg("folder"), nb::arg("prefix"), nb::arg("ends"),
      nb::arg("device"),
      nb::sig("def list_folder(folder: bytes, prefix: bytes, ends: tuple[bytes, ...], device: int)"
              " -> tuple[int, bytes, bytes, bytes, bytes, list[bytes], list[int]]"),
      "Lists the files of a folder whose names end with one of `ends`, and its folders.\n\n"
      "ends: in small letters; none: all files. Files are regular ones and symbolic links to\n"
      "such. device: that of a mount which tells sizes together with names; 0: none.\n\n"
      "Returns the folder's inode number; the paths of the files, each behind the prefix; and,\n"
      "as numbers of 64 bits, where each path begins and the last one ends, sizes in bytes, and\n"
      "inode numbers (0 for a link); the names of folders, each with a slash; and how many files\n"
      "come before each folder. Both are sorted by their bytes. Raises OSError.");
  nb::class_<Pool>(module, "Pool",
                   "Threads of this process, which are started when they are first needed.")
      .def(nb::init<>())
      .def("sizes", &find_sizes, nb::arg("names"), nb::arg("table"), nb::arg("threads"),
           nb::sig("def sizes(self, names: bytes, table: object, threads: int) -> None"),
           "Finds the sizes of files.\n\n"
           "names: each one ends with a NUL. table: a writable buffer of rows of three numbers of\n"
           "64 bits (place, room, result); each result becomes a size in bytes or -errno.\n"
           "Raises what a signal's handler raises, after the calls under way.")
      .def("read", &read_files, nb::arg("names"), nb::arg("table"), nb::arg("arena"),
           nb::arg("threads"),
           nb::sig("def read(self, names: bytes, table: object, arena: object, threads: int)"
                   " -> None"),
           "Reads whole files into the arena, a writable buffer.\n\n"
           "names and table as for sizes(); place and room say where in the arena each file goes.\n"
           "Each result becomes a count of bytes or -errno; a count of all the room says nothing\n"
           "about the end of the file. Raises what a signal's handler raises, after the reads\n"
           "under way.");
}
