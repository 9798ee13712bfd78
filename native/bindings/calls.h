// How calls of Python into the client's half fail, and run without the GIL.
#pragma once
#include <nanobind/nanobind.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>

namespace braidfs::bindings {

[[noreturn]] inline void raise_os_error(int error, const char* filename) {
  const nanobind::object arguments =
      filename == nullptr ? nanobind::make_tuple(error, std::strerror(error))
                          : nanobind::make_tuple(error, std::strerror(error), filename);
  PyErr_SetObject(PyExc_OSError, arguments.ptr());
  throw nanobind::python_error();
}

// result: 0 or more, or -errno.
inline int checked(int result, const char* filename = nullptr) {
  if (result == -EINVAL && filename == nullptr) throw nanobind::value_error("malformed argument");
  if (result < 0) raise_os_error(-result, filename);
  return result;
}

inline void checked(bool accepted, const char* refusal) {
  if (!accepted) throw nanobind::value_error(refusal);
}

inline std::span<const std::byte> view(const nanobind::bytes& bytes) {
  return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}

inline nanobind::bytes bytes_of(const std::string& text) {
  return nanobind::bytes(text.data(), text.size());
}

// What a row of Python's has by this name.
template <typename T>
T field_of(nanobind::handle row, const char* name) {
  return nanobind::cast<T>(row.attr(name));
}

// Runs `call` without the GIL and gives its result.
template <typename Call>
auto unlocked(Call call) {
  const nanobind::gil_scoped_release released;
  return call();
}

using ReleaseGil = nanobind::call_guard<nanobind::gil_scoped_release>;

}  // namespace braidfs::bindings
