#include "data/library_versions.h"

#include <hdf5.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>
#include <zlib.h>
#include <zstd.h>

#include "core/concat.h"
#include "data/hdf5_handles.h"

namespace halflife::data {
namespace {

LibraryVersion Hdf5() {
  const Hdf5Lock lock;
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return {"HDF5", Concat(H5_VERS_MAJOR, ".", H5_VERS_MINOR, ".", H5_VERS_RELEASE),
          Concat(major, ".", minor, ".", release)};
}

LibraryVersion Pcre2() {
  std::string loaded(64, '\0');  // "10.42 2022-12-11" needs 17 bytes
  const int length = pcre2_config(PCRE2_CONFIG_VERSION, loaded.data());
  loaded.resize(length > 0 ? loaded.find_first_of(std::string_view(" \0", 2)) : 0);
  return {"PCRE2", Concat(PCRE2_MAJOR, ".", PCRE2_MINOR), loaded};
}

}  // namespace

std::vector<LibraryVersion> DataLibraries() {
  return {Hdf5(),
          Pcre2(),
          {"utf8proc",
           Concat(UTF8PROC_VERSION_MAJOR, ".", UTF8PROC_VERSION_MINOR, ".", UTF8PROC_VERSION_PATCH),
           utf8proc_version()},
          {"zstd", ZSTD_VERSION_STRING, ZSTD_versionString()},
          {"zlib", ZLIB_VERSION, zlibVersion()}};
}

}  // namespace halflife::data
