// A folder that the calling thread cannot enter, even if it is root's.
//
//   const Unreadable folder(dir / "of_someone_else");
#pragma once

#include <sys/fsuid.h>
#include <unistd.h>

#include <filesystem>

namespace halflife::test {

class Unreadable {
 public:
  explicit Unreadable(const std::filesystem::path& folder,
                      std::filesystem::perms allowed = std::filesystem::perms::none)
      : folder_(folder) {
    std::filesystem::permissions(folder_, allowed);
    ::setfsuid(65534);  // Permissions do not hold for root.
  }
  ~Unreadable() {
    ::setfsuid(::geteuid());
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
  }
  Unreadable(const Unreadable&) = delete;
  Unreadable& operator=(const Unreadable&) = delete;

 private:
  const std::filesystem::path folder_;
};

}  // namespace halflife::test
