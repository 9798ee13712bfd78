/* LD_PRELOAD: appends every write to, and sync of, a file named data.mdb to $BRAIDFS_WRITE_LOG.
 *
 * Record: u8 kind ('W' write, 'D' write through an O_DSYNC descriptor, 'S' fdatasync or fsync),
 * u64 offset, u32 length, then the bytes. A record is appended after the call succeeded. Only calls
 * that LMDB and our store use are recorded: pwrite, pwritev, writev and write with lseek, fdatasync,
 * fsync, and posix_fallocate (as an empty write at the new end of the file); msync and ftruncate of
 * the file abort, so that an unrecorded way to the disk fails loudly. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int watched(int fd) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 9) return 0;
  path[length] = 0;
  return strcmp(path + length - 9, "/data.mdb") == 0;
}

static ssize_t (*real_write)(int, const void*, size_t);

static void put(const void* bytes, size_t length) {
  static int fd = -1;
  if (fd < 0) fd = open(getenv("BRAIDFS_WRITE_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (!real_write) *(void**)&real_write = dlsym(RTLD_NEXT, "write");
  if (fd < 0 || real_write(fd, bytes, length) != (ssize_t)length) abort();
}

static void record(uint8_t kind, uint64_t offset, const struct iovec* parts, int count,
                   size_t length) {
  const uint32_t size = (uint32_t)length;
  pthread_mutex_lock(&lock);
  put(&kind, sizeof kind);
  put(&offset, sizeof offset);
  put(&size, sizeof size);
  for (int i = 0; i < count && length; ++i) {
    const size_t part = parts[i].iov_len < length ? parts[i].iov_len : length;
    put(parts[i].iov_base, part);
    length -= part;
  }
  pthread_mutex_unlock(&lock);
}

static void wrote(int fd, uint64_t offset, const struct iovec* parts, int count, ssize_t done) {
  if (done <= 0 || !watched(fd)) return;
  const int flags = fcntl(fd, F_GETFL);
  record(flags & O_DSYNC ? 'D' : 'W', offset, parts, count, (size_t)done);
}

#define REAL(name) \
  static typeof(&name) real; \
  if (!real) *(void**)&real = dlsym(RTLD_NEXT, #name)

ssize_t pwrite(int fd, const void* bytes, size_t length, off_t offset) {
  REAL(pwrite);
  const ssize_t done = real(fd, bytes, length, offset);
  const struct iovec part = {(void*)bytes, length};
  wrote(fd, (uint64_t)offset, &part, 1, done);
  return done;
}

ssize_t pwrite64(int fd, const void* bytes, size_t length, off64_t offset) {
  return pwrite(fd, bytes, length, (off_t)offset);
}

ssize_t pwritev(int fd, const struct iovec* parts, int count, off_t offset) {
  REAL(pwritev);
  const ssize_t done = real(fd, parts, count, offset);
  wrote(fd, (uint64_t)offset, parts, count, done);
  return done;
}

ssize_t pwritev64(int fd, const struct iovec* parts, int count, off64_t offset) {
  return pwritev(fd, parts, count, (off_t)offset);
}

ssize_t writev(int fd, const struct iovec* parts, int count) {
  REAL(writev);
  const off_t offset = lseek(fd, 0, SEEK_CUR);
  const ssize_t done = real(fd, parts, count);
  if (offset >= 0) wrote(fd, (uint64_t)offset, parts, count, done);
  return done;
}

ssize_t write(int fd, const void* bytes, size_t length) {
  REAL(write);
  const off_t offset = lseek(fd, 0, SEEK_CUR);
  const ssize_t done = real(fd, bytes, length);
  const struct iovec part = {(void*)bytes, length};
  if (offset >= 0) wrote(fd, (uint64_t)offset, &part, 1, done);
  return done;
}

int fdatasync(int fd) {
  REAL(fdatasync);
  const int result = real(fd);
  if (result == 0 && watched(fd)) record('S', 0, NULL, 0, 0);
  return result;
}

int fsync(int fd) {
  REAL(fsync);
  const int result = real(fd);
  if (result == 0 && watched(fd)) record('S', 0, NULL, 0, 0);
  return result;
}

int ftruncate(int fd, off_t length) {
  REAL(ftruncate);
  if (watched(fd)) abort();
  return real(fd, length);
}

/* With large files the call has either name. */
static int allocated(int fd, off_t end, int error) {
  if (error == 0 && watched(fd)) record('W', (uint64_t)end, NULL, 0, 0);
  return error;
}

int posix_fallocate(int fd, off_t offset, off_t length) {
  REAL(posix_fallocate);
  return allocated(fd, offset + length, real(fd, offset, length));
}

int posix_fallocate64(int fd, off64_t offset, off64_t length) {
  REAL(posix_fallocate64);
  return allocated(fd, offset + length, real(fd, offset, length));
}

int msync(void* address, size_t length, int flags) {
  (void)address, (void)length, (void)flags;
  abort();
}
