// A folder that appears under its final name only when it is complete. It is written as
// OUT.tmp-<hex> in the same parent folder, which is locked with flock(2) while its process lives.
// The destructor removes a folder that was not published.
//
//   OutputFolder output(out);   // throws if OUT exists; removes leftover temporaries of OUT
//   WriteEverything(output.path());
//   output.Publish();           // fsync, then one rename
#pragma once

#include <filesystem>

#include "core/files.h"

namespace halflife::data {

class OutputFolder {
 public:
  // Throws Error kUsage if `out` exists, and kData if the temporary folder cannot be created.
  explicit OutputFolder(const std::filesystem::path& out);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  const std::filesystem::path& path() const { return temporary_; }
  void Publish();

 private:
  // Returns false if another process removed the folder first; the caller then tries again.
  bool MakeTemporary();
  std::filesystem::path out_;
  std::filesystem::path temporary_;
  Fd lock_;
  bool published_ = false;
};

}  // namespace halflife::data
