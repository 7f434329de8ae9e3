#include "data/hdf5_handles.h"

#include <hdf5.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <string_view>
#include <vector>

#include "core/log.h"

namespace halflife::data {
namespace {

static_assert(std::is_same_v<hid_t, int64_t> && std::is_same_v<herr_t, int>);

// The library's state is process-wide, so its lock is too.
std::recursive_mutex mutex;

herr_t CollectMessage(unsigned, const H5E_error2_t* error, void* messages) {
  static_cast<std::vector<std::string>*>(messages)->push_back(error->desc ? error->desc : "");
  return 0;
}

// The system's reason in one of HDF5's messages about a file, which quote it between their own
// details: "..., errno = 28, error message = 'No space left on device', buf = 0x55, ...". Empty if
// there is none.
std::string SystemReason(const std::string& message) {
  constexpr std::string_view kBefore = "error message = '";
  const size_t quote = message.find(kBefore);
  if (quote == std::string::npos) return "";
  const size_t begin = quote + kBefore.size();
  return message.substr(begin, message.find('\'', begin) - begin);
}

}  // namespace

Hdf5Lock::Hdf5Lock() : lock_(mutex) {
  // Without this a file that could not be closed (full disk) is flushed again at exit, in a loop.
  H5dont_atexit();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // errors come as exceptions, not on stderr
}

Hdf5Handle::~Hdf5Handle() {
  if (id_ < 0) return;
  const Hdf5Lock lock;
  const bool closed = close_(id_) >= 0;
  // While an error unwinds, a file that cannot be closed is its consequence.
  if (!closed && std::uncaught_exceptions() == 0)
    HL_WARN("data", "cannot close an HDF5 handle: ", Hdf5ErrorText());
}

bool Hdf5Handle::CloseNow() {
  const Hdf5Lock lock;
  return close_(std::exchange(id_, -1)) >= 0;
}

std::string Hdf5ErrorText() {
  std::vector<std::string> messages;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, &CollectMessage, &messages);
  if (messages.empty()) return "HDF5: no message";
  const std::string reason = SystemReason(messages.front());
  if (reason == std::strerror(ENOSPC)) return reason + ". Free some space on this disk.";
  if (!reason.empty()) return reason;
  if (messages.size() == 1) return Concat("HDF5: ", messages.front());
  return Concat("HDF5: ", messages.front(), " (", messages.back(), ")");
}

}  // namespace halflife::data
