// An LD_PRELOAD library that makes calls into the C library fail on paths below a folder, like a bad
// disk.
//
//   FAIL_IO_ROOT=/tmp/x    the folder; calls on other paths are not changed
//   FAIL_IO_CALL=write     the kind of call, one of kNames; without it no call fails
//   FAIL_IO_NTH=3          number of the call, from 1
//   FAIL_IO_ERRNO=28       the error; 0: half of the bytes are read or written
//   FAIL_IO_FOREVER=1      every later call fails too
//   FAIL_IO_LOG=/tmp/y     receives a line for the first call that failed, and "counts" at the end
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum Kind {
  kOpen,
  kRead,
  kWrite,
  kFsync,
  kClose,
  kRename,
  kMkdir,
  kUnlink,
  kTruncate,
  kStat,
  kList,
  kMap,
  kReserve,
  kLock,
  kSpace,
  kKinds
};
static const char* const kNames[kKinds] = {"open",   "read",  "write",   "fsync",    "close",
                                           "rename", "mkdir", "unlink",  "truncate", "stat",
                                           "list",   "map",   "reserve", "lock",     "space"};

// Returns the next definition of a function, which is the C library's.
#define REAL(name)                                                \
  ({                                                              \
    static __typeof__(&name) real;                                \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
    real;                                                         \
  })

enum { kMaxFds = 4096 };
static atomic_int ours[kMaxFds];  // Descriptors of files below the root.
static atomic_long counts[kKinds];
static const char* root;
static int chosen = -1, error_number, forever;
static long nth;

__attribute__((constructor)) static void Start(void) {
  root = getenv("FAIL_IO_ROOT");
  const char* const call = getenv("FAIL_IO_CALL");
  if (!root || !call) return;
  for (int i = 0; i < kKinds; ++i) {
    if (strcmp(kNames[i], call) == 0) chosen = i;
  }
  nth = atol(getenv("FAIL_IO_NTH"));
  error_number = atoi(getenv("FAIL_IO_ERRNO"));
  forever = getenv("FAIL_IO_FOREVER") != NULL;
}

