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

// The library's state is per process, so the lock is too.
std::recursive_mutex mutex;

herr_t CollectMessage(unsigned, const H5E_error2_t* error, void* messages) {
  static_cast<std::vector<std::string>*>(messages)->push_back(error->desc ? error->desc : "");
  return 0;
}

// Extracts the system's error text from an HDF5 message about a file. Such messages quote it
// between other details: "..., errno = 28, error message = 'No space left on device', buf = 0x55,
// ...". Returns "" if there is none.
std::string SystemReason(const std::string& message) {
  constexpr std::string_view kBefore = "error message = '";
  const size_t quote = message.find(kBefore);
  if (quote == std::string::npos) return "";
  const size_t begin = quote + kBefore.size();
  return message.substr(begin, message.find('\'', begin) - begin);
}

}  // namespace

Hdf5Lock::Hdf5Lock() : lock_(mutex) {
  // Otherwise a file that could not be closed (on a full disk) is flushed again at exit, in an
  // endless loop.
  H5dont_atexit();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // errors are thrown and not printed on stderr
}

Hdf5Handle::~Hdf5Handle() {
  if (id_ < 0) return;
  const Hdf5Lock lock;
  const bool closed = close_(id_) >= 0;
  // While an exception unwinds, a file that cannot be closed is only its consequence.
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
