#include "support/program.h"

#include <c10/util/Exception.h>

#include <iostream>

#include "core/error.h"

namespace halflife::bench {

std::string WordsOf(const std::exception& error) {
  if (const auto* of_torch = dynamic_cast<const c10::Error*>(&error))
    return of_torch->what_without_backtrace();
  return error.what();
}

int ExitCodeOf(const std::function<void()>& run) {
  try {
    run();
    return static_cast<int>(ExitCode::kFinished);
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << WordsOf(error) << "\n";
    return static_cast<int>(ExitCode::kInternal);
  }
}

std::string Problems::Of(const std::function<void()>& run) {
  ++parts_;
  std::string words;
  try {
    run();
    return words;
  } catch (const std::exception& error) {
    words = WordsOf(error);
  }
  if (++failed_ == 1) first_ = words;
  return words;
}

void Problems::ThrowIfAny() const {
  HL_CHECK_AS(ExitCode::kDifference, failed_ == 0, failed_, " of ", parts_,
              " parts have a problem, the first: ", first_);
}

}  // namespace halflife::bench
