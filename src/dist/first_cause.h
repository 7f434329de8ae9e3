// Selects the exception to report if several threads fail.
#pragma once

#include <exception>
#include <mutex>

namespace halflife::dist {

// Keeps the first exception that is a cause. A consequence (kAborted) is reported only if there is
// no cause.
class FirstCause {
 public:
  void Add(std::exception_ptr error, bool consequence) {
    const std::lock_guard lock(mutex_);
    std::exception_ptr& kept = consequence ? consequence_ : cause_;
    if (!kept) kept = std::move(error);
  }
  void RethrowAny() const {
    if (cause_) std::rethrow_exception(cause_);
    if (consequence_) std::rethrow_exception(consequence_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr cause_, consequence_;
};

}  // namespace halflife::dist