static void Log(const char* text) {
  const char* const path = getenv("FAIL_IO_LOG");
  const int fd = path ? REAL(open)(path, O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;
  if (fd < 0) return;
  if (REAL(write)(fd, text, strlen(text)) < 0) abort();
  REAL(close)(fd);
}

__attribute__((destructor)) static void End(void) {
  char text[512] = "counts";
  for (int i = 0; i < kKinds; ++i) {
    char one[48];
    snprintf(one, sizeof one, " %s=%ld", kNames[i], counts[i]);
    strcat(text, one);
  }
  Log(strcat(text, "\n"));
}
// halflife-engine ends with _exit, which does not call End.
__attribute__((noreturn)) void _exit(int code) {
  End();
  REAL(_exit)(code);
  __builtin_unreachable();
}

static int IsOurFd(int fd) { return fd >= 0 && fd < kMaxFds && ours[fd]; }
static int IsOurPath(int folder, const char* path) {
  if (!root || !path) return 0;
  return path[0] == '/' ? strncmp(path, root, strlen(root)) == 0 : IsOurFd(folder);
}
static int Note(int fd, int is_ours) {
  if (fd >= 0 && fd < kMaxFds) ours[fd] = is_ours;
  return fd;
}

// Returns whether this call must fail, and sets errno.
static int Fails(enum Kind kind, const char* function, const char* path) {
  const long number = ++counts[kind];
  if (chosen != (int)kind || number < nth || (number > nth && !forever)) return 0;
  if (number == nth) {
    char text[PATH_MAX + 128];
    snprintf(text, sizeof text, "failed %s %s\n", function, path ? path : "");
    Log(text);
  }
  errno = error_number;
  return 1;
}
static int FdFails(enum Kind kind, const char* function, int fd) {
  if (!IsOurFd(fd)) return 0;
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  path[length < 0 ? 0 : length] = 0;
  return Fails(kind, function, path);
}

// Opening. The mode is always passed on. Without O_CREAT it is ignored.
#define OPEN(name)                                       \
  int name(const char* path, int flags, ...) {           \
    va_list list;                                        \
    va_start(list, flags);                               \
    const mode_t mode = va_arg(list, mode_t);            \
    va_end(list);                                        \
    const int is_ours = IsOurPath(-1, path);             \
    if (is_ours && Fails(kOpen, #name, path)) return -1; \
    return Note(REAL(name)(path, flags, mode), is_ours); \
  }
#define OPENAT(name)                                             \
  int name(int folder, const char* path, int flags, ...) {       \
    va_list list;                                                \
    va_start(list, flags);                                       \
    const mode_t mode = va_arg(list, mode_t);                    \
    va_end(list);                                                \
    const int is_ours = IsOurPath(folder, path);                 \
    if (is_ours && Fails(kOpen, #name, path)) return -1;         \
    return Note(REAL(name)(folder, path, flags, mode), is_ours); \
  }
#define FOPEN(name)                                        \
  FILE* name(const char* path, const char* mode) {         \
    const int is_ours = IsOurPath(-1, path);               \
    if (is_ours && Fails(kOpen, #name, path)) return NULL; \
    FILE* const file = REAL(name)(path, mode);             \
    if (file) Note(fileno(file), is_ours);                 \
    return file;                                           \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FOPEN(fopen)
FOPEN(fopen64)

// Reading and writing. `bytes` is the argument that is halved for half a transfer.
#define TRANSFER(kind, type, name, fd, parameters, ...) \
  type name parameters {                                \
    if (FdFails(kind, #name, fd)) {                     \
      if (error_number) return -1;                      \
      bytes -= bytes / 2;                               \
    }                                                   \
    return REAL(name)(__VA_ARGS__);                     \
  }
TRANSFER(kRead, ssize_t, read, fd, (int fd, void* data, size_t bytes), fd, data, bytes)
TRANSFER(kRead, ssize_t, pread, fd, (int fd, void* data, size_t bytes, off_t at), fd, data, bytes,
         at)
TRANSFER(kRead, ssize_t, pread64, fd, (int fd, void* data, size_t bytes, off64_t at), fd, data,
         bytes, at)
TRANSFER(kWrite, ssize_t, write, fd, (int fd, const void* data, size_t bytes), fd, data, bytes)
TRANSFER(kWrite, ssize_t, pwrite, fd, (int fd, const void* data, size_t bytes, off_t at), fd, data,
         bytes, at)
TRANSFER(kWrite, ssize_t, pwrite64, fd, (int fd, const void* data, size_t bytes, off64_t at), fd,
         data, bytes, at)
TRANSFER(kWrite, ssize_t, sendfile, to, (int to, int from, off_t* at, size_t bytes), to, from, at,
         bytes)

ssize_t writev(int fd, const struct iovec* parts, int count) {
  if (FdFails(kWrite, "writev", fd)) {
    if (error_number) return -1;
    count = 1;
  }
  return REAL(writev)(fd, parts, count);
}
size_t fwrite(const void* data, size_t size, size_t count, FILE* file) {
  if (FdFails(kWrite, "fwrite", fileno(file)) && error_number) return 0;
  return REAL(fwrite)(data, size, count, file);
}
int fflush(FILE* file) {
  if (file && FdFails(kWrite, "fflush", fileno(file)) && error_number) return EOF;
  return REAL(fflush)(file);
}

// Calls on a descriptor and on a path. `bad` is the value that they return on failure.
#define ON_FD(kind, type, name, fd, bad, parameters, ...) \
  type name parameters {                                  \
    if (FdFails(kind, #name, fd)) return bad;             \
    return REAL(name)(__VA_ARGS__);                       \
  }
#define ON_PATH(kind, name, folder, path, parameters, ...)              \
  int name parameters {                                                 \
    if (IsOurPath(folder, path) && Fails(kind, #name, path)) return -1; \
    return REAL(name)(__VA_ARGS__);                                     \
  }
ON_FD(kFsync, int, fsync, fd, -1, (int fd), fd)
ON_FD(kFsync, int, fdatasync, fd, -1, (int fd), fd)
ON_FD(kTruncate, int, ftruncate, fd, -1, (int fd, off_t to), fd, to)
ON_FD(kTruncate, int, ftruncate64, fd, -1, (int fd, off64_t to), fd, to)
ON_PATH(kTruncate, truncate, -1, path, (const char* path, off_t to), path, to)
ON_PATH(kTruncate, truncate64, -1, path, (const char* path, off64_t to), path, to)
ON_FD(kReserve, int, fallocate, fd, -1, (int fd, int mode, off_t at, off_t n), fd, mode, at, n)
ON_FD(kReserve, int, posix_fallocate, fd, error_number, (int fd, off_t at, off_t n), fd, at, n)
ON_FD(kReserve, int, posix_fallocate64, fd, error_number, (int fd, off64_t at, off64_t n), fd, at,
      n)
ON_FD(kLock, int, flock, fd, -1, (int fd, int how), fd, how)
ON_FD(kMap, void*, mmap, fd, MAP_FAILED, (void* to, size_t n, int p, int f, int fd, off_t at), to,
      n, p, f, fd, at)
ON_FD(kMap, void*, mmap64, fd, MAP_FAILED, (void* to, size_t n, int p, int f, int fd, off64_t at),
      to, n, p, f, fd, at)
ON_FD(kStat, int, fstat, fd, -1, (int fd, struct stat* info), fd, info)
ON_FD(kStat, int, fstat64, fd, -1, (int fd, struct stat64* info), fd, info)
ON_PATH(kStat, stat, -1, path, (const char* path, struct stat* info), path, info)
ON_PATH(kStat, stat64, -1, path, (const char* path, struct stat64* info), path, info)
ON_PATH(kStat, lstat, -1, path, (const char* path, struct stat* info), path, info)
ON_PATH(kStat, lstat64, -1, path, (const char* path, struct stat64* info), path, info)
ON_PATH(kStat, fstatat, d, path, (int d, const char* path, struct stat* info, int flags), d, path,
        info, flags)
ON_PATH(kStat, fstatat64, d, path, (int d, const char* path, struct stat64* info, int flags), d,
        path, info, flags)
ON_PATH(kSpace, statvfs, -1, path, (const char* path, struct statvfs* info), path, info)
ON_PATH(kSpace, statvfs64, -1, path, (const char* path, struct statvfs64* info), path, info)
ON_PATH(kMkdir, mkdir, -1, path, (const char* path, mode_t mode), path, mode)
ON_PATH(kMkdir, mkdirat, d, path, (int d, const char* path, mode_t mode), d, path, mode)
ON_PATH(kUnlink, unlink, -1, path, (const char* path), path)
ON_PATH(kUnlink, rmdir, -1, path, (const char* path), path)
ON_PATH(kUnlink, remove, -1, path, (const char* path), path)
ON_PATH(kUnlink, unlinkat, d, path, (int d, const char* path, int flags), d, path, flags)
ON_PATH(kRename, rename, -1, from, (const char* from, const char* to), from, to)
ON_PATH(kRename, renameat, d, from, (int d, const char* from, int e, const char* to), d, from, e,
        to)

// Renames that must not replace a file use this call.
long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(list, long);
  va_end(list);
  if (number == SYS_renameat2 && IsOurPath((int)a[0], (const char*)a[1]) &&
      Fails(kRename, "renameat2", (const char*)a[1])) {
    return -1;
  }
  return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

// Folders.
DIR* opendir(const char* path) {
  const int is_ours = IsOurPath(-1, path);
  if (is_ours && Fails(kList, "opendir", path)) return NULL;
  DIR* const folder = REAL(opendir)(path);
  if (folder) Note(dirfd(folder), is_ours);
  return folder;
}
ON_FD(kList, DIR*, fdopendir, fd, NULL, (int fd), fd)
ON_FD(kList, struct dirent*, readdir, dirfd(folder), NULL, (DIR * folder), folder)
ON_FD(kList, struct dirent64*, readdir64, dirfd(folder), NULL, (DIR * folder), folder)

// Closing. The descriptor is closed even if the call fails.
int close(int fd) {
  const int failed = FdFails(kClose, "close", fd);
  Note(fd, 0);
  const int result = REAL(close)(fd);
  if (failed) errno = error_number;
  return failed ? -1 : result;
}
int fclose(FILE* file) {
  const int fd = fileno(file), failed = FdFails(kClose, "fclose", fd);
  Note(fd, 0);
  const int result = REAL(fclose)(file);
  if (failed) errno = error_number;
  return failed ? EOF : result;
}
int closedir(DIR* folder) {
  Note(dirfd(folder), 0);
  return REAL(closedir)(folder);
}
