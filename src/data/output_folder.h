// A folder that appears under its final name only when it is complete. Work happens in
// OUT.tmp-<hex> beside it, held by flock(2) while its process lives; the destructor removes what
// was not published.
//
//   OutputFolder output(out);   // refuses an existing OUT; clears dead temporaries of it
//   WriteEverything(output.path());
//   output.Publish();           // fsync, then one rename
#pragma once

#include <filesystem>

#include "core/files.h"

namespace halflife::data {

class OutputFolder {
 public:
  // Error kUsage where `out` exists, kData where nothing can be made beside it.
  explicit OutputFolder(const std::filesystem::path& out);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  const std::filesystem::path& path() const { return temporary_; }
  void Publish();

 private:
  // False: another process was faster, so try again.
  bool MakeTemporary();
  std::filesystem::path out_;
  std::filesystem::path temporary_;
  Fd lock_;
  bool published_ = false;
};

}  // namespace halflife::data
