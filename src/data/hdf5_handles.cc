#include "data/hdf5_handles.h"

#include <hdf5.h>

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

}  // namespace

Hdf5Lock::Hdf5Lock() : lock_(mutex) {
  // Without this a file that could not be closed (full disk) is flushed again at exit, in a loop.
  H5dont_atexit();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // errors come as exceptions, not on stderr
}

Hdf5Handle::~Hdf5Handle() {
  if (id_ < 0) return;
  const Hdf5Lock lock;
  if (close_(id_) < 0) HL_WARN("data", "HDF5 cannot close a handle: ", Hdf5ErrorText());
}

bool Hdf5Handle::CloseNow() {
  const Hdf5Lock lock;
  return close_(std::exchange(id_, -1)) >= 0;
}

std::string Hdf5ErrorText() {
  std::vector<std::string> messages;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, &CollectMessage, &messages);
  if (messages.empty()) return "no message";
  if (messages.size() == 1) return messages.front();
  return messages.front() + " (" + messages.back() + ")";
}

}  // namespace halflife::data
